"""The pieces of a Gantt figure: what is fixed when it is made, and the content that an update overwrites."""

from __future__ import annotations

import dataclasses

import numpy as np

from paci_lab.show.bars import CYCLE, DRAWN, HOVER, Rows, bar_arrays, held_steps, version_spans, working_share
from paci_lab.show.palette import BACKWARD, FORWARD, Theme, colorscale, ink_on
from paci_lab.trace import COMPUTE, OPS, Trace

__all__ = ["View", "content", "fixed_traces", "frame", "legend_traces"]

_PREDICTED = ("F", "B", "I", "W", "U")
_LEGEND = {"F": "forward", "B": "backward", "I": "backward: input gradient", "W": "backward: weight gradient",
           "U": "optimizer update", "wait": "waiting", "snapshot": "saving weights"}
_PATTERN = {"I": "/", "W": "."}
_NEUTRAL = {"F": "#b9c0cb", "B": "#5f6a7a", "I": "#5f6a7a", "W": "#5f6a7a"}  # the lightness of a kind without its hue
_RAIL = 0.13  # height of the line that shows waiting, as a share of the height of work
_ROW_PX, _HEAD_PX, _TITLE_PX, _BETWEEN_PX, _FOOT_PX = 34, 68, 40, 46, 62
_NUMBERED = 4000  # with more bars than this no number fits on any screen, and texts only cost time


@dataclasses.dataclass
class View:
    """What is drawn: lists have one entry per chart of the figure (one, or two over one another)."""

    traces: list[Trace]
    names: list[str | None]
    predicted: list[Trace | None]
    between_ms: tuple[float, float] | None
    origin_ns: int | None
    titled: bool

    @property
    def head_px(self) -> int:
        """Height above the first chart: title, legend and the line that says what is shown."""
        return _HEAD_PX + (_TITLE_PX if self.titled else 0)

    def spans(self) -> list[tuple[int, int, int]]:
        """(origin, start, end) in nanoseconds of every chart; all show the same stretch of time."""
        origins = [trace.begin_ns if self.origin_ns is None else self.origin_ns for trace in self.traces]
        if self.between_ms is not None:
            first, last = (round(ms * 1e6) for ms in self.between_ms)
        else:
            ends = [int(t.end_ns.max(initial=o)) - o for t, o in zip(self.traces, origins, strict=True)]
            ends += [p.makespan_ns for p in self.predicted if p is not None]
            first, last = 0, max(ends)
        return [(origin, origin + first, origin + max(last, first + 1)) for origin in origins]


def content(view: View, rows: Rows, look: Theme) -> tuple[list[dict], dict]:
    """Arrays for every trace of `fixed_traces`, chart by chart, and the layout that depends on them."""
    spans = view.spans()
    origin, start, end = spans[0]
    unit_ns, unit = (1e9, "s") if end - start >= 20_000_000_000 else (1e6, "ms")
    slots: list[dict] = []
    for trace, predicted, span in zip(view.traces, view.predicted, spans, strict=True):
        slots += _chart(trace, predicted, span, unit_ns, rows)
    stages = [max(trace.stages, 1) for trace in view.traces]
    body = sum(stages) * _ROW_PX * rows.weight + (len(stages) - 1) * _BETWEEN_PX
    layout: dict = {"height": round(view.head_px + body + _FOOT_PX), "legend.y": 1 + 28 / body, "annotations": []}
    top = 1.0
    for panel, (trace, name, count, (_, first, last)) in enumerate(zip(view.traces, view.names, stages, spans, strict=True)):
        bottom = max(0.0, top - count * _ROW_PX * rows.weight / body)
        axis = _layout_axis("y", panel)
        layout[f"{axis}.domain"] = [bottom, top]
        layout[f"{axis}.range"] = [count - 0.5, -0.5]
        layout[f"{axis}.tickvals"] = list(range(count))
        layout[f"{axis}.ticktext"] = _row_names(trace, count, first, last, rows)
        layout[f"{_layout_axis('x', panel)}.range"] = [(start - origin) / unit_ns, (end - origin) / unit_ns]
        shown_to = min(last, int(trace.end_ns.max(initial=first)))  # a chart of a pair may end before the other
        heading = f"{trace.source} · stages work {100 * working_share(trace, first, shown_to):.1f} % of the time shown"
        if "predicted" in rows.parts and view.predicted[panel] is not None:
            heading += f" · below each row: {view.predicted[panel].source}"
        layout["annotations"].append({
            "text": f"<b>{name}</b>  {heading}" if name else heading[:1].upper() + heading[1:], "showarrow": False,
            "xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom", "yshift": 4,
            "align": "left", "font": {"size": 15, "color": look.ink if name else look.muted}})
        top = bottom - _BETWEEN_PX / body
    layout[f"{_layout_axis('x', len(stages) - 1)}.title.text"] = f"time ({unit})"
    return slots, layout


