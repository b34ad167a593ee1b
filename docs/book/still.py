"""Inside the kernel that runs a lesson for the book: whatever is shown becomes a picture that needs no kernel.

A chart is kept as plotly's JSON, which `static/book.js` draws, beside its content in words. Of a widget stays what it
says and draws, and a sentence that it moves in JupyterLab.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import anywidget
import ipywidgets
import plotly.graph_objects as go
from ipywidgets.widgets.widget import _instances  # by model id; nothing public gives it

from docs.book.words import chart_details, chart_in_words
from paci_lab.language import _
from paci_lab.show import gantt
from paci_lab.show.chart import Chart, InPage
from paci_lab.show.live import LiveView
from paci_lab.show.live_text import facts_html
from paci_lab.show.spoken import Spoken, details_html, summary
from paci_lab.trace import Trace

__all__ = ["figure_html", "install", "widget_html"]

_IN_VIEW = 1000  # operations and waits: as many as the live view shows
_told: list[Sequence[Spoken]] = []


def install() -> None:
    """Have this kernel show figures and widgets as HTML that stands by itself; call it before any import."""
    from IPython import get_ipython
    from IPython.display import HTML, display

    for name in ("gantt", "gantt_pair"):
        setattr(gantt, name, _remembering(getattr(gantt, name)))
    formatter = get_ipython().display_formatter
    # IPython asks this one first, and plotly answers with a renderer that a page of its own would need.
    formatter.ipython_display_formatter.for_type(go.Figure, lambda figure: display(HTML(figure_html(figure))))
    formatter.mimebundle_formatter.for_type(LiveView, lambda view, **options: _shown(_live(view)))
    for kind in (ipywidgets.Widget, anywidget.AnyWidget):  # each has its own
        kind._repr_mimebundle_ = lambda widget, **options: _shown(widget_html(widget))


def figure_html(figure: go.Figure, charts: Sequence[Spoken] | None = None) -> str:
    """A figure as data for the page's script, with a name for it and its content as a table.

    Args:
        charts: the Gantt charts in it; those that it was made with when None.
    """
    if charts is None:
        number = (figure.layout.meta or {}).get("book")
        charts = _told[number] if number is not None else ()
    words = " ".join(summary(**chart._asdict()) for chart in charts) or chart_in_words(figure)
    details = details_html(charts) if charts else chart_details(figure)
    data = figure.to_json().replace("<", "\\u003c")  # or a text in it could end the script element
    height = figure.layout.height or 450
    return (
        f'<figure class="paci-figure"><div class="paci-scroll"><div class="paci-plot" role="img" '
        f'aria-label="{escape(words)}" style="min-height:{height}px"></div></div>'
        f'<script type="application/json">{data}</script>{details}</figure>'
    )


def widget_html(widget: ipywidgets.Widget) -> str:
    """What a widget says and draws, and that it moves in JupyterLab."""
    still = _inside(widget)
    moves = _("In JupyterLab this view moves, and its buttons and sliders work.")
    absent = _("This view needs JupyterLab, and stands there in this place.")
    return f'<div class="paci-still">{still}<p class="paci-moves">{escape(moves if still else absent)}</p></div>'


def _inside(widget: ipywidgets.Widget) -> str:
    if isinstance(widget, InPage):
        held = _instances.get(widget.of)
        return figure_html(go.Figure(held)) if isinstance(held, Chart) else ""
    if isinstance(widget, ipywidgets.Box):
        return "".join(map(_inside, widget.children))
    if isinstance(widget, ipywidgets.HTML):
        return widget.value
    return getattr(widget, "html", "")  # tables that can be clicked on


def _live(view: LiveView) -> str:
    """The last moments of a run, as the live view shows them when it has got there."""
    view.close()
    feed = view.feed
    trace, start, stop = feed.window(feed.end_ns, _IN_VIEW)
    losses = feed.losses(math.inf)
    view.chart.rest(trace, (start / 1e6, stop / 1e6))
    view.chart.draw_loss(losses)
    facts = facts_html(trace, start, stop, feed.tokens_per_second(feed.end_ns / 1e9), losses)
    picture = figure_html(go.Figure(view.figure), [Spoken(trace)])
    moves = _("In JupyterLab this view moves while the run goes on, and plays it again at any speed.")
    return f'<div class="paci-still">{facts}{picture}<p class="paci-moves">{escape(moves)}</p></div>'


def _remembering(make: Callable[..., go.Figure]) -> Callable[..., go.Figure]:
    """`make` whose figures know the traces that they show: they stand in words beside the chart."""

    @functools.wraps(make)
    def made(*traces: Trace, **options: Any) -> go.Figure:
        figure = make(*traces, **options)
        figure.layout.meta = {**figure.layout.meta, "book": len(_told)}
        part = {name: options.get(name) for name in ("between_ms", "origin_ns")}
        names = options.get("names") or [None] * len(traces)
        _told.append([Spoken(trace, name, **part) for trace, name in zip(traces, names, strict=True)])
        return figure

    return made


def _shown(html: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": ""}
