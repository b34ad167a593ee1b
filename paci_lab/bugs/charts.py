"""The charts of a loop beside its reference: loss and gradient norm by update, and a Gantt chart of its operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from paci_lab.bugs.seen import Seen
from paci_lab.language import _, direction
from paci_lab.show.gantt import gantt, gantt_pair
from paci_lab.show.notebook import html_table
from paci_lab.show.page_figure import PageFigure
from paci_lab.show.palette import theme_named
from paci_lab.trace import Trace

__all__ = ["curves", "in_words", "operations"]

_TALLEST = {"loss": 1.6, "norm": 10.0}
"""What goes beyond the reference's largest value by more than this leaves the chart, so that the rest can be read."""


def curves(seen: Seen, reference: Seen, *, theme: str = "light") -> go.Figure:
    """Loss after each update on the left, length of each update's gradient on the right; two lines in each."""
    look = theme_named(theme)
    figure = PageFigure()
    axis = {
        "gridcolor": look.grid,
        "zeroline": False,
        "tickfont": {"size": 14},
        "ticks": "outside",
        "tickcolor": look.grid,
    }
    heading = {"standoff": 8, "font": {"size": 15}}
    kinds = (
        ("loss", "", _("loss after the update"), seen.losses, reference.losses),
        ("norm", "2", _("length of the gradient"), seen.norms, reference.norms),
    )
    for kind, place, words, mine, right in kinds:
        top = max(right) * _TALLEST[kind]
        lines = (
            (_("reference"), right, look.series[0], "dash", "square"),
            (_("this loop"), mine, look.series[1], "solid", "circle"),
        )
        for name, values, color, dash, symbol in lines:
            figure.add_scatter(
                x=list(range(len(values))),
                y=[value if math.isfinite(value) and value <= top else None for value in values],
                name=name,
                legendgroup=name,
                showlegend=kind == "loss",
                xaxis=f"x{place}",
                yaxis=f"y{place}",
                mode="lines+markers",
                line={"color": color, "width": 2.5, "dash": dash},
                marker={"color": color, "size": 8, "symbol": symbol},
                hovertemplate=f"<b>%{{fullData.name}}</b><br>{_('update')} %{{x}}: %{{y:.3f}}<extra></extra>",
            )
        inside = [value for value in (*mine, *right) if math.isfinite(value) and value <= top]
        figure.layout[f"xaxis{place}"] = {
            **axis,
            "domain": [0.56, 1] if place else [0, 0.44],
            "anchor": f"y{place}",
            "showgrid": False,
            "range": [-0.5, len(right) - 0.5],
            "dtick": 1 if len(right) < 8 else 5,
            "title": {"text": _("update"), **heading},
        }
        figure.layout[f"yaxis{place}"] = {
            **axis,
            "anchor": f"x{place}",
            "range": [0, 1.08 * max(inside)],
            "title": {"text": words, **heading},
        }
        if note := _note(mine, top):
            figure.add_annotation(
                text=note,
                x=0.5,
                xref=f"x{place} domain",
                y=0.97 if mine else 0.1,
                yref=f"y{place} domain",
                yanchor="top" if mine else "bottom",
                showarrow=False,
                font={"size": 15, "color": look.series[1]},
                bgcolor=look.background,
            )
    figure.update_layout(
        height=340,
        margin={"l": 72, "r": 20, "t": 44, "b": 60},
        paper_bgcolor=look.background,
        plot_bgcolor=look.background,
        font={"family": look.font, "size": 15, "color": look.ink},
        hoverlabel={"align": "left", "font": {"size": 15}},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
    )
    return figure


def _note(values: Sequence[float], top: float) -> str:
    if not values:
        return _("This loop makes no update.")
    gone = next((update for update, value in enumerate(values) if not value <= top), None)  # a NaN is not below either
    return "" if gone is None else _("This loop leaves the chart in update {update}.").format(update=gone)


def in_words(seen: Seen, reference: Seen) -> str:
    """What `curves` draws, as HTML: a table with a row per update, folded away."""
    headings = [
        _("update"),
        _("loss of this loop"),
        _("loss of the reference"),
        _("length of this loop's gradient"),
        _("length of the reference's gradient"),
    ]
    rows = []
    for update in range(len(reference.losses)):
        columns = (seen.losses, reference.losses, seen.norms, reference.norms)
        numbers = [f"{column[update]:.3g}" if update < len(column) else "–" for column in columns]
        rows.append([str(update), *numbers])
    summary = escape(_("Loss and gradient as a table"))
    return f'<details dir="{direction()}"><summary>{summary}</summary>{html_table(headings, rows)}</details>'


def operations(
    seen: Seen, reference: Seen | None = None, *, updates: int | None = None, theme: str = "light"
) -> go.Figure:
    """The Gantt chart of the first `updates`, with the reference's below it when that is given."""
    trace = seen.trace()
    between = None if updates is None else (0.0, _end_ms(trace, updates))
    if reference is None:
        return gantt(trace, theme=theme, between_ms=between)
    names = (_("this loop"), _("reference"))
    return gantt_pair(trace, reference.trace(), names=names, theme=theme, between_ms=between)


def _end_ms(trace: Trace, updates: int) -> float:
    """When every stage has made so many updates, or else all ends."""
    ends = [int(event.end_ns) for event in trace if event.op == "U" and event.microbatch == updates - 1]
    end = max(ends) if len(ends) == trace.stages else int(trace.end_ns.max(initial=1))
    return (end - trace.begin_ns) / 1e6
