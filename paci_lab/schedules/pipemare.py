"""PipeMare's learning rates (arXiv 1910.05124): asynchronous 1F1B whose late gradients take smaller steps at first."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from paci_lab.schedules.paci import PACI

__all__ = ["PipeMare"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipeMare(PACI):
    """PACI's order and live weights; a stage divides its learning rate by its delay at first, later no more.

    The rate of stage s is the run's, times tau_s^-p (technique T1 of the source). tau_s is the mean delay of its
    gradients in updates, (N-1-s)/window in this order; p falls linearly from 1 to 0 over the first `ANNEALED` share of
    the run. A delay below one update counts as one, so with windows of N-1 micro-batches or more every rate is the
    run's and the numbers are PACI's. The idea is that a step on a gradient that is tau updates late is stable up to a
    size of about 1/tau, and that this matters while the loss is steep.

    The source also corrects the backward's weights by a moving average of their changes (T2, for a further copy of the
    weights) and may begin with synchronous updates (T3): both are left out here, and so is its finer pipeline, whose
    delays are 2(N-s)-1 slots because a forward and a backward run at once on every stage. The length of the annealing
    is a choice of ours.
    """

    ANNEALED: ClassVar[float] = 0.25

    name = "pipemare"
    summary = "asynchronous 1F1B on live weights, with learning rates divided by the delay at first"

    def learning_rate_factor(self, stage: int, share: float) -> float:
        delay = (self.stages - 1 - stage + self.slack_of(stage)) / self.window
        return max(delay, 1.0) ** -max(1.0 - share / self.ANNEALED, 0.0)
