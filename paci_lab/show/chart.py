"""Widgets that arrive whole in a notebook page, however slow the page is.

anywidget gives a widget's code two seconds to load and then throws away, for good, every message to that widget
(anywidget 0.9 to 0.11: "Failed to initialize model"). Plotly's 5 MB take longer than that on a busy machine, and its
figures, which are empty when they are announced and filled by messages, stayed empty. So here whatever changes is held
by plain widgets, which need no code of their own; anywidget only shows them, and nothing is ever sent to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets
import plotly
import plotly.graph_objects as go
import traitlets
from plotly.serializers import custom_serializers

from paci_lab.show.notebook import CONFIG, need_packages

need_packages()
import anywidget  # noqa: E402

__all__ = ["Chart", "InPage"]


class InPage(anywidget.AnyWidget):
    """Shows in the page what another widget holds; a subclass brings the code for it.

    Attributes:
        of: the model id of that widget.
    """

    of = traitlets.Unicode().tag(sync=True)


class _Code(ipywidgets.Widget):
    source = traitlets.Unicode().tag(sync=True)
    version = traitlets.Unicode(plotly.__version__).tag(sync=True)


class _ChartInPage(InPage):
    _esm = Path(__file__).with_name("chart.js")
    code = traitlets.Unicode().tag(sync=True)


class Chart(go.FigureWidget):
    """A `FigureWidget` that a page gets whole, at first and whenever it asks; to be put into a view as its `in_page`.

    Attributes:
        in_page: the widget that shows it.
        spoken: what the picture shows, in a sentence or two for those who cannot see it.
    """

    _model_name = traitlets.Unicode("WidgetModel").tag(sync=True)
    _model_module = traitlets.Unicode("@jupyter-widgets/base").tag(sync=True)
    _model_module_version = traitlets.Unicode("2.0.0").tag(sync=True)
    _view_name = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    _view_module = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    spoken = traitlets.Unicode().tag(sync=True)
    _esm = ""
    _whole = False
    _code: ClassVar[_Code | None] = None  # one for all charts of a kernel

    def __init__(self, figure: go.Figure) -> None:
        super().__init__(figure)
        self._config = CONFIG
        self._whole = True
        self.open()
        if Chart._code is None or Chart._code.comm is None:  # none yet, or closed by `Widget.close_all`
            Chart._code = _Code(source=str(go.FigureWidget._esm))
        self._in_page = _ChartInPage(of=self.model_id, code=Chart._code.model_id)

    @property
    def in_page(self) -> InPage:
        return self._in_page

    def open(self) -> None:
        """Announce the widget to the page: once it has its data, which plotly gives it after the announcement."""
        if self._whole:
            super().open()

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """As of every widget; the whole state has the figure as it is now, which plotly keeps only as it once was."""
        edits = {name: getattr(self, name) for name in ("_last_trace_edit_id", "_last_layout_edit_id")}
        state = super().get_state(key, drop_defaults)
        if key is None:
            state |= self._figure_now()
            state |= edits  # of before: a page can tell that a change has overtaken this state
        return state

    def _figure_now(self, tries: int = 10) -> dict[str, Any]:
        pack = custom_serializers["to_json"]
        try:
            return {"_widget_data": pack(self._data, self), "_widget_layout": pack(self._layout_obj._props, self)}
        except RuntimeError:  # the thread that draws has added a key meanwhile
            if tries == 1:
                raise
            return self._figure_now(tries - 1)

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        return self.in_page._repr_mimebundle_(**options)
