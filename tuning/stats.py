"""Few numbers, honestly: a ratio with its interval, and what may be said about it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

__all__ = ["ENOUGH_PAIRS", "LogRatio", "interval_of_median", "log_ratio"]

ENOUGH_PAIRS = 4
"""Fewer pairs settle nothing: a bootstrap interval of two or three numbers leaves out 1 all too easily."""

_RESAMPLES = 4000


@dataclasses.dataclass(frozen=True)
class LogRatio:
    """How many times longer a takes than b: exp of the median of log(a/b), with a 95 % bootstrap interval.

    Attributes:
        ratio, low, high: factors; above 1 means that b is faster.
        pairs: how many pairs it rests on.
    """

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def significant(self) -> bool:
        """True when there are enough pairs and the interval leaves out 1."""
        return self.pairs >= ENOUGH_PAIRS and not self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× [{self.low:.2f}–{self.high:.2f}]"


def log_ratio(pairs: Sequence[tuple[float, float]]) -> LogRatio:
    """The ratio a/b over pairs (a, b) of times above 0; at least one pair.

    With few pairs the interval says little more than the smallest and the largest ratio.
    """
    logs = [math.log(a / b) for a, b in pairs]
    low, high = _bootstrap(logs)
    return LogRatio(math.exp(statistics.median(logs)), math.exp(low), math.exp(high), len(pairs))


def interval_of_median(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the median with its 95 % bootstrap interval; at least one value."""
    return (statistics.median(values), *_bootstrap(values))


def _bootstrap(values: Sequence[float]) -> tuple[float, float]:
    draw = np.random.default_rng(0).integers(0, len(values), size=(_RESAMPLES, len(values)))
    medians = np.sort(np.median(np.asarray(values)[draw], axis=1))
    return float(medians[int(0.025 * _RESAMPLES)]), float(medians[int(0.975 * _RESAMPLES) - 1])
