"""The charts of the race: a Gantt chart for each side, and the losses of both in one. Large, for a projector."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import ipywidgets as widgets

from paci_lab.language import _
from paci_lab.show.front import Front
from paci_lab.show.gantt import gantt, retheme
from paci_lab.show.gantt_content import HEAD_PX
from paci_lab.show.gantt_fixed import FOOT_PX
from paci_lab.show.live_chart import MovingGantt
from paci_lab.show.notebook import figure_widget
from paci_lab.show.palette import theme_named
from paci_lab.show.sender import Sender
from paci_lab.show.spoken import summary
from paci_lab.trace import Trace

__all__ = ["GanttLane", "LossChart"]

_TICKS_PX, _WORDS_PX = 17, 17
_NAME_PX = 34  # of the line above a chart, as present.css has it
_LEAST_ROW_PX, _LEAST_PX = 10.0, 160
_SPAN_NS = 8_000_000_000  # of training time in view
_EVENTS = 3000  # of a run, more than the span has
_STILL_S = 0.6  # without a change, and plotly draws what the browser painted


class Shown(Protocol):
    """What a chart shows: a `RunFeed`, or what stands in for one."""

    stages: int

    def window(self, end_ns: int, count: int) -> tuple[Trace, int, int]: ...


class GanttLane:
    """A moving Gantt chart under the name of what it shows.

    Args:
        drawn: called when the browser has drawn the last picture.

    Attributes:
        widget: all of it. name: the line above. chart, front, sender: what draws, paints and sends.
    """

    def __init__(self, theme: str, drawn: Callable[[], None]) -> None:
        figure = gantt(Trace([], source="", stages=1), theme=theme, origin_ns=0)
        words = {"size": _WORDS_PX}
        figure.update_layout(
            font_size=_WORDS_PX,
            legend_font=words,
            xaxis={"tickfont": {"size": _TICKS_PX}, "title": {"font": words}},
            yaxis={"tickfont": {"size": _TICKS_PX}},
            margin_l=96,
        )
        self.chart, self.front = MovingGantt(figure), Front()
        self.sender = Sender(self.front, drawn)
        self.name = widgets.HTML()
        self.name.add_class("paci-lab-lane-name")
        self.widget = widgets.VBox([self.name, self.chart.figure.in_page, self.front.in_page])
        for name in ("paci-lab-view", "paci-lab-lane"):
            self.widget.add_class(name)
        self.clear()

    def clear(self) -> None:
        """Draw everything anew with the next picture, also the heading, which a moving chart keeps."""
        self.chart.moving = False
        self._drawn: tuple[Any, ...] = ()
        self._moved_at = 0.0

    def show(self, shown: Shown, until_ns: int, *, theme: str, height_px: float) -> bool:
        """Draw what happened in the last seconds before a moment; True when that has changed and was drawn.

        What moves is left to the browser, where there is one, and plotly draws what stands still.
        """
        now, picture = time.monotonic(), (until_ns, theme, height_px, shown.stages)
        moved = picture != self._drawn
        rests = self.chart.moving and not moved and now - self._moved_at > _STILL_S
        if not (moved or rests) or not self.sender.ready:
            return False
        self._fit(height_px, shown.stages)
        retheme(self.chart.figure, theme)
        trace, first = shown.window(until_ns, _EVENTS)[0], max(until_ns - _SPAN_NS, 0)
        shown_ms = (first / 1e6, (first + _SPAN_NS) / 1e6)
        if moved and self.front.seen >= 0:
            self.chart.figure.spoken = _("Gantt chart that moves. Hold it to have it in words.")
            self.sender.send(self.chart.move(trace, shown_ms))
        else:
            self.chart.figure.spoken = summary(trace, between_ms=shown_ms, origin_ns=0)
            bars = self.chart.rest(trace, shown_ms)
            # Of nothing there is no share, and where it comes from is on the page.
            self.chart.figure.layout.annotations[0].visible = len(trace) > 0
            self.sender.send(bars)
        self._drawn, self._moved_at = picture, now if moved else self._moved_at
        return True

    def _fit(self, height_px: float, stages: int) -> None:
        """Make the rows as high as this height allows."""
        row = max((height_px - _NAME_PX - HEAD_PX - FOOT_PX) / max(stages, 1), _LEAST_ROW_PX)
        options = self.chart.figure.layout.meta["gantt"]
        if options["row_px"] != row:
            self.chart.figure.layout.meta = {"gantt": {**options, "row_px": row}}


class LossChart:
    """Training and validation losses of two sides against training time, with the target.

    Attributes:
        figure: the `FigureWidget`.
    """

    def __init__(self, theme: str) -> None:
        import plotly.graph_objects as go

        look = theme_named(theme)
        figure = go.Figure()
        for side in (0, 1):
            for width, opacity in ((1.5, 0.45), (3.5, 1.0)):
                figure.add_scatter(
                    x=[],
                    y=[],
                    mode="lines" if width < 2 else "lines+markers",
                    # The second side is told by more than its hue.
                    line={"color": look.series[side], "width": width, "dash": ("solid", "dash")[side and width > 2]},
                    marker={"size": 9, "symbol": "diamond" if side else "circle", "color": look.series[side]},
                    opacity=opacity,
                    showlegend=False,
                    hovertemplate="%{y:.3f}<br>%{x:.1f} s<extra></extra>",
                )
        ticks = {"tickfont": {"size": _TICKS_PX}, "ticklabeloverflow": "allow"}
        axis = {"gridcolor": look.grid, "zeroline": False, **ticks}
        figure.update_layout(
            height=300,
            margin={"l": 60, "r": 12, "t": 34, "b": 56},
            paper_bgcolor=look.background,
            plot_bgcolor=look.background,
            font={"family": look.font, "size": _WORDS_PX, "color": look.ink},
            title={
                "text": _("loss (thick: validation)"),
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"t": 6},
                "font": {"size": _WORDS_PX},
            },
            xaxis={
                **axis,
                "rangemode": "tozero",
                "title": {"text": _("training time (s)"), "standoff": 4, "font": {"size": _WORDS_PX}},
            },
            yaxis=axis,
            shapes=[
                {
                    "type": "line",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "yref": "y",
                    "y0": 0,
                    "y1": 0,
                    "visible": False,
                    "line": {"color": look.muted, "width": 2, "dash": "dot"},
                }
            ],
            meta={"gantt": {"theme": theme}},  # what `retheme` reads
        )
        self.figure = figure_widget(figure)
        self.figure.spoken = _("Losses of both sides against training time. The countdown has them in words.")

    def fit(self, height_px: float) -> None:
        """Take this height."""
        height = max(round(height_px), _LEAST_PX)
        if self.figure.layout.height != height:
            self.figure.layout.height = height

    def draw(self, losses: Sequence[dict[str, tuple[list[float], list[float]]]], target: float) -> None:
        """Draw the losses of both sides, as `RunFeed.losses` gives them; they are thinned to what a screen can show."""
        with self.figure.batch_update():
            for side, found in enumerate(losses):
                lines = self.figure.data[2 * side : 2 * side + 2]
                for drawn, key in zip(lines, ("train_loss", "val_loss"), strict=True):
                    seconds, values = found[key]
                    stride = -(-len(seconds) // 300) or 1
                    drawn.x, drawn.y = seconds[::stride], values[::stride]
            line = self.figure.layout.shapes[0]
            line.y0, line.y1, line.visible = target, target, True

    def retheme(self, theme: str) -> None:
        """The colours of another theme."""
        retheme(self.figure, theme)
