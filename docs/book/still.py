"""Inside the kernel that runs a lesson for the book: whatever is shown becomes a picture that needs no kernel.

A chart is kept as plotly's JSON, which `static/book.js` draws, beside its content in words. Of a widget stays what it
says and draws, and a sentence that it moves in JupyterLab.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html import escape

import anywidget
import ipywidgets
import plotly.graph_objects as go
from ipywidgets.widgets.widget import _instances  # by model id; nothing public gives it

from docs.book.words import chart_details
from paci_lab.language import _
from paci_lab.show.chart import Chart, InPage
from paci_lab.show.front import Front
from paci_lab.show.gantt_figure import GanttFigure
from paci_lab.show.live import LiveView
from paci_lab.show.live_text import facts_html
from paci_lab.show.spoken import Spoken, details_html

__all__ = ["figure_html", "install", "widget_html"]

_IN_VIEW = 1000  # operations and waits: as many as the live view shows
_SPOKEN = 'class="paci-lab-spoken"'  # as `details_html` marks a chart in words


def install() -> None:
    """Have this kernel show figures and widgets as HTML that stands by itself."""
    from IPython import get_ipython
    from IPython.display import HTML, display

    formatter = get_ipython().display_formatter
    # IPython asks this one first, and plotly answers with a renderer that a page of its own would need.
    formatter.ipython_display_formatter.for_type(go.Figure, lambda figure: display(HTML(figure_html(figure))))
    formatter.mimebundle_formatter.for_type(LiveView, lambda view, **options: _shown(_live(view)))
    for kind in (ipywidgets.Widget, anywidget.AnyWidget):  # each has its own
        kind._repr_mimebundle_ = lambda widget, **options: _shown(widget_html(widget))


def figure_html(figure: go.Figure) -> str:
    """A figure as data for the page's script, with its content in words: as its name, and folded away under it."""
    details = figure.in_words() if isinstance(figure, GanttFigure) else ""
    details = details or chart_details(figure)
    return _picture(figure, " ".join(re.findall("<p>(.*?)</p>", details))) + details


def widget_html(widget: ipywidgets.Widget) -> str:
    """What a widget says and draws, and that it moves in JupyterLab."""
    for part in _parts(widget):
        if isinstance(part, Front):
            part.reading = True  # a view puts its charts into words when somebody reads them
    still = "".join(map(_told, _parts(widget)))
    if _SPOKEN not in still:
        still += "".join(chart_details(go.Figure(part)) for part in _parts(widget) if isinstance(part, Chart))
    moves = _("This is a still picture: in JupyterLab its fields, buttons and sliders work.")
    absent = _("This view needs JupyterLab, and stands there in this place.")
    return _framed(still, moves if still else absent)


def _parts(widget: ipywidgets.Widget) -> Iterator[ipywidgets.Widget]:
    """The widgets of a view from top to bottom, what only stands in the page followed to what it shows."""
    if isinstance(widget, InPage) and widget.of in _instances:
        yield _instances[widget.of]
    elif isinstance(widget, ipywidgets.Box):
        for child in widget.children:
            yield from _parts(child)
    else:
        yield widget


def _told(widget: ipywidgets.Widget) -> str:
    if isinstance(widget, Chart):
        return _picture(go.Figure(widget), escape(widget.spoken))
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
    details = details_html([Spoken(trace, None, (start / 1e6, stop / 1e6), 0)])
    picture = _picture(go.Figure(view.figure), " ".join(re.findall("<p>(.*?)</p>", details)))
    moves = _("In JupyterLab this view moves while the run goes on, and plays it again at any speed.")
    return _framed(facts + picture + details, moves)


def _picture(figure: go.Figure, label: str) -> str:
    """The place of a figure; `label` is what it shows in words, escaped already."""
    data = figure.to_json().replace("<", "\\u003c")  # or a text in it could end the script element
    return (
        f'<figure class="paci-figure"><div class="paci-scroll"><div class="paci-plot" role="img" '
        f'aria-label="{label}" style="min-height:{figure.layout.height or 450}px"></div></div>'
        f'<script type="application/json">{data}</script></figure>'
    )


def _framed(html: str, note: str) -> str:
    return f'<div class="paci-still">{html}<p class="paci-moves">{escape(note)}</p></div>'


def _shown(html: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": ""}
