"""Compare specs fairly: runs in turns and paired by round, so that a machine that slows down slows all of them."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError, RunFailed
from paci_lab.runtime.launch import Run, launch
from paci_lab.runtime.resolve import resolve
from paci_lab.schedules import ScheduleError
from paci_lab.spec import TrainSpec

__all__ = ["Comparison", "Ratio", "compare", "paired_ratio"]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Median of paired ratios with a 95 % bootstrap interval over the `pairs` rounds."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        if self.pairs < 2:
            return f"{self.median:.2f}×"
        return f"{self.median:.2f}× [{self.low:.2f}–{self.high:.2f}]"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Results by name, one per round and in the order of the rounds; `failures` says of each peer that could not run
    why, and has no results for it."""

    results: Mapping[str, list[dict[str, Any]]]
    paths: Mapping[str, list[Path]]
    failures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def values(self, name: str, field: str) -> list[float]:
        """One field of every round; None where a run has none, such as the time to a target it missed."""
        return [result[field] for result in self.results[name]]

    def median(self, name: str, field: str) -> float | None:
        """Median over the rounds; None when any run has no value."""
        values = self.values(name, field)
        return None if any(v is None for v in values) else statistics.median(values)

    def spread(self, name: str, field: str) -> tuple[float, float] | None:
        """Smallest and largest over the rounds."""
        values = self.values(name, field)
        return None if any(v is None for v in values) else (min(values), max(values))

    def speedup(self, name: str, over: str, field: str) -> Ratio | None:
        """How many times less of `field` (a time) `name` takes than `over`; None when a run of either has no value."""
        pairs = list(zip(self.values(over, field), self.values(name, field), strict=True))
        return None if any(None in pair for pair in pairs) else paired_ratio(pairs)


def paired_ratio(pairs: Sequence[tuple[float, float]], *, resamples: int = 2000) -> Ratio:
    """Median of a/b over the pairs (a, b), with a percentile bootstrap of that median.

    With few pairs the interval says little more than the smallest and largest ratio; `pairs` says how many there were.
    """
    ratios = [a / b for a, b in pairs]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(resamples))
    low, high = medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def compare(
    specs: Mapping[str, TrainSpec],
    *,
    rounds: int,
    folder: Path,
    follow: Callable[[Run, str], dict[str, Any]] = lambda run, name: run.wait(),
) -> Comparison:
    """Run every spec once per round, the next round in the opposite order, each round with its own seed.

    Args:
        specs: by name; the name becomes the folder's, with the round's number from the second round on.
        rounds: how often.
        folder: where the run directories go.
        follow: waits for a run and returns its result; called with the run and its name.

    Everything is refused before the first run starts. A peer (a spec of another engine) that cannot run does not end
    the comparison: what it said is kept as its failure, whether at the start or in the middle. A partition found by
    measuring is found once and used by all runs of the same model and stages: otherwise two of them could train
    differently cut models.
    """
    partitions: dict[tuple, list[int]] = {}
    ready: dict[str, TrainSpec] = {}
    failures: dict[str, str] = {}
    for name, spec in specs.items():
        cut = (spec.model, spec.context, spec.stages, spec.microbatch_size)
        if spec.partition == "auto" and cut in partitions:
            spec = spec.replace(partition=partitions[cut])
        try:
            ready[name] = resolve(spec)
        except (InputError, ScheduleError) as error:
            if spec.engine == "paci-lab":
                raise
            failures[name] = str(error)
            continue
        partitions[cut] = ready[name].partition
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in specs}
    paths: dict[str, list[Path]] = {name: [] for name in specs}
    for round_ in range(rounds):
        for name in list(ready) if round_ % 2 == 0 else list(reversed(ready)):
            spec = ready[name].replace(seed=ready[name].seed + round_)
            run = launch(spec, folder / (name if round_ == 0 else f"{name}-{round_ + 1}"))
            paths[name].append(run.path)
            try:
                results[name].append(follow(run, name))
            except RunFailed as error:
                if spec.engine == "paci-lab":
                    raise
                failures[name] = str(error)
                results[name].clear()
                del ready[name]
    return Comparison(results, paths, failures)
