"""The part of a Gantt figure that is made once: a trace per kind of bar, the legend, the axes."""

from __future__ import annotations

from paci_lab.language import _
from paci_lab.show.bars import CYCLE, DRAWN, Rows
from paci_lab.show.palette import BACKWARD, FORWARD, Theme, ink_on
from paci_lab.show.words import kind_words

__all__ = [
    "FOOT_PX", "HUED", "LEGEND", "PREDICTED", "fixed_traces", "frame", "layout_axis", "legend_traces", "series",
]  # fmt: skip

PREDICTED = ("F", "B", "I", "W", "U")
LEGEND = ("F", "B", "I", "W", "U", "wait", "snapshot")
"""Kinds that the legend explains."""
HUED = ("F", "B", "I", "W")
_HOVER = "%{customdata}<extra></extra>"
_DATA = {"stage": "%{customdata[0]}", "count": "%{customdata[1]}", "version": "%{customdata[1]}"}
_PATTERN = {"I": "/", "W": "."}
_NEUTRAL = {"F": "#b9c0cb", "B": "#5f6a7a", "I": "#5f6a7a", "W": "#5f6a7a"}  # the lightness of a kind without its hue
_RAIL = 0.13  # height of the line that shows waiting, as a share of the height of work
FOOT_PX = 62  # height below the lowest chart: numbers and name of the time axis


def series(kinds: tuple[str, ...]) -> list[tuple[str, int | None]]:
    """(kind, hue) of every bar trace: a fixed number, one per kind and, where the micro-batch has a hue, one per hue.

    One trace with a colour per bar would be fewer traces, and slower: plotly checks every colour by itself, and a
    browser takes three times as long to draw from a colour scale.
    """
    return [(kind, hue) for kind in kinds for hue in (range(CYCLE) if kind in HUED else (None,))]


def fixed_traces(panel: int, rows: Rows, look: Theme) -> list[dict]:
    """One trace per kind of bar and per strip, without data, in the order of `content`."""
    axes = {"xaxis": axis_name("x", panel), "yaxis": axis_name("y", panel), "showlegend": False}
    bars = {
        "type": "bar",
        "orientation": "h",
        **axes,
        "insidetextanchor": "middle",
        "textangle": 0,
        "textposition": "inside",
    }
    height = rows.band("work")[1]
    data = [
        {
            **bars,
            "name": kind,
            "legendgroup": kind,
            "width": height * (_RAIL if kind == "wait" else 1.0),
            "marker": _marker(kind, hue, look),
            "hovertemplate": _HOVER,
            "insidetextfont": {"color": _ink(kind, hue), "size": 14},
        }
        for kind, hue in series(DRAWN)
    ]
    if "predicted" in rows.parts:
        data += [
            {
                **bars,
                "name": f"predicted {kind}",
                "legendgroup": kind,
                "width": rows.band("predicted")[1],
                "marker": _marker(kind, hue, look),
                "opacity": 0.6,
                "hovertemplate": f"<i>{_('predicted')}</i><br>{_HOVER}",
            }
            for kind, hue in series(PREDICTED)
        ]
    if "in-flight" in rows.parts:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                **axes,
                "name": "in-flight",
                "fill": "toself",
                "hoveron": "points",
                "line": {"shape": "hv", "width": 1.5, "color": look.muted},
                "fillcolor": look.strip[0],
                "hovertemplate": _("stage {stage} holds {count} micro-batches").format(**_DATA) + "<extra></extra>",
            }
        )
    if "version" in rows.parts:
        data.append(
            {
                **bars,
                "name": "version",
                "width": rows.band("version")[1],
                "marker": {"line": {"width": 0}},
                "insidetextfont": {"color": look.ink, "size": 14},
                "texttemplate": "v%{customdata[1]}",
                "hovertemplate": _("stage {stage}: weight version {version}").format(**_DATA) + "<extra></extra>",
            }
        )
    return data


def legend_traces(look: Theme) -> list[dict]:
    """Empty traces, one per kind, whose swatches show the lightness of the kind without a hue."""
    return [
        {
            "type": "bar",
            "x": [None],
            "y": [None],
            "name": words,
            "legendgroup": kind,
            "hoverinfo": "skip",
            "showlegend": True,
            "marker": {
                **_marker(kind, 0 if kind in HUED else None, look),
                **({"color": _NEUTRAL[kind]} if kind in HUED else {}),
            },
        }
        for kind, words in ((kind, _("waiting") if kind == "wait" else kind_words(kind)) for kind in LEGEND)
    ]


def _marker(kind: str, hue: int | None, look: Theme) -> dict:
    if hue is None:
        fill = {"wait": look.waiting, "U": look.update, "snapshot": look.background}[kind]
        return {"color": fill, "line": {"width": 1.5 if kind == "snapshot" else 0, "color": look.muted}}
    marker: dict = {"color": _fill(kind, hue), "line": {"width": 0.75, "color": look.background}}
    if kind in _PATTERN:
        marker["pattern"] = {
            "shape": _PATTERN[kind],
            "fillmode": "overlay",
            "fgcolor": "#fefefe",
            "fgopacity": 0.5,
            "size": 7,
            "solidity": 0.25,
        }
    return marker


def _fill(kind: str, hue: int) -> str:
    return (FORWARD if kind == "F" else BACKWARD)[hue]


def _ink(kind: str, hue: int | None) -> str | None:
    return None if hue is None else ink_on(_fill(kind, hue))


def axis_name(letter: str, panel: int) -> str:
    return letter + (str(panel + 1) if panel else "")


def layout_axis(letter: str, panel: int) -> str:
    return f"{letter}axis" + (str(panel + 1) if panel else "")


def frame(charts: int, head_px: int, look: Theme, title: str | None, options: dict) -> dict:
    """The layout that no update touches; `options` are kept in it for `update_gantt`."""
    layout: dict = {
        "meta": {"gantt": options},
        "autosize": True,
        "barmode": "overlay",
        "bargap": 0,
        "hovermode": "closest",
        "paper_bgcolor": look.background,
        "plot_bgcolor": look.background,
        "margin": {"l": 84, "r": 20, "t": head_px, "b": FOOT_PX},
        "font": {"family": look.font, "size": 15, "color": look.ink},
        "hoverlabel": {"align": "left", "font": {"size": 15, "family": look.font}},
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)",
            "font": {"size": 14},
            "itemsizing": "constant",
            "traceorder": "normal",
        },
    }
    if title:
        layout["title"] = {
            "text": title,
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 16},
            "font": {"size": 20},
        }
    for panel in range(charts):
        last = panel == charts - 1
        layout[layout_axis("x", panel)] = {
            "anchor": axis_name("y", panel),
            "gridcolor": look.grid,
            "zeroline": False,
            "ticks": "outside",
            "ticklen": 4,
            "tickcolor": look.grid,
            "tickfont": {"size": 14},
            "ticklabeloverflow": "allow",  # else every label is measured, a quarter of the time that a redraw takes
            "showticklabels": last,
            **({} if last else {"matches": axis_name("x", charts - 1)}),
            **({"title": {"text": _("time"), "standoff": 8, "font": {"size": 14}}} if last else {}),
        }
        layout[layout_axis("y", panel)] = {
            "anchor": axis_name("x", panel),
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
            "tickfont": {"size": 15},
            "ticklabelstandoff": 8,
            "ticklabeloverflow": "allow",
        }
    return layout
