"""Gantt charts of traces: hue tells the micro-batch, lightness the kind of work, a thin rail that a stage waits.

One bar trace per kind of operation whatever the length of the run; `update_gantt` overwrites their arrays in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from paci_lab.errors import InputError
from paci_lab.show.bars import STRIPS, Rows
from paci_lab.show.gantt_content import ROW_PX, View, content
from paci_lab.show.gantt_figure import GanttFigure
from paci_lab.show.gantt_fixed import fixed_traces, frame, legend_traces
from paci_lab.show.palette import swap, theme_named
from paci_lab.trace import Trace

__all__ = ["STRIPS", "gantt", "gantt_pair", "new_content", "retheme", "update_gantt"]


def gantt(
    trace: Trace,
    *,
    theme: str = "light",
    predicted: Trace | None = None,
    strips: Sequence[str] = (),
    title: str | None = None,
    between_ms: tuple[float, float] | None = None,
    origin_ns: int | None = None,
    below_px: int = 0,
    row_px: float = ROW_PX,
) -> go.Figure:
    """The Gantt chart of `trace`, stage 0 at the top.

    Args:
        trace: from any source; its source is printed above the chart, for a chart must say what it shows.
        theme: "light" or "dark"; a light chart that ends a cell turns dark with JupyterLab's page.
        predicted: a trace (simulated, say) drawn smaller under every stage's row; both begin at the same moment.
        strips: any of `STRIPS`: micro-batches held, and the weight version, under every stage's row.
        title: what the chart is about.
        between_ms: draw only this part, in milliseconds from `origin_ns`.
        origin_ns: zero of the time axis; the start of the first work when not given.
        below_px: height left free at the foot of the figure for a chart that the caller adds.
        row_px: height of a row that shows work alone; `layout.meta` of the figure has it, for charts that change it.
    """
    return _build(
        theme, strips, title, View([trace], [None], [predicted], between_ms, origin_ns, bool(title), below_px, row_px)
    )


def gantt_pair(
    above: Trace,
    below: Trace,
    *,
    names: tuple[str, str],
    theme: str = "light",
    predicted: tuple[Trace | None, Trace | None] = (None, None),
    strips: Sequence[str] = (),
    title: str | None = None,
    between_ms: tuple[float, float] | None = None,
) -> go.Figure:
    """Two traces, one over the other on one time axis; `names` head the two charts, the rest is as in `gantt`."""
    return _build(
        theme, strips, title, View([above, below], list(names), list(predicted), between_ms, None, bool(title))
    )


def update_gantt(
    figure: go.Figure,
    *traces: Trace,
    predicted: Sequence[Trace | None] | None = None,
    names: Sequence[str] | None = None,
    between_ms: tuple[float, float] | None = None,
    origin_ns: int | None = None,
) -> None:
    """Overwrite the arrays of a figure made by `gantt` (one trace) or `gantt_pair` (two) in place.

    Works on a plain figure and on a `FigureWidget`, which then sends its changes as one batch. Theme, strips and title
    stay; the number of stages may change. `names` renames the charts of a pair.
    """
    view = _view(figure, traces, predicted, names, between_ms, origin_ns)
    slots, layout = _content(figure, view)
    with figure.batch_update():
        _assign(figure, slots, layout)
    if isinstance(figure, GanttFigure):
        figure.draws(view)


def new_content(
    figure: go.Figure,
    *traces: Trace,
    predicted: Sequence[Trace | None] | None = None,
    names: Sequence[str] | None = None,
    between_ms: tuple[float, float] | None = None,
    origin_ns: int | None = None,
) -> tuple[list[dict], dict]:
    """What `update_gantt` would write into `figure`: arrays for its traces, and the layout that depends on them."""
    return _content(figure, _view(figure, traces, predicted, names, between_ms, origin_ns))


def _view(
    figure: go.Figure,
    traces: Sequence[Trace],
    predicted: Sequence[Trace | None] | None,
    names: Sequence[str] | None,
    between_ms: tuple[float, float] | None,
    origin_ns: int | None,
) -> View:
    options = figure.layout.meta["gantt"]
    if len(traces) != len(options["names"]):
        raise InputError(
            "traces", len(traces), f"{len(options['names'])}, as many as the figure has charts", "pass one each"
        )
    return View(
        list(traces),
        list(names or options["names"]),
        list(predicted or [None] * len(traces)),
        between_ms,
        origin_ns,
        bool(figure.layout.title.text),
        options["below_px"],
        options["row_px"],
    )


def _content(figure: go.Figure, view: View) -> tuple[list[dict], dict]:
    options = figure.layout.meta["gantt"]
    return content(view, Rows(tuple(options["parts"])), theme_named(options["theme"]))


def retheme(figure: go.Figure, theme: str) -> None:
    """Give a figure the colours of another theme, traces that others added included; "light" or "dark".

    The version strip, which depends on the data, follows with the next update.
    """
    options = figure.layout.meta["gantt"]
    if options["theme"] == theme_named(theme).name:
        return
    colors = swap() if theme == "dark" else {dark: light for light, dark in swap().items()}
    with figure.batch_update():
        for part in (*figure.data, figure.layout):
            for path, color in _colors(part.to_plotly_json(), colors):
                part[path] = color
        figure.layout.meta = {"gantt": {**options, "theme": theme}}


def _colors(part: dict, colors: dict[str, str], above: str = "") -> Iterator[tuple[str, str]]:
    """(path, new colour) of every colour below `part` that has a counterpart."""
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _colors(value, colors, f"{above}{key}.")
        elif isinstance(value, list | tuple) and len(value) and isinstance(value[0], dict):  # headings, lines drawn
            for number, one in enumerate(value):
                yield from _colors(one, colors, f"{above}{key}[{number}].")
        elif isinstance(value, str) and value in colors:
            yield above + key, colors[value]


def _build(theme: str, strips: Sequence[str], title: str | None, view: View) -> GanttFigure:
    for strip in strips:
        if strip not in STRIPS:
            raise InputError("strips", strip, " | ".join(STRIPS), "name one of these")
    predicted = ["predicted"] if any(trace is not None for trace in view.predicted) else []
    rows = Rows(("work", *predicted, *(strip for strip in STRIPS if strip in strips)))
    look = theme_named(theme)
    slots, layout = content(view, rows, look)
    options = {
        "names": view.names,
        "parts": list(rows.parts),
        "theme": theme,
        "below_px": view.below_px,
        "row_px": view.row_px,
    }
    fixed = [trace for panel in range(len(view.traces)) for trace in fixed_traces(panel, rows, look)]
    figure = GanttFigure(
        {"data": fixed + legend_traces(look), "layout": frame(len(view.traces), view.head_px, look, title, options)}
    )
    _assign(figure, slots, layout)
    figure.draws(view)
    return figure


def _assign(figure: go.Figure, slots: list[dict], layout: dict) -> None:
    for drawn, slot in zip(figure.data, slots, strict=False):  # others may have added traces of their own
        if "base" in slot and not len(slot["y"]) and (drawn.y is None or not len(drawn.y)):
            continue  # most kinds and hues are absent from most charts
        for path, value in slot.items():
            drawn[path] = value
    for path, value in layout.items():
        figure.layout[path] = value
