"""What a chart shows, in words: for charts that are no Gantt charts, from their own data."""

from __future__ import annotations

from html import escape
from typing import Any

import plotly.graph_objects as go

from paci_lab.language import _

__all__ = ["chart_details"]


def _in_words(figure: go.Figure) -> str:
    """One sentence: what is drawn against what, and the names of the lines."""
    title = figure.layout.title.text
    axes = dict.fromkeys(f"{_axis(figure, line, 'y')} / {_axis(figure, line, 'x')}" for line in figure.data)
    names = dict.fromkeys(line.name for line in figure.data if line.name)
    parts = [title or "", _("A chart of {axes}.").format(axes="; ".join(axes))]
    if names:
        parts.append(_("It shows: {names}.").format(names=", ".join(names)))
    return " ".join(filter(None, parts))


def chart_details(figure: go.Figure) -> str:
    """A table with one row a line of the chart, folded away: where it begins and ends, and its lowest value."""
    headings = [_("line"), _("across"), _("up"), _("points"), _("begins at"), _("ends at"), _("lowest")]
    rows = []
    for line in figure.data:
        points = [
            (x, y) for x, y in zip(_values(line.x), _values(line.y), strict=False) if x is not None and y is not None
        ]
        if not points:
            continue
        numbers = [y for _x, y in points if isinstance(y, int | float)]
        across, up = (_axis(figure, line, axis) for axis in "xy")
        ends = [f"{_say(x)}: {_say(y)}" for x, y in (points[0], points[-1])]
        rows.append([line.name or "", across, up, str(len(points)), *ends, _say(min(numbers)) if numbers else ""])
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<details class="paci-lab-spoken"><summary>{escape(_("The chart in words"))}</summary>'
        f"<p>{escape(_in_words(figure))}</p>"
        f'<div tabindex="0" role="region" aria-label="{escape(_("Table of lines"))}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _values(sequence: Any) -> list[Any]:
    """A chart's values as Python's own; those that are no numbers (nan) as None."""
    values = [] if sequence is None else [v.item() if hasattr(v, "item") else v for v in sequence]
    return [None if value != value else value for value in values]


def _axis(figure: go.Figure, line: Any, axis: str) -> str:
    name = getattr(line, f"{axis}axis", None) or axis
    title = figure.layout[f"{axis}axis{name[1:]}"].title.text
    if not title and axis == "y":  # charts side by side share an axis that only the first names
        title = figure.layout.yaxis.title.text
    return (title or axis).replace("<br>", " ")


def _say(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
