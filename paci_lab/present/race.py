"""Two runs against each other: real ones that are started at once, or two that were recorded earlier."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError, RunFailed
from paci_lab.lab import FOLDER
from paci_lab.language import _
from paci_lab.runtime.launch import Run, launch
from paci_lab.runtime.rundir import RunDir
from paci_lab.schedules import ScheduleError
from paci_lab.show.feed import RunFeed
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace

__all__ = ["RECORDINGS", "Race", "Racer", "common_target", "describe", "recorded_label"]

RECORDINGS = FOLDER / "races"
"""What the scenes race, recorded: `python -m notebooks.make_race`."""


def describe(spec: TrainSpec) -> str:
    """What the audience reads of a contender."""
    flush = spec.schedule == "1f1b"
    name = _("1F1B with a flush") if flush else {"paci": "PACI"}.get(spec.schedule, spec.schedule)
    return _("{name}, window {window}").format(name=name, window=spec.window)


def recorded_label(path: Path) -> str:
    """When and on what a recording was made, in a sentence."""
    run = RunDir.open(path)
    machine = run.environment() or {}
    day = machine.get("recorded")
    if day is None:
        files = [path / name for name in ("result.json", "metrics.jsonl", "spec.toml")]
        written = next(file for file in files if file.exists()).stat().st_mtime
        day = time.strftime("%Y-%m-%d", time.localtime(written))
    return _("recorded on {day}, on {cores} cores of {cpu}").format(
        day=day, cores=machine.get("cpu_cores", "?"), cpu=machine.get("cpu", "?")
    )


def common_target(recordings: list[Path]) -> float:
    """The loss that decides between recordings: what their specs name, else the best that all of them came to.

    Raises InputError when one of them has no validation loss.
    """
    runs = [RunDir.open(path) for path in recordings]
    best = []
    for run in runs:
        losses = [row["val_loss"] for row in run.validation()]
        if not losses:
            raise InputError(
                str(run.path), "no validation loss", "a run that was evaluated", "train it with --evaluate-every 16"
            )
        best.append(min(losses))
    targets = {run.spec().target_loss for run in runs}
    (only,) = targets if len(targets) == 1 else (None,)
    return max(best) if only is None else only


@dataclasses.dataclass
class Racer:
    """One side of a race.

    Args:
        name: what the audience reads.
        target: validation loss that decides.
        spec: what it trains, for a run to be started. recording: a finished run that stands in for it.

    Attributes:
        run, feed: once it has been started, or opened. error: why it could not be.
    """

    name: str
    target: float
    spec: TrainSpec | None = None
    recording: Path | None = None
    run: Run | None = None
    feed: RunFeed | None = None
    error: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Racer:
        """Of what `to_dict` gave; opens a recording."""
        racer = cls(
            name=values["name"],
            target=values["target"],
            spec=TrainSpec.from_dict(values["spec"]) if "spec" in values else None,
            recording=Path(values["recording"]) if "recording" in values else None,
        )
        if racer.recording is not None:
            racer.feed = RunFeed(racer.recording)
            while racer.feed.poll():
                pass
        return racer

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for another process."""
        given = {"name": self.name, "target": self.target}
        if self.spec is not None:
            given["spec"] = self.spec.to_dict()
        if self.recording is not None:
            given["recording"] = str(self.recording)
        return json.loads(json.dumps(given))

    @property
    def trains(self) -> TrainSpec:
        """What it trains, or what its recording trained."""
        return self.spec or RunDir.open(self.recording).spec()

    def details(self) -> str:
        """Its name, and with what it learns: a race with another learning rate is another race."""
        spec = self.trains
        words = {"name": self.name, "optimizer": spec.optimizer, "rate": spec.learning_rate}
        if self.recording is not None and self.feed.end_ns == 0:
            return _("{name}: {optimizer}, learning rate {rate:g} (recorded without a trace)").format(**words)
        if self.name.endswith(f"learning rate {spec.learning_rate:g}"):  # what tells it from the other side
            return _("{name}: {optimizer}").format(**words)
        return _("{name}: {optimizer}, learning rate {rate:g}").format(**words)

    def start(self, folder: Path) -> threading.Thread:
        """Start its run in a thread, which ends when the run has been accepted or refused."""
        self.run, self.feed, self.error = None, None, ""

        def launched() -> None:
            try:
                self.run = launch(self.spec, folder)
                self.feed = RunFeed(folder)
            except (InputError, ScheduleError, RunFailed, OSError) as error:
                self.error = str(error)

        thread = threading.Thread(target=launched, name="paci-lab race start", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """End its run, when it has one that goes on."""
        if self.run is not None:
            self.run.stop()

    @property
    def over(self) -> bool:
        """True when nothing more will come of it."""
        if self.error or self.recording is not None:
            return True
        return self.feed is not None and (self.feed.ended or self._killed())

    def _killed(self) -> bool:
        """Its processes are gone, and it has not said why."""
        if self.run is None or self.run.running or self.feed.ended:
            return False
        self.feed.poll()  # its last word may have come since
        return not self.feed.ended

    @property
    def stages(self) -> int:
        return self.feed.stages if self.feed is not None else self.spec.stages

    @property
    def end_ns(self) -> int:
        """Training time that its run has come to; of one without a trace, that of its last evaluation."""
        if self.feed is None:
            return 0
        return max(self.feed.end_ns, *(round(s * 1e9) for s in self.points()[0][-1:]), 0)

    def window(self, end_ns: int, count: int) -> tuple[Trace, int, int]:
        """As of `RunFeed`; an empty chart for one that has not begun."""
        if self.feed is not None:
            return self.feed.window(end_ns, count)
        return Trace([], source=_("waiting for the start"), stages=self.stages), 0, end_ns

    def failure(self) -> str:
        """Why it failed; "" when it has not."""
        if self.error:
            return self.error
        if self.feed is not None and self.feed.ended and self.feed.result is None and self.reached() is None:
            return self.feed.status()
        if self.feed is not None and self._killed():
            return _("The run was killed from outside, and could not say why.")
        return ""

    def points(self, until_s: float = float("inf")) -> tuple[list[float], list[float]]:
        """(seconds of training time, validation loss) up to a moment."""
        return self.feed.losses(until_s)["val_loss"] if self.feed is not None else ([], [])

    def reached(self, until_s: float = float("inf")) -> float | None:
        """Training time at which it first was at the target; None when it was not."""
        return next((s for s, loss in zip(*self.points(until_s), strict=True) if loss <= self.target), None)


class Race:
    """The sides of a scene: none, or two that are started and ended together.

    Args:
        sides: as `Racer.to_dict` gives them.
    """

    def __init__(self, sides: Sequence[Mapping[str, Any]]) -> None:
        self.racers = [Racer.from_dict(side) for side in sides]
        self._starters: list[threading.Thread] = []

    @property
    def to_be_run(self) -> bool:
        """Whether it is run here rather than replayed."""
        return any(racer.spec is not None for racer in self.racers)

    @property
    def starting(self) -> bool:
        """True until both runs have been accepted or refused."""
        return any(starter.is_alive() for starter in self._starters)

    @property
    def over(self) -> bool:
        return all(racer.over for racer in self.racers)

    def start(self, folder: Path) -> None:
        """Start both sides at once; returns before they are up."""
        places = [folder / name for name in ("above", "below")]
        self._starters = [racer.start(place) for racer, place in zip(self.racers, places, strict=True)]

    def poll(self) -> None:
        """Read what its runs have written since the last look."""
        for racer in self.racers:
            if racer.feed is not None and racer.recording is None:
                racer.feed.poll()

    def end(self) -> list[threading.Thread]:
        """End what goes on, in threads: they end when all ranks are gone."""

        def ended(racer: Racer, starter: threading.Thread) -> None:
            starter.join()
            racer.stop()

        pairs = zip(self.racers, self._starters, strict=False)
        threads = [threading.Thread(target=ended, args=pair, name="paci-lab race end", daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        return threads

    def label(self, phase: str, *, replayed: bool) -> str:
        """Where its figures come from, in words for everybody to read; `phase` as of `Presentation`."""
        recordings = [racer.recording for racer in self.racers if racer.recording is not None]
        if recordings:
            return "; ".join(dict.fromkeys(map(recorded_label, recordings)))
        paced = all(racer.spec.paced for racer in self.racers)
        measured = _("measured on paced devices") if paced else _("measured")
        if replayed:
            return _("{measured}, replay of this race").format(measured=measured)
        if phase == "ready":
            return _("to be run live")
        if phase == "held":
            return _("{measured}, held").format(measured=measured)
        return _("{measured}, live").format(measured=measured)
