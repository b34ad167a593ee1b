"""1F1B-flush (DAPPLE, arXiv 2007.01045; PipeDream-Flush, arXiv 2006.09503): GPipe's bubble, fewer activations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule, one_forward_one_backward

__all__ = ["OneFOneB"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneFOneB(Schedule):
    """Consistent weights, a bubble of (N-1)/(m+N-1), and at most N - s activations held at stage s."""

    name = "1f1b"
    summary = "one forward, one backward, drained at the end of every window (flush)"
    flushes = True

    def ops(self, rank: int) -> Iterator[Op]:
        for update in range(self.updates):
            yield from one_forward_one_backward(rank, self.window_microbatches(update), self.stages - rank)
            yield Op(rank, "U", update)

    def in_flight(self, stage: int) -> int:
        return min(self.window, self.microbatches, self.stages - stage)

    def ideal_bubble_fraction(self) -> float:
        # One fill and drain per window, the shorter last one included.
        return 1 - self.microbatches / (self.microbatches + self.updates * (self.stages - 1))