def _row_names(trace: Trace, count: int, start: int, end: int, rows: Rows) -> list[str]:
    if "in-flight" not in rows.parts or not trace.stages:
        return [f"stage {stage}" for stage in range(count)]
    held = [int(steps.max(initial=0)) for _, steps in held_steps(trace, start, end)]
    return [f"stage {stage}<br><span style='font-size:12px'>holds {most}</span>" for stage, most in enumerate(held)]


def _chart(trace: Trace, predicted: Trace | None, span: tuple[int, int, int], unit_ns: float, rows: Rows) -> list[dict]:
    origin, start, end = span
    slots = _bars(trace, trace, span, unit_ns, rows.band("work")[0], DRAWN)
    if "predicted" in rows.parts:
        if predicted is None:
            predicted = Trace([], source="", stages=trace.stages)
        shift = predicted.begin_ns - origin
        moved = (origin + shift, start + shift, end + shift)
        slots += _bars(predicted, predicted, moved, unit_ns, rows.band("predicted")[0], _PREDICTED)
    if "in-flight" in rows.parts:
        slots.append(_in_flight(trace, span, unit_ns, rows))
    if "version" in rows.parts:
        slots.append(_versions(trace, span, unit_ns, rows))
    return slots


def _bars(trace: Trace, context: Trace, span: tuple[int, int, int], unit_ns: float, shift: float, kinds: tuple) -> list[dict]:
    origin, start, end = span
    part = trace.between(start, end)
    columns = bar_arrays(part, context, origin_ns=origin, unit_ns=unit_ns)
    slots = []
    for kind in kinds:
        c = columns[kind]
        slot = {"base": c["start"], "x": c["length"], "y": c["stage"] + shift, "customdata": c["words"]}
        if kind in "FBIW":
            slot["marker.color"] = c["color"]
            slot["texttemplate"] = "%{customdata[1]}" if kinds is DRAWN and len(part) <= _NUMBERED else ""
        slots.append(slot)
    return slots


def _in_flight(trace: Trace, span: tuple[int, int, int], unit_ns: float, rows: Rows) -> dict:
    origin, start, end = span
    centre, height = rows.band("in-flight")
    steps = held_steps(trace, start, end)
    most = max([int(held.max(initial=0)) for _, held in steps], default=0) or 1
    x, y, words = [], [], []
    for stage, (times, held) in enumerate(steps):
        base = stage + centre + height / 2
        at = (times - origin) / unit_ns
        x.append(np.concatenate([at[:1], at, at[-1:], [np.nan]]))
        y.append(np.concatenate([[base], base - height * held / most, [base, np.nan]]))
        words.append(np.stack([np.full(len(held) + 3, stage), np.concatenate([[0], held, [0, 0]])], axis=1).astype(object))
    return {"x": np.concatenate(x), "y": np.concatenate(y), "customdata": np.concatenate(words)}


def _versions(trace: Trace, span: tuple[int, int, int], unit_ns: float, rows: Rows) -> dict:
    origin, start, end = span
    spans = version_spans(trace, start, end)
    return {"base": (spans["start_ns"] - origin) / unit_ns, "x": (spans["end_ns"] - spans["start_ns"]) / unit_ns,
            "y": spans["stage"] + rows.band("version")[0], "marker.color": spans["version"] % 2,
            "customdata": np.stack([spans["stage"], spans["version"]], axis=1).astype(object)}


