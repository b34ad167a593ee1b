"""PipeDream (arXiv 1806.03377): asynchronous 1F1B whose backward uses exactly the weights of its forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule, never_drained

__all__ = ["PipeDream"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipeDream(Schedule):
    """No bubble after the fill; every version of the weights that a micro-batch in flight has seen is stashed.

    Version rule (weight stashing, section 3.3): a forward on a stage takes the newest weights there, and the backward
    of the same micro-batch takes the same ones; two stages may use different versions for one micro-batch (no vertical
    sync). The gradient so computed is applied N-1-s updates late when every micro-batch is followed by an update
    (window 1, as published), ceil((N-1-s)/window) in general. Copies of the weights at stage s, the live one included:
    N-s with window 1, 1 + ceil((N-1-s)/window) in general.
    """

    name = "pipedream"
    summary = "asynchronous 1F1B with weight stashing: a backward uses its forward's weights"
    flushes = False
    weight_policy = "stashed"

    def ops(self, rank: int) -> Iterator[Op]:
        yield from never_drained(self, rank)

    def in_flight(self, stage: int) -> int:
        return min(self.microbatches, self.stages - stage)

    def version_used(self, microbatch: int, updates: int) -> int:
        return updates

    def gap_bound(self, stage: int) -> int:
        return -(-(self.stages - 1 - stage) // self.window)

    def ideal_bubble_fraction(self) -> float:
        # The pipeline fills and drains once in the whole stream.
        return (self.stages - 1) / (self.microbatches + self.stages - 1)
