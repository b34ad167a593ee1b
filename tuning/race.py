"""What to try next, from what has been tried: a pure function, so that every controller comes to the same answer."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tuning.side import Point, Side, point_key

__all__ = ["CONTENDERS", "CRASHED", "STOPPED", "Seen", "contenders", "front", "lighter", "median_value", "next_point"]

CRASHED = ("failed", "hung")
"""Outcomes that may have nothing to do with the point; running out of memory has."""

STOPPED = ("capped", "pruned", "missed")
"""Outcomes that a slow point and an unlucky seed have in common."""

CONTENDERS = 3
"""So many of the best points of a side get further seeds."""

_SAME_MEMORY = 0.01
"""Peaks that differ by less are the same: the process memory of two equal runs differs by a few tenths of a percent."""

_Spot = TypeVar("_Spot")

_SAMPLED_FIRST = 4
"""In a sampled space: new points before the first repetition, and between two of them."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A trial of one side, as far as deciding what comes next needs it; `state` is Optuna's."""

    number: int
    params: Point
    state: str
    value: float | None = None
    feasible: bool = False
    status: str = ""
    wall_s: float = 0.0
    training_s: float = 0.0
    memory_bytes: float = 0.0
    controller: str = ""
    job: str = ""

    @property
    def counts(self) -> bool:
        """False for a trial that is lost, and for a proposal that nobody has taken yet."""
        return self.state in ("COMPLETE", "RUNNING")


def next_point(side: Side, seen: Sequence[Seen], *, seeds: int, pareto: bool = False) -> Point | None | str:
    """The next point to run; "sample" where the sampler should propose one; None when the race is over.

    An enumerable side: all points once, a second chance for one whose run failed, then further seeds to the contenders.
    A larger one: theory's points, then samples, with a further seed for a contender now and then.
    With `pareto`, who needs least memory for its speed is a contender too.
    """
    by_point = _by_point(seen)
    ahead = side.points() if side.enumerable else [point for point, _ in side.first()]
    for params in ahead:
        if point_key(params) not in by_point:
            return params
    if side.enumerable:
        for trials in by_point.values():
            if len(trials) == 1 and trials[0].status in CRASHED:
                return dict(trials[0].params)
    due = [trials for trials in contenders(seen, pareto=pareto) if len(trials) < seeds]
    again = dict(min(due, key=len)[0].params) if due else None
    if side.enumerable:
        return again
    new, repeats = len(by_point), sum(len(trials) - 1 for trials in by_point.values())
    return again if again is not None and new >= _SAMPLED_FIRST * (repeats + 1) else "sample"


def contenders(seen: Sequence[Seen], *, pareto: bool = False) -> list[list[Seen]]:
    """The trials of the best few points, best first; with `pareto`, then those of the rest of the front.

    A point whose runs were all stopped or missed the target may be among them, by its penalties: with one seed each,
    the best point can have had the worst luck.
    """
    scored = []
    for trials in _by_point(seen).values():
        # Another controller writes how a trial ended before its value.
        if any(t.value is not None and (t.feasible or t.status in STOPPED) for t in trials):
            scored.append((median_value(trials), trials))
    scored.sort(key=lambda item: item[0])
    best = [trials for _, trials in scored[:CONTENDERS]]
    if pareto:
        reached = [(value, trials) for value, trials in scored if any(t.feasible for t in trials)]
        peaks = {id(trials): statistics.median(t.memory_bytes for t in trials if t.feasible) for _, trials in reached}
        best += [t for _, t in front(reached, lambda spot: (spot[0], peaks[id(spot[1])])) if t not in best]
    return best


def front(spots: Sequence[_Spot], figures: Callable[[_Spot], tuple[float, float]]) -> list[_Spot]:
    """Those that no other beats in both figures, (seconds, bytes): fastest first, least memory last."""
    found: list[_Spot] = []
    for spot in sorted(spots, key=figures):
        if not found or lighter(figures(spot)[1], figures(found[-1])[1]):
            found.append(spot)
    return found


def lighter(one: float, other: float) -> bool:
    """True when `one` is less memory than `other` by more than two equal runs may differ."""
    return one < (1 - _SAME_MEMORY) * other


def median_value(trials: Sequence[Any]) -> float:
    """Median over the finished trials of one point, of which one at least has not crashed.

    A miss counts with its penalty. One run that failed or hung may have been chance and is left out; two count.
    """
    done = [t for t in trials if t.value is not None]
    crashed = [t for t in done if t.status in CRASHED]
    return statistics.median(
        t.value for t in (done if len(crashed) > 1 else [t for t in done if t.status not in CRASHED])
    )


def _by_point(seen: Sequence[Seen]) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {}
    for trial in seen:
        if trial.counts:
            found.setdefault(point_key(trial.params), []).append(trial)
    return found
