"""Loss curves: validation loss against training time and against samples, side by side, with the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from paci_lab.language import _
from paci_lab.show.page_figure import PageFigure
from paci_lab.show.palette import theme_named

__all__ = ["loss_curves", "validation_points"]

_DASHES = ("solid", "dash", "dot")


def validation_points(rows: Sequence[Mapping[str, float]]) -> list[tuple[float, float, float]]:
    """(seconds of training time, tokens, validation loss) of the validation rows of a `metrics.jsonl`."""
    return [(row["time_s"], row["tokens"], row["val_loss"]) for row in rows if row.get("val_loss") is not None]


def loss_curves(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    *,
    target: float | None = None,
    theme: str = "light",
    title: str | None = None,
) -> go.Figure:
    """Two charts with one loss axis: what a second of training brings, and what a sample brings.

    A schedule that keeps its devices busy wins on the left; what its version gaps cost is seen on the right.

    Args:
        runs: rows of `metrics.jsonl` by name of the run; rows without a validation loss are passed over.
        target: validation loss to be reached, drawn as a line; a dot marks where each run first is there.
    """
    look = theme_named(theme)
    figure = PageFigure()
    for number, (name, rows) in enumerate(runs.items()):
        points = validation_points(rows)
        color, dash = look.series[number % len(look.series)], _DASHES[number // len(look.series) % len(_DASHES)]
        for axis, position, words in (("x", 0, _("after {time} s")), ("x2", 1, _("after {tokens} tokens"))):
            after = words.format(time="%{x:,.4~r}", tokens="%{x:,.4~r}") + "<extra></extra>"
            figure.add_scatter(
                x=[p[position] for p in points],
                y=[p[2] for p in points],
                name=name,
                legendgroup=name,
                showlegend=axis == "x",
                xaxis=axis,
                mode="lines",
                line={"color": color, "width": 2.5, "dash": dash},
                hovertemplate=f"<b>%{{fullData.name}}</b><br>{_('validation loss')} %{{y:.3f}}<br>{after}",
            )
            there = next((p for p in points if target is not None and p[2] <= target), None)
            if there is not None:
                figure.add_scatter(
                    x=[there[position]],
                    y=[there[2]],
                    legendgroup=name,
                    showlegend=False,
                    xaxis=axis,
                    mode="markers",
                    marker={"color": color, "size": 11, "line": {"color": look.background, "width": 2}},
                    name=name,
                    hovertemplate=f"{_('{name} reaches the target').format(name='<b>%{fullData.name}</b>')}<br>{after}",
                )
    axis = {
        "gridcolor": look.grid,
        "zeroline": False,
        "rangemode": "tozero",
        "tickfont": {"size": 14},
        "showgrid": False,
        "ticks": "outside",
        "tickcolor": look.grid,
    }
    heading = {"standoff": 8, "font": {"size": 15}}
    figure.update_layout(
        height=440 + (40 if title else 0),
        margin={"l": 72, "r": 20, "t": 52 + (40 if title else 0), "b": 64},
        paper_bgcolor=look.background,
        plot_bgcolor=look.background,
        hoverlabel={"align": "left", "font": {"size": 15}},
        font={"family": look.font, "size": 15, "color": look.ink},
        xaxis={**axis, "domain": [0, 0.48], "title": {"text": _("training time (s)"), **heading}},
        xaxis2={**axis, "domain": [0.52, 1], "anchor": "y", "title": {"text": _("tokens trained on"), **heading}},
        yaxis={
            "gridcolor": look.grid,
            "zeroline": False,
            "tickfont": {"size": 14},
            "title": {"text": _("validation loss"), **heading},
        },
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 15},
            "bgcolor": "rgba(0,0,0,0)",
        },
    )
    if title:
        figure.update_layout(
            title={
                "text": title,
                "x": 0,
                "xref": "paper",
                "y": 1,
                "yanchor": "top",
                "pad": {"t": 16},
                "font": {"size": 20},
            }
        )
    if target is not None:
        for axis in ("x domain", "x2 domain"):
            figure.add_shape(
                type="line",
                xref=axis,
                x0=0,
                x1=1,
                yref="y",
                y0=target,
                y1=target,
                layer="below",
                line={"color": look.muted, "width": 1.5, "dash": "dot"},
            )
        figure.add_annotation(
            text=_("target {loss}").format(loss=f"{target:g}"),
            x=0.995,
            xref="x domain",
            y=target,
            yref="y",
            showarrow=False,
            xanchor="right",
            yanchor="bottom",
            font={"size": 14, "color": look.muted},
        )
    return figure