# -- what stays ---------------------------------------------------------------------------------------------------
def fixed_traces(panel: int, rows: Rows, look: Theme) -> list[dict]:
    """One trace per kind of bar and per strip, without data, in the order of `content`."""
    axes = {"xaxis": _axis("x", panel), "yaxis": _axis("y", panel), "showlegend": False}
    bars = {"type": "bar", "orientation": "h", **axes, "insidetextanchor": "middle", "textangle": 0, "textposition": "inside"}
    height = rows.band("work")[1]
    data = [{**bars, "name": kind, "legendgroup": kind, "width": height * (_RAIL if kind == "wait" else 1.0),
             "marker": _marker(kind, look), "hovertemplate": HOVER[kind],
             "insidetextfont": {"color": _ink(kind), "size": 14}} for kind in DRAWN]
    if "predicted" in rows.parts:
        data += [{**bars, "name": f"predicted {kind}", "legendgroup": kind, "width": rows.band("predicted")[1],
                  "marker": _marker(kind, look), "opacity": 0.6, "hovertemplate": "<i>predicted</i><br>" + HOVER[kind]}
                 for kind in _PREDICTED]
    if "in-flight" in rows.parts:
        data.append({"type": "scatter", "mode": "lines", **axes, "name": "in-flight", "fill": "toself", "hoveron": "points",
                     "line": {"shape": "hv", "width": 1.5, "color": look.muted}, "fillcolor": look.strip[0],
                     "hovertemplate": "stage %{customdata[0]} holds %{customdata[1]} micro-batches<extra></extra>"})
    if "version" in rows.parts:
        data.append({**bars, "name": "version", "width": rows.band("version")[1],
                     "marker": {"colorscale": colorscale(look.strip), "cmin": -0.5, "cmax": 1.5, "line": {"width": 0}},
                     "insidetextfont": {"color": look.ink, "size": 14}, "texttemplate": "v%{customdata[1]}",
                     "hovertemplate": "stage %{customdata[0]}: weight version %{customdata[1]}<extra></extra>"})
    return data


def legend_traces(traces: list[Trace], look: Theme) -> list[dict]:
    """Empty traces whose swatches show the lightness of each kind without a hue, for the kinds that occur."""
    seen = {"wait" if OPS[code].startswith("wait") else OPS[code] for trace in traces for code in np.unique(trace.op)}
    entries = []
    for kind, words in _LEGEND.items():
        if kind in seen or kind in ("F", "B", "wait"):  # a live chart starts empty
            marker = {**_marker(kind, look), **({"color": _NEUTRAL[kind]} if kind in _NEUTRAL else {})}
            entries.append({"type": "bar", "x": [None], "y": [None], "name": words, "legendgroup": kind, "marker": marker,
                            "hoverinfo": "skip", "showlegend": True})
    return entries


def _marker(kind: str, look: Theme) -> dict:
    if kind not in COMPUTE or kind == "U":
        fill = {"wait": look.waiting, "U": look.update, "snapshot": look.background}[kind]
        return {"color": fill, "line": {"width": 1.5 if kind == "snapshot" else 0, "color": look.muted}}
    marker = {"colorscale": colorscale(FORWARD if kind == "F" else BACKWARD), "cmin": -0.5, "cmax": CYCLE - 0.5,
              "line": {"width": 0.75, "color": look.background}}
    if kind in _PATTERN:
        marker["pattern"] = {"shape": _PATTERN[kind], "fillmode": "overlay", "fgcolor": "#fefefe", "fgopacity": 0.5,
                             "size": 7, "solidity": 0.25}
    return marker


def _ink(kind: str) -> str:
    return ink_on((FORWARD if kind == "F" else BACKWARD)[0])


def _axis(letter: str, panel: int) -> str:
    return letter + (str(panel + 1) if panel else "")


def _layout_axis(letter: str, panel: int) -> str:
    return f"{letter}axis" + (str(panel + 1) if panel else "")


def frame(view: View, look: Theme, title: str | None, options: dict) -> dict:
    """The layout that no update touches; `options` are kept in it for `update_gantt`."""
    charts = len(view.traces)
    layout: dict = {
        "meta": {"gantt": options}, "barmode": "overlay", "bargap": 0, "hovermode": "closest",
        "paper_bgcolor": look.background, "plot_bgcolor": look.background, "margin": {"l": 84, "r": 20, "t": view.head_px, "b": _FOOT_PX},
        "font": {"family": look.font, "size": 15, "color": look.ink},
        "hoverlabel": {"align": "left", "font": {"size": 15, "family": look.font}},
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)",
                   "font": {"size": 14}, "itemsizing": "constant", "traceorder": "normal"},
    }
    if title:
        layout["title"] = {"text": title, "x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yref": "container",
                           "yanchor": "top", "pad": {"t": 16}, "font": {"size": 20}}
    for panel in range(charts):
        last = panel == charts - 1
        layout[_layout_axis("x", panel)] = {
            "anchor": _axis("y", panel), "gridcolor": look.grid, "zeroline": False, "ticks": "outside", "ticklen": 4,
            "tickcolor": look.grid, "tickfont": {"size": 14}, "showticklabels": last,
            **({} if last else {"matches": _axis("x", charts - 1)}), **({"title": {"text": "time", "standoff": 8, "font": {"size": 14}}} if last else {})}
        layout[_layout_axis("y", panel)] = {"anchor": _axis("x", panel), "showgrid": False, "zeroline": False, "fixedrange": True,
                                            "tickfont": {"size": 15}, "ticklabelstandoff": 8}
    return layout
