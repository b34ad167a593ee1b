"""ZB-H2 (Zero Bubble Pipeline Parallelism, arXiv 2401.10241): no bubble between windows, for twice the activations."""

from __future__ import annotations

import dataclasses

from paci_lab.schedules.zb_h1 import ZBH1

__all__ = ["ZBH2"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZBH2(ZBH1):
    """Consistent weights; more forwards fill the pipeline, and the W put off fill its end.

    Idle time per update is (N-1)(F+I-2W) where that is not negative, for windows of at least 2N-1 micro-batches: none
    with I = W = F. A stage begins its next window while the ones after it still finish theirs, so the stream fills and
    drains once. Activations: 2N-1 on every stage.
    """

    name = "zb-h2"
    summary = "ZB-H1 with more forwards ahead: no bubble, about twice the activations (flush)"

    def forwards_ahead(self, stage: int) -> int:
        return 2 * (self.stages - stage) - 1

    def weights_behind(self, stage: int) -> int:
        return 2 * stage

    def ideal_bubble_fraction(self) -> float:
        """With I = W = F, and windows of at least 2N-1 micro-batches."""
        return (self.stages - 1) / (3 * self.microbatches + self.stages - 1)
