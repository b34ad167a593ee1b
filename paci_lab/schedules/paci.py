"""PACI (arXiv 2606.07881): asynchronous 1F1B that never flushes; every stage steps after each window on its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from paci_lab.errors import InputError
from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule, never_drained

__all__ = ["PACI", "check_slack", "share_of_slack"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PACI(Schedule):
    """No bubble after the fill, one copy of the weights, and a version gap that the window bounds.

    Window 1 is naive asynchronous 1F1B.

    Args:
        slack: forwards that stage 0 admits beyond its N unresolved ones; the stages after it get a share that falls
            linearly to none at the last. Slack hides message latency and costs activations and version gap, whose bound
            becomes ceil((N-1-s+share)/window). A share that is the same on every stage would hide nothing: in a fixed
            order two neighbours bridge a latency only when the earlier one is ahead by more than one micro-batch, so
            slack N-1 hides any latency up to (F+B)/2 and less slack hides a part of it.
    """

    slack: int = 0

    name = "paci"
    summary = "asynchronous 1F1B, a local update after every window, never drained"
    flushes = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slack(self.slack)

    def ops(self, rank: int) -> Iterator[Op]:
        yield from never_drained(self, rank)

    def in_flight(self, stage: int) -> int:
        return min(self.microbatches, self.stages - stage + self.slack_of(stage))

    def slack_of(self, stage: int) -> int:
        """The share of the slack that `stage` gets: slack * (N-1-s)/(N-1), rounded."""
        return share_of_slack(self.slack, stage, self.stages)

    def excerpt(self) -> Schedule:
        window = min(self.window, max(512, 2 * self.stages))
        length = 4 * window + 4 * self.stages + 2 * self.slack
        return dataclasses.replace(self, window=window).shortened(length)

    def gap_bound(self, stage: int) -> int:
        return -(-(self.stages - 1 - stage + self.slack_of(stage)) // self.window)

    def ideal_bubble_fraction(self) -> float:
        # The pipeline fills and drains once in the whole stream.
        return (self.stages - 1) / (self.microbatches + self.stages - 1)


def check_slack(slack: int) -> None:
    """Raise InputError for what is no slack."""
    if isinstance(slack, bool) or not isinstance(slack, int) or slack < 0:
        raise InputError("slack", slack, "a whole number from 0", "use slack 0 for the paper's PACI")


def share_of_slack(slack: int, place: int, places: int) -> int:
    """What place 0 .. places-1 of a pipeline gets of the slack: all of it at the first, none at the last."""
    after = places - 1
    return (2 * slack * (after - place) + after) // (2 * after) if after else 0
