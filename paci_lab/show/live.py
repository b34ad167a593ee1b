"""The live view: what real ranks are doing while they do it, or a finished run played again at any speed.

Front-end events may arrive in another thread than the one that draws, so a button only says what is wanted; one thread
reads the run directory and is the only one that writes to the figure.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as widgets

from paci_lab.language import _
from paci_lab.show.container import in_order_of_time, view
from paci_lab.show.feed import RunFeed
from paci_lab.show.front import Front, starting_theme
from paci_lab.show.gantt import retheme
from paci_lab.show.live_chart import LiveChart
from paci_lab.show.live_text import facts_html, paragraphs_html
from paci_lab.show.notebook import Problems, listen_while_busy
from paci_lab.show.playhead import Playhead
from paci_lab.show.sender import PERIOD_S, Sender, rest_s
from paci_lab.show.spoken import Spoken, details_html, summary

__all__ = ["LiveView", "live"]

_EVENTS = 1000  # operations and waits in view
_WORDS_S, _LOSS_S = 0.45, 1.0  # between two changes of the figures in words, and of the loss curve, while it moves
_STILL_S = 0.6  # without a change, and plotly draws what the browser painted
_NICE = 10  # the drawing thread gives way to the ranks, which may need every core
_STEP = 0.125  # of the position, in per cent
_SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0)


def live(
    run_dir: str | Path,
    *,
    stop: Callable[[], None] | None = None,
    speed: float | None = None,
    theme: str = "auto",
    strips: tuple[str, ...] = (),
) -> LiveView:
    """Open the live view on a run directory, of a run that goes on, has ended or was killed.

    Args:
        run_dir: the folder that the run writes.
        stop: what the Stop button calls, in a thread of its own; without it there is no button.
        speed: play from the beginning at this speed; without it a run that goes on is followed, and one that has ended
            is played at its own speed.
        theme: "light", "dark", or "auto": that of the page, also when it changes.
        strips: as in `gantt`.

    Raises InputError when `run_dir` is no run directory or a notebook package is missing. A second view
    closes the first.
    """
    return LiveView(run_dir, stop=stop, speed=speed, theme=theme, strips=strips)


class LiveView:
    """A rolling Gantt chart, the loss and the main figures of one run; shown by being the last value of a cell.

    Attributes:
        widget: the whole view. figure: its chart. controls: its buttons and sliders by name.
        playhead: where the view stands in the run. problems: what went wrong. frames: drawings made so far.
    """

    _open: ClassVar[LiveView | None] = None

    def __init__(
        self,
        run_dir: str | Path,
        *,
        stop: Callable[[], None] | None,
        speed: float | None,
        theme: str,
        strips: tuple[str, ...],
    ) -> None:
        self.feed = RunFeed(run_dir)
        self.feed.poll()
        self.problems = Problems()
        self._theme = starting_theme(theme)
        self._stop = stop
        play = speed is not None or self.feed.ended
        self.playhead = Playhead(mode="play" if play else "live", speed=speed or 1.0)
        self.chart = LiveChart(self.feed.source, self.feed.stages, theme=self._theme, strips=strips)
        self.figure = self.chart.figure
        self.controls = self._make_controls(speed or 1.0)
        self._facts, self._notes, self._spoken = widgets.HTML(), widgets.HTML(), widgets.HTML()
        c = self.controls
        names = ("stop", "pause", "play", "live", "speed", "position")
        bar = in_order_of_time([c[name] for name in names if name != "stop" or stop])
        self.front = Front()
        self.widget = view(
            [
                *(bar, self._facts, self.figure.in_page, self._spoken, self._notes),
                *(self.problems.widget, self.front.in_page),
            ]
        )
        self._drawn: tuple[Any, ...] = ()
        self._said: tuple[Any, ...] = ()
        self._in_words: tuple[Any, ...] = ()
        self._told = 100.0  # the position that the slider was set to
        self._moved_at, self._said_at, self._loss_at = 0.0, 0.0, 0.0
        self._closed, self._wake, self._stop_asked = threading.Event(), threading.Event(), threading.Event()
        self._rest_until = 0.0
        self._sender = Sender(self.front, self._browser_has_drawn)
        self._connect(follow_page=theme == "auto")
        if LiveView._open is not None:
            LiveView._open.close()
        LiveView._open = self
        listen_while_busy(self.front, *self.controls.values())
        self._thread = threading.Thread(target=self._follow, name="paci-lab live view", daemon=True)
        self._thread.start()

    @property
    def frames(self) -> int:
        return self._sender.frames

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        return self.widget._repr_mimebundle_(**options)

    def close(self) -> None:
        """End the drawing thread; the view keeps its last picture and says that it is closed."""
        self._closed.set()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)
        for control in self.controls.values():
            control.disabled = True
        self._notes.value = paragraphs_html([_("This view is closed: another one was opened, or close() was called.")])

    # -- what is made once ----------------------------------------------------------------------------------------
    def _make_controls(self, speed: float) -> dict[str, Any]:
        narrow = widgets.Layout(width="auto", min_width="92px")
        speeds = sorted({*_SPEEDS, speed})
        return {
            "stop": widgets.Button(
                description=_("Stop"), icon="stop", button_style="danger", tooltip=_("end the run now"), layout=narrow
            ),
            "pause": widgets.Button(
                description=_("Pause"), icon="pause", tooltip=_("hold the picture; the run goes on"), layout=narrow
            ),
            "play": widgets.Button(description=_("Play"), icon="play", tooltip=_("go on from here"), layout=narrow),
            "live": widgets.Button(
                description=_("Live"), icon="fast-forward", tooltip=_("jump to the newest events"), layout=narrow
            ),
            "speed": widgets.Dropdown(
                description=_("speed"),
                style={"description_width": "initial"},
                options=[(f"{s:g}×", s) for s in speeds],
                value=speed,
                layout=widgets.Layout(width="auto"),
            ),
            # In per cent of the run so far. A range in seconds would grow, and a browser that has not heard of the new
            # end yet cuts the value back to the old one, which then looks like a reader who moved the slider. So does
            # a value that it rounds: only multiples of a step that floats can hold exactly stay as they are.
            "position": widgets.FloatSlider(
                value=100,
                min=0,
                max=100,
                step=_STEP,
                readout_format=".1f",
                continuous_update=True,
                description=_("at, %"),
                style={"description_width": "initial"},
                layout=widgets.Layout(flex="1 1 260px"),
            ),
        }

    def _connect(self, *, follow_page: bool) -> None:
        def then_wake(action: Callable[[], None]) -> Callable[[object], None]:
            def callback(event: object) -> None:
                action()
                self._wake.set()

            return callback

        c = self.controls
        c["stop"].on_click(then_wake(self._stop_asked.set))
        c["pause"].on_click(then_wake(self.playhead.pause))
        c["play"].on_click(then_wake(lambda: self.playhead.play(c["speed"].value)))
        c["live"].on_click(then_wake(self.playhead.go_live))
        c["speed"].observe(lambda change: self._set_speed(change["new"]), "value")
        c["position"].observe(lambda change: self._seek(change["new"]), "value")
        self.front.observe(then_wake(lambda: None), "reading")
        self.front.on_page(lambda page: self._page_is(page) if follow_page else None)

    def _page_is(self, theme: str) -> None:
        self._theme = theme
        self._wake.set()

    def _browser_has_drawn(self) -> None:
        if time.monotonic() > self._rest_until:  # the next picture is due and waits for this
            self._wake.set()

    def _set_speed(self, speed: float) -> None:
        self.playhead.speed = speed
        self._wake.set()

    def _seek(self, per_cent: float) -> None:
        if per_cent != self._told:  # moved by a reader, not by the run
            self.playhead.seek(round(per_cent / 100 * self.feed.end_ns))
            self._wake.set()

    # -- the thread that draws ------------------------------------------------------------------------------------
    def _follow(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # where threads have no priority of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._closed.is_set():
            began, worked, drew = time.monotonic(), time.thread_time(), False
            with self.problems.caught(clear=False):
                if self._stop_asked.is_set() and not self.controls["stop"].disabled:
                    self._begin_stop()
                drew = self.tick()
            listen_while_busy(self.front, *self.controls.values())
            spent = time.monotonic() - began
            share = drew and self.feed.on_cores and not self.feed.ended
            rest = rest_s(spent, time.thread_time() - worked if share else 0.0)
            if drew:
                self._rest_until = began + spent + rest
            self._wake.wait(rest)
            self._wake.clear()

    def _begin_stop(self) -> None:
        self.controls["stop"].disabled = True
        self.controls["stop"].description = _("Stopping")

        def stop() -> None:
            with self.problems.caught(clear=False):
                self._stop()

        threading.Thread(target=stop, name="paci-lab stop", daemon=True).start()

    def tick(self) -> bool:
        """Read what is new and draw when it changes the picture; True when it drew."""
        self.feed.poll()
        end, now = self.feed.end_ns, time.monotonic()
        at = self.playhead.position(time.monotonic_ns(), end)
        self._say()
        picture = (at, self.feed.stages, self._theme)
        words = (*picture, end, len(self.feed.metrics), len(self.feed.validation))
        moved = picture != self._drawn
        rests = self.chart.moving and not moved and now - self._moved_at > _STILL_S
        self._speak(at, end)
        if not (moved or rests or words != self._said) or not self._sender.ready:
            return False
        trace, start, stop = self.feed.window(at, _EVENTS)
        self._rest_until = now + PERIOD_S  # an answer that comes before this drawing's cost is known ends no rest
        retheme(self.figure, self._theme)
        bars: dict[str, Any] = self.front.picture
        if moved and self.front.seen >= 0:  # a browser is there that can paint
            bars = self.chart.move(trace, (start / 1e6, stop / 1e6))
        elif moved or rests:
            bars = self.chart.rest(trace, (start / 1e6, stop / 1e6))
        self._drawn, self._moved_at = picture, now if moved else self._moved_at
        if not self.chart.moving or now - self._said_at > _WORDS_S:
            losses = self.feed.losses(at / 1e9 if at < end else float("inf"))
            self._told = self.controls["position"].value = round(100 * at / max(end, 1) / _STEP) * _STEP
            self._facts.value = facts_html(trace, start, stop, self.feed.tokens_per_second(at / 1e9), losses)
            if not self.chart.moving or now - self._loss_at > _LOSS_S:
                self.chart.draw_loss(losses)
                self._loss_at = now
            self._said, self._said_at = words, now
        self._sender.send(bars)
        return True

    def _speak(self, at: int, end: int) -> None:
        """Put a picture that stands still into words, the long ones as long as somebody reads them."""
        still = not self.chart.moving and (self.playhead.mode == "pause" or (self.feed.ended and at >= end))
        wanted = (still, self.front.reading, *(self._drawn if still else ()))
        if wanted == self._in_words:
            return
        self._in_words = wanted
        if not still:
            self.figure.spoken = _("Gantt chart that moves. Pause it to have it in words.")
            self._spoken.value = details_html([], note=self.figure.spoken)
            return
        trace, start, stop = self.feed.window(at, _EVENTS)
        shown = Spoken(trace, None, (start / 1e6, stop / 1e6), 0)
        self.figure.spoken = summary(trace, **shown.options)
        self._spoken.value = details_html([shown] if self.front.reading else [])

    def _say(self) -> None:
        text = paragraphs_html([self.feed.status(), *self.feed.problems()])
        if text != self._notes.value:
            self._notes.value = text
        if self.feed.ended:
            self.controls["stop"].disabled, self.controls["stop"].description = True, _("Ended")
