"""A chart that stands still in a notebook, and follows its page into the dark.

No kernel has to hear of the page's theme, and no script has to reach plotly, which JupyterLab keeps to itself: the
browser writes a colour into the style of what it draws, so a style sheet can replace the light theme's colours, each
by its own counterpart, as long as the page is dark.
"""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import plotly.io as pio

from paci_lab.show.notebook import CONFIG
from paci_lab.show.palette import DARK, swap

__all__ = ["PageFigure", "page_style"]

# Charts in widgets follow by themselves. A hover label lies on the colour of its bar, which stays, and so does its ink.
_CHART = 'body[data-jp-theme-light="false"] .jp-RenderedPlotly'
_PARTS = ":not(.hoverlayer *)"


def page_style() -> str:
    """A style element: light charts of plotly's own are dark in a JupyterLab that is dark."""
    return f"<style>{''.join(_rules())}</style>"


def _rules() -> Iterator[str]:
    for light, dark in swap().items():
        red, green, blue = (int(light[i : i + 2], 16) for i in (1, 3, 5))
        for part in ("fill", "stroke", "background"):
            yield f'{_CHART} {_PARTS}[style*="{part}: rgb({red}, {green}, {blue})"]{{{part}:{dark} !important}}'
    yield f"{_CHART} .modebar-group{{background:{DARK.background} !important}}"
    yield f"{_CHART} .modebar-btn path{{fill:{DARK.muted} !important}}"
    yield f"{_CHART} .modebar-btn:is(.active,:hover) path{{fill:{DARK.ink} !important}}"


class PageFigure(go.Figure):
    """A plotly figure that is followed, wherever it ends a cell, by what it says to the page."""

    def in_words(self) -> str:
        """What stands under the chart, as HTML; nothing here."""
        return ""

    def _ipython_display_(self) -> None:
        """The last value of a cell: the chart, and under it an output of its own, for a page shows one kind of each."""
        from IPython.display import HTML, display

        if not (pio.renderers.render_on_display and pio.renderers.default):
            return super()._ipython_display_()
        pio.show(self, config=CONFIG)
        display(HTML(page_style() + self.in_words()))
