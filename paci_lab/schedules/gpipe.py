"""GPipe (arXiv 1811.06965): all forwards of a window, then all backwards, then the update."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule

__all__ = ["GPipe"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPipe(Schedule):
    """Consistent weights, a bubble of (N-1)/(m+N-1), and every activation of the window held at once."""

    name = "gpipe"
    summary = "all forwards, then all backwards, then the update (flush)"
    flushes = True

    def ops(self, rank: int) -> Iterator[Op]:
        for update in range(self.updates):
            # Backwards run in the order of the forwards, so that gradients add up in the order of plain accumulation.
            for kind in "FB":
                for microbatch in self.window_microbatches(update):
                    yield Op(rank, kind, microbatch)
            yield Op(rank, "U", update)

    def in_flight(self, stage: int) -> int:
        return min(self.window, self.microbatches)

    def ideal_bubble_fraction(self) -> float:
        # One fill and drain per window, the shorter last one included.
        return 1 - self.microbatches / (self.microbatches + self.updates * (self.stages - 1))
