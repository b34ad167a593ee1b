"""Watch one trial through its run directory, and stop it when there is nothing more to learn from it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tuning.launchers import Job

__all__ = ["Ended", "Grid", "Limits", "watch"]

_TICK_S = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """When a trial is stopped.

    Args:
        target_loss: where it ends by itself.
        grid_s: training time between two points of the grid on which trials are compared.
        hang_s: longest silence of a running trial once its first operation is done.
        start_s: longest time from running to its first operation.
    """

    target_loss: float
    grid_s: float
    hang_s: float
    start_s: float = 180.0


class Ended(NamedTuple):
    """The end of a trial.

    Attributes:
        how: "ended" (by itself, well or badly), "capped", "pruned" or "hung".
        why: in words.
        waited_s: for its turn, which counts for nothing.
    """

    how: str
    why: str
    waited_s: float


class Grid:
    """Validation loss at whole multiples of `grid_s` of training time, interpolated between measured points.

    Trials evaluate at different moments; a grid of training time (not of updates) makes them comparable.
    """

    def __init__(self, grid_s: float) -> None:
        self.grid_s, self._before, self._next = grid_s, None, 1

    def add(self, time_s: float, loss: float) -> list[tuple[int, float]]:
        """New (step, loss) pairs that a further measured point gives; points come in order of time."""
        found = []
        while self._next * self.grid_s <= time_s:
            at = self._next * self.grid_s
            if self._before is not None:  # nothing is known before the first evaluation
                t, was = self._before
                found.append((self._next, was + (loss - was) * (at - t) / (time_s - t) if time_s > t else loss))
            self._next += 1
        self._before = (time_s, loss)
        return found


class _Lines:
    """Complete new lines of a file that another process appends to, and whether it has grown."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def rows(self) -> list[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                text = file.read()
        except OSError:  # not there yet
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        return [json.loads(line) for line in text.splitlines()]


def watch(
    job: Job,
    run_dir: Path,
    limits: Limits,
    *,
    cap_s: Callable[[], float],
    prune: Callable[[int, float], bool],
    started: Callable[[], None] = lambda: None,
) -> Ended:
    """Until the trial has ended.

    Args:
        cap_s: the training time after which the trial is stopped; asked again for every evaluation, as it may fall.
        prune: told every new (step, loss) of the grid; True stops the trial.
        started: called once, when the run directory is there.

    Decisions on the training time are made on evaluations alone: one that lags behind must not cost a trial the target
    that it has reached already.
    """
    metrics, grid = _Lines(run_dir / "metrics.jsonl"), Grid(limits.grid_s)
    told, size, cap = False, -1, cap_s()
    began = time.monotonic()
    running_since = spoke = None

    def end(how: str, why: str) -> Ended:
        if how != "ended":
            job.stop()
        return Ended(how, why, (running_since or time.monotonic()) - began)

    while True:
        state = job.state()  # asked before reading, so that nothing written at the end is missed
        if not told and (run_dir / "spec.toml").exists():
            told = True
            started()
        news = metrics.rows()
        for row in news:
            if "val_loss" in row:
                if row["val_loss"] <= limits.target_loss:
                    continue
                cap = cap_s()
                if row["time_s"] > cap:
                    return end("capped", f"after {row['time_s']:.1f} s of training, past the limit of {cap:.1f} s")
                # All points are told before one of them can stop the trial: a list, not a generator.
                if any([prune(step, loss) for step, loss in grid.add(row["time_s"], row["val_loss"])]):
                    return end("pruned", f"after {row['time_s']:.1f} s of training, too far behind the best")
            elif row["time_s"] > 2 * cap:
                return end("capped", f"after {row['time_s']:.1f} s of training, while evaluations lag behind")
        if state == "ended":
            return end("ended", "")
        now = time.monotonic()
        if state == "waiting" and spoke is not None:
            spoke = now  # suspended by its scheduler: its silence does not count
        if state == "running":
            running_since = running_since or now
            grown = _size(run_dir)
            if grown != size:
                size, spoke = grown, now if grown else None
            if spoke is None and now - running_since > limits.start_s:
                return end("hung", f"no operation within {limits.start_s:.0f} s of its start")
            if spoke is not None and now - spoke > limits.hang_s:
                return end("hung", f"no progress for {limits.hang_s:.0f} s")
        if not news:
            time.sleep(_TICK_S)


def _size(run_dir: Path) -> int:
    """Bytes of what ranks and evaluator have said: it grows as long as anybody makes progress."""
    total = 0
    for path in (run_dir / "metrics.jsonl", *(run_dir / "updates").glob("*.jsonl")):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
