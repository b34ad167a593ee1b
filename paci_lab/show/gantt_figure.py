"""The figure that `gantt` returns: plotly's own, followed by the same in words wherever it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paci_lab.language import _
from paci_lab.show.page_figure import PageFigure
from paci_lab.show.spoken import Spoken, details_html

if TYPE_CHECKING:
    from paci_lab.show.gantt_content import View

__all__ = ["GanttFigure"]


class GanttFigure(PageFigure):
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
