"""The figure that `gantt` returns: plotly's own, followed by the same in words wherever it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import plotly.io as pio

from paci_lab.language import _
from paci_lab.show.notebook import CONFIG
from paci_lab.show.spoken import Spoken, details_html

if TYPE_CHECKING:
    from paci_lab.show.gantt_content import View

__all__ = ["GanttFigure"]


class GanttFigure(go.Figure):
    """A plotly figure that knows which traces it draws; a copy of it does not, and is shown without words."""

    _charts: tuple[Spoken, ...] = ()

    def draws(self, view: View) -> None:
        """Remember what is drawn, to put it into words when that is asked for."""
        charts = []
        for trace, name, predicted in zip(view.traces, view.names, view.predicted, strict=True):
            charts.append(Spoken(trace, name, view.between_ms, view.origin_ns))
            if predicted is not None:
                below = _("{name}, predicted").format(name=name) if name else _("predicted")
                charts.append(Spoken(predicted, below, view.between_ms))
        self._charts = tuple(charts)

    def in_words(self) -> str:
        """Summaries and tables of the charts as HTML, folded away; "" when it is not known what is drawn."""
        return details_html(self._charts) if self._charts else ""

    def _ipython_display_(self) -> None:
        """The last value of a cell: the chart, and under it an output of its own, for a page shows one kind of each."""
        from IPython.display import HTML, display

        if not (pio.renderers.render_on_display and pio.renderers.default):
            return super()._ipython_display_()
        pio.show(self, config=CONFIG)
        if words := self.in_words():
            display(HTML(words))
