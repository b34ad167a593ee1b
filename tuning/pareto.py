"""Time against memory: the points that no other beats in both."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from tuning.race import front
from tuning.side import point_key
from tuning.trial import Trial

__all__ = ["Spot", "front_words", "pareto_front"]


@dataclasses.dataclass(frozen=True)
class Spot:
    """What was measured of one point: medians over its runs that reached the target.

    Attributes:
        trial: one of its runs that reached the target.
        time_s: to the target.
        memory_bytes: peak of the fullest device.
        reached, runs: how many runs reached the target, of how many.
    """

    trial: Trial
    time_s: float
    memory_bytes: float
    reached: int
    runs: int


def pareto_front(trials: Sequence[Trial]) -> list[Spot]:
    """The front, fastest first and least memory last.

    Args:
        trials: of both sides; points that missed the target in more than half of their runs, or broke a memory limit,
            are no part of it.
    """
    points: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.value is not None:
            points.setdefault(trial.side + point_key(trial.params), []).append(trial)
    spots = []
    for group in points.values():
        good = [t for t in group if t.feasible]
        if 2 * len(good) < len(group) or any(t.constraints.get("memory", 0) > 0 for t in group):
            continue
        time_s, memory = statistics.median(t.value for t in good), statistics.median(t.memory_bytes for t in good)
        spots.append(Spot(min(good, key=lambda t: t.seed), time_s, memory, len(good), len(group)))
    return front(spots, lambda spot: (spot.time_s, spot.memory_bytes))


def front_words(front: Sequence[Spot], label: Callable[[Trial], str]) -> str:
    """The two ends of the front, by the medians of all runs; "" without one."""

    def told(spot: Spot) -> str:
        return f"median {spot.time_s:.1f} s, {spot.memory_bytes / 2**20:,.0f} MiB"

    if not front:
        return ""
    fastest, least = label(front[0].trial), label(front[-1].trial)
    if len(front) == 1:
        return f" Over all runs, {fastest} is the fastest ({told(front[0])}), and no other point needs less memory."
    between = f", {len(front) - 2} between them" if len(front) > 2 else ""
    return (
        f" Over all runs, {fastest} is the fastest ({told(front[0])}) and {least} the one with least memory "
        f"({told(front[-1])}){between}: choose with paci-tune apply --pick."
    )
