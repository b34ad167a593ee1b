"""The presentation: five scenes on one page, with one thread that draws both charts and does what the presenter asks.

Keys and buttons only put a word into a queue; the thread takes it out, so that nothing is done by two at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from paci_lab.language import _
from paci_lab.present.board import Board
from paci_lab.present.charts import GanttLane
from paci_lab.present.front import Keys
from paci_lab.present.race import Race
from paci_lab.present.scenes import Scene, Simulated, scenes
from paci_lab.present.sides import scene_words
from paci_lab.present.words import text_html, title_html
from paci_lab.show.front import starting_theme
from paci_lab.show.notebook import Problems, listen_while_busy
from paci_lab.show.playhead import Playhead
from paci_lab.show.sender import PERIOD_S, rest_s

__all__ = ["Presentation"]

_EVENTS = 3000  # of a run, for its version gaps
_WORDS_S = 0.45  # between two changes of what is said
_BEAT_S = 2.0  # between two signs of life
_NICE = 10  # the drawing thread gives way to the ranks
_SPEEDS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class Presentation:
    """The page; shown by being the last value of a cell.

    Args:
        sides: for every scene that is a race its two sides, as `Racer.to_dict` gives them.
        folder: where runs are written. theme: "light", "dark" or "auto".

    Attributes:
        widget: the whole page. keys: the presenter's. lanes, board: its charts, and what stands beside them.
        race: of the scene that is shown. problems: what went wrong.
        phase: "ready", "starting", "live", "held" (a picture of runs that go on), "play", "pause" or "end".
    """

    def __init__(
        self, sides: Mapping[str, list[dict[str, Any]]], *, folder: str | Path = "runs", theme: str = "auto"
    ) -> None:
        self._sides, self._folder = sides, Path(folder)
        self.scenes, self.number = scenes(), 0
        self._theme = starting_theme(theme)
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._wake, self._closed = threading.Event(), threading.Event()
        self.lanes = [GanttLane(self._theme, self._browser_has_drawn) for _side in (0, 1)]
        self.board = Board(self._theme)
        self.keys, self.problems = Keys(self.ask), Problems()
        self._head, self._text = widgets.HTML(), widgets.HTML()
        lanes = widgets.VBox([lane.widget for lane in self.lanes])
        body = widgets.HBox([lanes, self.board.beside])
        parts = [self._head, self._text, body, self.board.below, self.problems.widget, self.keys.in_page]
        self.widget = widgets.VBox(parts)
        names = ("race", "head", "race-body", "lanes")
        for part, name in zip((self.widget, self._head, body, lanes), names, strict=True):
            part.add_class(f"paci-lab-{name}")
        self.keys.observe(lambda _change: self._wake.set(), "room")
        self.lanes[0].front.on_page(self._page_is)
        self.race = Race([])
        self._shown: list[Any] = []
        self._enders: list[threading.Thread] = []
        self._speed, self._rest_until = _SPEEDS.index(1.0), 0.0
        self._beat_at = 0.0
        self._enter(0)
        self._thread = threading.Thread(target=self._follow, name="paci-lab presentation", daemon=True)
        self._thread.start()

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        return self.widget._repr_mimebundle_(**options)

    @property
    def scene(self) -> Scene:
        return self.scenes[self.number]

    def ask(self, action: str) -> None:
        """Do what a presenter's key says, one of `ACTIONS`; returns at once."""
        self._asked.put(action)
        self._wake.set()

    def close(self) -> None:
        """End the drawing thread, and the runs of a race that goes on."""
        self._closed.set()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)
        for ender in [*self._enders, *self.race.end()]:
            ender.join()

    def _page_is(self, theme: str) -> None:
        self._theme = theme
        self._wake.set()

    def _browser_has_drawn(self) -> None:
        if time.monotonic() > self._rest_until:  # the next picture is due and waits for this
            self._wake.set()

    # -- what the presenter asks ----------------------------------------------------------------------------------
    def _obey(self, action: str) -> None:
        if action in ("next", "previous"):
            number = self.number + (1 if action == "next" else -1)
            if 0 <= number < len(self.scenes):
                self._enter(number)
        elif action in ("slower", "faster"):
            if self._speed_counts:
                self._speed = min(max(self._speed + (1 if action == "faster" else -1), 0), len(_SPEEDS) - 1)
                self.playhead.speed = _SPEEDS[self._speed]
        elif self.phase == "ready" and self.race.to_be_run:
            self._start_runs()
        elif self.phase == "live":
            self._held_at, self.phase = self._positions(), "held"
        elif self.phase == "held":
            self.phase = "live"
        elif self.phase == "play":
            self.playhead.pause()
            self.phase = "pause"
        elif self.phase == "end" and self._end_ns == 0:  # nothing has come of it
            self._enter(self.number)
        elif self.phase != "starting":  # a second press while the ranks come up is one too many
            if self.phase == "end":
                self.playhead.seek(0)
            self.playhead.play(_SPEEDS[self._speed])
            self.phase = "play"
        self._show_state()

    def _enter(self, number: int) -> None:
        self._enders += self.race.end()
        self.number, self.phase, self.playhead = number, "ready", Playhead(mode="pause", speed=_SPEEDS[self._speed])
        self._held_at = [0, 0]
        scene = self.scene
        self.race = Race(self._sides.get(scene.key, []))
        traces = [lane.trace() for lane in scene.lanes]
        self._shown = [Simulated(trace) for trace in traces] or self.race.racers
        self._replayed = False
        names = [
            _("{name}: stages work {share:.1f} % of the time").format(
                name=lane.name, share=100 * (1 - trace.bubble_fraction())
            )
            for lane, trace in zip(scene.lanes, traces, strict=True)
        ] or [racer.details() for racer in self.race.racers]
        racers = self.race.racers
        target = racers[0].target if racers else None
        self._title, text = scene_words(scene, [r.trains for r in racers], [r.name for r in racers], target)
        self._text.value = text_html(text)
        for lane, name in zip(self.lanes, [*names, ""], strict=False):
            lane.name.value = text_html(name)
        self.lanes[1].widget.layout.display = "" if len(names) > 1 else "none"
        self.board.clear(shown=bool(self.race.racers))
        self._restart_charts()
        self._say(f"{self._title}. {text}")

    def _restart_charts(self) -> None:
        for lane in self.lanes:
            lane.clear()
        self._show_state()

    def _start_runs(self) -> None:
        for ender in self._enders:  # two races at once would slow each other
            while ender.is_alive():
                ender.join(_BEAT_S)
                self._beat()
        self._enders.clear()
        self.race.start(self._folder / time.strftime(f"{self.scene.key}-%Y%m%d-%H%M%S-{os.getpid()}"))
        self.phase = "starting"

    # -- where the race stands ------------------------------------------------------------------------------------
    @property
    def _live(self) -> bool:
        return self.phase in ("starting", "live", "held")

    @property
    def _speed_counts(self) -> bool:
        """Whether what is shown is played, and not a race that keeps its own time."""
        return not self._live and not (self.race.to_be_run and self.phase == "ready")

    def _advance(self) -> None:
        """From one phase to the next, as runs come up and end."""
        if self.phase == "starting" and not self.race.starting:
            self.phase = "live"
            self._show_state()
        if self.phase == "live" and self.race.over:
            self._end_playback()
        if self.phase == "play" and self.playhead.position(time.monotonic_ns(), self._end_ns) >= self._end_ns:
            self._end_playback()

    def _end_playback(self) -> None:
        self._replayed = self.race.to_be_run
        self.playhead.seek(self._end_ns)
        self.phase = "end"
        self._show_state()

    @property
    def _end_ns(self) -> int:
        return max(shown.end_ns for shown in self._shown)

    def _positions(self) -> list[int]:
        """Where every lane is, in nanoseconds of its own training time."""
        ends = [shown.end_ns for shown in self._shown]
        if self.phase == "held":
            return self._held_at
        if self._live:
            return ends
        at = self.playhead.position(time.monotonic_ns(), self._end_ns)
        return [min(at, end) for end in ends]

    # -- the thread -----------------------------------------------------------------------------------------------
    def _follow(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # where threads have no priority of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._closed.is_set():
            began, worked, drew = time.monotonic(), time.thread_time(), False
            with self.problems.caught(clear=False):
                while not self._asked.empty():
                    self._obey(self._asked.get())
                drew = self.tick()
            computing = any(r.feed is not None and r.feed.on_cores and not r.feed.ended for r in self.race.racers)
            rest = rest_s(time.monotonic() - began, time.thread_time() - worked if drew and computing else 0.0)
            if drew:
                self._rest_until = time.monotonic() + rest
            self._beat()
            while not self._wake.wait(min(rest, _BEAT_S)) and rest > _BEAT_S:
                rest -= _BEAT_S
                self._beat()
            self._wake.clear()

    def _beat(self) -> None:
        """A sign of life for the page, and its keys can be heard."""
        if time.monotonic() - self._beat_at > _BEAT_S:
            self.keys.beat, self._beat_at = self.keys.beat + 1, time.monotonic()
        listen_while_busy(self.keys)

    def tick(self) -> bool:
        """Read what is new and draw what it changes; True when it drew."""
        self.race.poll()
        self._advance()
        at, now, room = self._positions(), time.monotonic(), tuple(self.keys.room)
        drew, rested = False, self._rest_until
        self._rest_until = now + PERIOD_S  # an answer that comes before the cost of this drawing is known ends no rest
        for lane, shown, until in zip(self.lanes, self._shown, at, strict=False):
            drew |= lane.show(shown, until, theme=self._theme, height_px=room[1] / len(at))
        if not drew:
            self._rest_until = rested
        if now - self._told_at > _WORDS_S:
            self._tell(at, now, room)
        return drew

    # -- what is said ---------------------------------------------------------------------------------------------
    def _tell(self, at: list[int], now: float, room: tuple[float, ...]) -> None:
        self._told_at = now
        label = self.race.label(self.phase, replayed=self._replayed) if self.race.racers else _("simulated")
        self._head.value = title_html(self.number + 1, len(self.scenes), self._title, label)
        if not self.race.racers:
            return
        counts_until = self.phase in ("ready", "held", "play", "pause")
        seen = [shown.window(until, _EVENTS)[0] for shown, until in zip(self._shown, at, strict=True)]
        gaps = [trace.version_gap_max() if len(trace) else [] for trace in seen]
        until_s = [ns / 1e9 if counts_until else float("inf") for ns in at]
        said, before = self.board.said, None
        if self.phase == "ready":
            before = ""
        elif self._live and not any(at) and not self.race.over:
            before = _("The ranks are being started.")
        self.board.tell(self.race.racers, at, until_s, gaps, before=before, theme=self._theme, room=room)
        if self.board.said != said:
            self._say(self.board.said)

    def _say(self, text: str) -> None:
        self.keys.said = text

    def _show_state(self) -> None:
        words = {
            "ready": _("Start"), "starting": _("Starting"), "live": _("Hold"), "held": _("Go on"), "play": _("Hold"),
            "pause": _("Go on"), "end": _("Again"),
        }  # fmt: skip
        off = [action for action, last in (("previous", 0), ("next", len(self.scenes) - 1)) if self.number == last]
        if not self._speed_counts:
            off += ["slower", "faster"]
        speed = f"{_SPEEDS[self._speed]:g}×"
        if self._live:
            speed = _("held") if self.phase == "held" else _("live")
        self._told_at = 0.0  # what is said of the figures changes with it
        self.keys.state = {"toggle": words[self.phase], "speed": speed, "off": off, "phase": self.phase}
