"""ZB-H1 (Zero Bubble Pipeline Parallelism, arXiv 2401.10241): 1F1B with the backward split, in about its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule

__all__ = ["ZBH1"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZBH1(Schedule):
    """Consistent weights; the stage before waits for I alone, and W fills what would be idle.

    The source calls I "B". Idle time per update is (N-1)(F+I-W) for W <= F and windows of at least N micro-batches; a
    W longer than F fills no more than F would, which leaves (N-1)I (found by simulation).
    Activations are held until W: N on every stage, the most that 1F1B holds on any. Every stage puts W off by as many
    micro-batches as 1F1B would hold fewer there than on stage 0 (section 2.2, figure 3).
    """

    name = "zb-h1"
    summary = "1F1B with the backward split in two, the second half where it would idle (flush)"
    flushes = True

    def forwards_ahead(self, stage: int) -> int:
        """Forwards before the first backward."""
        return self.stages - stage

    def weights_behind(self, stage: int) -> int:
        """Micro-batches by which W follows I."""
        return stage

    def ops(self, rank: int) -> Iterator[Op]:
        ahead, behind = self.forwards_ahead(rank), self.weights_behind(rank)
        for update in range(self.updates):
            window = self.window_microbatches(update)
            yield from (Op(rank, "F", m) for m in window[:ahead])
            for number, microbatch in enumerate(window):
                yield Op(rank, "I", microbatch)
                if number >= behind:
                    yield Op(rank, "W", microbatch - behind)
                yield from (Op(rank, "F", m) for m in window[number + ahead : number + ahead + 1])
            yield from (Op(rank, "W", m) for m in window[max(len(window) - behind, 0) :])
            yield Op(rank, "U", update)

    def in_flight(self, stage: int) -> int:
        return min(self.window, self.microbatches, self.forwards_ahead(stage) + self.weights_behind(stage))

    def ideal_bubble_fraction(self) -> float:
        """With I = W = F, and windows of at least N micro-batches."""
        work = 3 * self.microbatches
        return 1 - work / (work + self.updates * (self.stages - 1))
