"""What is seen of a training loop from outside: losses, gradients, learning rates, and the order of its operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from paci_lab.schedules import Op
from paci_lab.schedules.validate import inputs_of
from paci_lab.trace import Trace, TraceEvent

__all__ = ["EVALUATION", "NOMINAL_MS", "Seen", "timeline"]

NOMINAL_MS = {"F": 1.0, "B": 2.0, "U": 1.0}
"""Milliseconds drawn for an operation with as many tokens as most have. What is seen is an order, and no times."""

EVALUATION = 1000
"""A forward of an evaluation has no backward; evaluation k is drawn as micro-batch EVALUATION + k."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """One training, as numbers that pass through JSON.

    Args:
        losses: after each update, on symbols that nothing is trained on: nats per symbol.
        gradients: what each update's step found in `.grad`, all parameters as one row: shape (updates, parameters).
        rates: learning rate of each update.
        tokens: targets that count in each micro-batch.
        evaluations: forwards without a backward.
        computed_in: type of the numbers that the forwards gave, "float32".
        events: fields of `TraceEvent`, a list for each event.
        source: where the times of the events come from, in words.
        stages: of the pipeline, 1 for a plain loop.
        stuck: who waits for whom at the end, as a sentence; "" when the training came to its end.
    """

    losses: list[float]
    gradients: np.ndarray
    rates: list[float]
    tokens: list[int]
    evaluations: int
    events: list[list[Any]]
    source: str
    computed_in: str
    stages: int = 1
    stuck: str = ""

    @property
    def norms(self) -> list[float]:
        """Length of each update's gradient."""
        return np.linalg.norm(self.gradients, axis=1).tolist()

    def trace(self) -> Trace:
        return Trace([TraceEvent(*event) for event in self.events], source=self.source, stages=self.stages)

    def values(self) -> dict[str, Any]:
        """As numbers, texts, lists and dicts."""
        return {**dataclasses.asdict(self), "gradients": self.gradients.tolist()}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Seen:
        """What `values` gave."""
        rows = values["gradients"]
        return cls(**{**values, "gradients": np.array(rows, dtype=np.float64).reshape(len(rows), -1 if rows else 0)})


def timeline(order: Sequence[tuple[int, str, int, float]], *, window: int, stages: int = 1) -> list[list[Any]]:
    """Events for operations (stage, kind, number, length in nominal units) that happened in this order.

    Each begins when its stage is free and what it needs is there, as in the simulator; see `NOMINAL_MS`.
    """
    free, versions = [0.0] * stages, [0] * stages
    made: dict[tuple[int, str, int], float] = {}
    events = []
    for stage, kind, number, length in order:
        needed = inputs_of(Op(stage, kind, number), stages)[1]
        start = max(free[stage], made.get(needed, 0.0) if needed else 0.0)
        end = start + NOMINAL_MS[kind] * length * 1e6
        update = number if kind == "U" else min(number // window, versions[stage])
        events.append([stage, stage, kind, number, round(start), round(end), versions[stage], update])
        versions[stage] += kind == "U"
        free[stage] = made[stage, "I" if kind == "B" else kind, number] = end
    return events
