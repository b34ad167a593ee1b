"""The clock and the curves: short runs of real ranks on paced devices, and exact replays."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path

from paci_lab.claims.plan import Size, replayed_specs, timed_specs, times
from paci_lab.claims.published import STAGES
from paci_lab.claims.replays import replay_all
from paci_lab.compare import compare
from paci_lab.runtime.launch import Run
from paci_lab.runtime.rundir import RunDir
from paci_lab.schedules import build_schedule
from paci_lab.simulate import Costs, simulate

__all__ = ["Clock", "clocks", "curves", "simulated_seconds"]


@dataclasses.dataclass(frozen=True)
class Clock:
    """How long updates take.

    Args:
        first_s: until the first update has been made on every stage, which fills the pipeline.
        each_s: from then on, of every update.
        rounds: `each_s` of every round.
        overruns: operations that took longer than stated.
        folders: the run directories.
    """

    first_s: float
    each_s: float
    rounds: list[float]
    overruns: int
    folders: list[str]

    def seconds(self, updates: float) -> float:
        """Until `updates` have been made."""
        return self.first_s + max(updates - 1, 0) * self.each_s


def clocks(size: Size, folder: Path, *, follow: Callable[[Run, str], dict]) -> dict[str, Clock]:
    """Time every row of the paper's table, in turns; medians over the rounds."""
    found = compare(timed_specs(size), rounds=size.rounds, folder=folder, follow=follow)
    measured = {}
    for name, paths in found.paths.items():
        runs = [[row["time_s"] for row in RunDir(path).metrics()] for path in paths]
        each = [statistics.median(b - a for a, b in zip(ends, ends[1:], strict=False)) for ends in runs]
        measured[name] = Clock(
            first_s=statistics.median(ends[0] for ends in runs),
            each_s=statistics.median(each),
            rounds=each,
            overruns=sum(sum(result["pace_overruns"]) for result in found.results[name]),
            folders=[path.name for path in paths],
        )
    return measured


def curves(
    size: Size, folder: Path, *, said: Callable[[str], None] = lambda name: None
) -> dict[str, list[tuple[float, float]]]:
    """Validation losses over the share of tokens seen, of every run that is planned."""
    return replay_all(dict(replayed_specs(size)), folder, said=said)


def simulated_seconds(schedule: str, batch: int, window: int, stages: int = STAGES) -> float:
    """Of an update in the steady part, by simulation, when the paper's micro-batch of 16 sequences takes a second."""
    updates = 6 + -(-4 * stages // window)
    stated = times(batch, window, 1000.0)
    costs = Costs(forward_ms=stated["pace_forward_ms"], backward_ms=stated["pace_backward_ms"])
    built = build_schedule(schedule, stages=stages, window=window, microbatches=updates * window)
    ends = [event.end_ns for event in simulate(built, costs).of_kind("U") if event.stage == 0]
    return (ends[-2] - ends[1]) / (len(ends) - 3) / 1e9
