"""The chart of the live view: a Gantt chart over a loss curve, drawn by plotly at rest and by the browser in motion."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from paci_lab.language import _
from paci_lab.show.front import moving_picture
from paci_lab.show.gantt import gantt, new_content, update_gantt
from paci_lab.show.notebook import figure_widget
from paci_lab.show.palette import theme_named
from paci_lab.show.words import source_words
from paci_lab.trace import Trace

__all__ = ["LiveChart", "MovingGantt"]

_LOSS_PX, _LOSS_GAP_PX = 170, 70
_POINTS = 600  # of a loss curve; more cannot be told apart on a screen


class MovingGantt:
    """A Gantt chart whose bars plotly draws at rest and the browser in motion; raises InputError without its packages.

    Args:
        figure: as `gantt` makes it; other charts may have been added.

    Attributes:
        figure: the `FigureWidget`. moving: whether its bars are the browser's rather than plotly's.
    """

    def __init__(self, figure: go.Figure) -> None:
        self.figure, self.moving = figure_widget(figure), False

    def rest(self, trace: Trace, shown_ms: tuple[float, float]) -> dict[str, Any]:
        """Let plotly draw the bars; the picture for the browser then has none."""
        update_gantt(self.figure, trace, origin_ns=0, between_ms=shown_ms)
        self._settle()
        self.moving = False
        return {}

    def move(self, trace: Trace, shown_ms: tuple[float, float]) -> dict[str, Any]:
        """Leave no more to plotly than the time axis, which it draws quickly; gives the picture for the browser."""
        slots, layout = new_content(self.figure, trace, origin_ns=0, between_ms=shown_ms)
        heading = layout.pop("annotations")
        if not self.moving or self.figure.layout.annotations[0].font.color != heading[0]["font"]["color"]:
            source = source_words(trace.source)
            heading[0]["text"] = source[:1].upper() + source[1:]  # its share would be out of date at once
            with self.figure.batch_update():
                for drawn, slot in zip(self.figure.data, slots, strict=False):
                    if "x" in slot and drawn.x is not None and len(drawn.x):
                        drawn.x, drawn.y, drawn.customdata = [], [], []
                self.figure.layout.annotations = heading
            self.moving = True
        for drawn, slot in zip(self.figure.data, slots, strict=False):
            if "visible" in slot:  # what the legend explains
                drawn.visible = slot["visible"]
        for path, value in layout.items():
            self.figure.layout[path] = value
        self._settle()
        return moving_picture(self.figure, slots, tuple(layout["xaxis.range"]), max(trace.stages, 1))

    def _settle(self) -> None:
        """Called when the height of the figure may have changed."""


class LiveChart(MovingGantt):
    """A moving Gantt chart over a loss curve.

    Args:
        source, stages: as of `Trace`. theme, strips: as in `gantt`.
    """

    def __init__(self, source: str, stages: int, *, theme: str, strips: tuple[str, ...]) -> None:
        empty = Trace([], source=source, stages=stages)
        figure = gantt(empty, theme=theme, strips=strips, origin_ns=0, below_px=_LOSS_PX + _LOSS_GAP_PX)
        look = theme_named(theme)
        for name, color, width in (
            (_("training loss"), look.muted, 1.5),
            (_("validation loss"), look.series[0], 2.5),
        ):
            figure.add_scatter(
                x=[],
                y=[],
                xaxis="x3",
                yaxis="y3",
                mode="lines" if width < 2 else "lines+markers",
                name=name,
                line={"color": color, "width": width},
                showlegend=True,
                hovertemplate=f"{name} %{{y:.3f}}<br>{_('after {time} s').format(time='%{x:.1f}')}<extra></extra>",
            )
        axis = {"gridcolor": look.grid, "zeroline": False, "tickfont": {"size": 14}, "ticklabeloverflow": "allow"}
        figure.update_layout(
            xaxis3={
                **axis,
                "anchor": "y3",
                "showgrid": False,
                "rangemode": "tozero",
                "title": {"text": _("training time (s)"), "standoff": 6, "font": {"size": 14}},
            },
            yaxis3={**axis, "anchor": "x3", "title": {"text": _("loss"), "font": {"size": 14}}},
        )
        _place_loss(figure.layout)  # before it is a widget, whose every change is a message
        super().__init__(figure)

    def _settle(self) -> None:
        _place_loss(self.figure.layout)

    def draw_loss(self, losses: dict[str, tuple[list[float], list[float]]]) -> None:
        """Draw the losses, as `RunFeed.losses` gives them."""
        with self.figure.batch_update():
            for drawn, key in zip(self.figure.data[-2:], ("train_loss", "val_loss"), strict=True):
                seconds, values = losses[key]
                stride = -(-len(seconds) // _POINTS) or 1
                drawn.x, drawn.y = seconds[::stride], values[::stride]


def _place_loss(layout: Any) -> None:
    layout.yaxis3.domain = [0, _LOSS_PX / (layout.height - layout.margin.t - layout.margin.b)]
