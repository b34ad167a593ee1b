"""PipeDream-2BW (arXiv 2006.09503): asynchronous 1F1B with two copies of the weights and a delay of one update."""

from __future__ import annotations

import dataclasses

from paci_lab.errors import InputError
from paci_lab.schedules.pipedream import PipeDream

__all__ = ["PipeDream2BW"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipeDream2BW(PipeDream):
    """No bubble after the fill; the weights before the last update are kept beside the live ones.

    Version rule (double-buffered weight updates, section 3.1): micro-batches of window j are forward and backward on
    the weights after j-1 updates, on every stage the same, so that W(t+1) = W(t) - rate * gradient(W(t-1)): a delay of
    exactly one update everywhere (none in window 0). It needs a window of at least N micro-batches; with fewer, weights
    would be asked for before they are made. Copies of the weights: 2 on every stage.
    """

    name = "pipedream-2bw"
    summary = "asynchronous 1F1B with double-buffered weights: every gradient one update late"
    weight_policy = "double-buffered"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < self.stages:
            raise InputError(
                "window",
                self.window,
                f"a whole number from {self.stages}, the number of stages, for schedule {self.name!r}",
                f"use window {self.stages}, or schedule pipedream",
            )

    def version_used(self, microbatch: int, updates: int) -> int:
        return max(self.window_of(microbatch) - 1, 0)
