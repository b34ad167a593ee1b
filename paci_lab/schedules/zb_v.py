"""ZB-V (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6; V-ZB in arXiv 2405.15362): no bubble between
windows with the activations of 1F1B, from two stages on every rank in the shape of a V."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from paci_lab.errors import InputError
from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule, most_held

__all__ = ["ZBV"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZBV(Schedule):
    """Consistent weights; rank r holds stages r and 2R-1-r, so a micro-batch goes down the ranks and up again.

    The rank that a micro-batch begins on is the one it ends on, so its backward comes back soon and its activations
    leave early: R micro-batches of a whole rank, held until W, on every rank the same; 1F1B holds as many on its first.
    With F = I = W and windows of at least 2R-1 micro-batches no rank idles between its first operation and its last; a
    rank begins its next window while others still finish theirs, so the stream fills and drains once. Unequal times
    leave a bubble, because this order is fixed; the source has a search for those. Messages: twice those of 1F1B, the
    middle's stay on the last rank.
    """

    chunks: ClassVar[int] = 2

    name = "zb-v"
    summary = "split backwards, two stages per rank in a V: no bubble, the activations of 1F1B (flush)"
    flushes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages % 2:
            allowed = f"an even number for schedule {self.name!r}, which holds two on every rank"
            raise InputError("stages", self.stages, allowed, f"try stages {self.stages + 1}")

    @property
    def ranks(self) -> int:
        return self.stages // 2

    def stages_of(self, rank: int) -> tuple[int, ...]:
        return (rank, self.stages - 1 - rank)

    def rank_of(self, stage: int) -> int:
        return min(stage, self.stages - 1 - stage)

    def ops(self, rank: int) -> Iterator[Op]:
        for update in range(self.updates):
            window = self.window_microbatches(update)
            done: Counter[tuple[int, str]] = Counter()
            # A window that is too short for the V is laid out as one that is not, of which only a part exists.
            for stage, kind in self._plan(rank, max(len(window), 2 * self.ranks - 1)):
                if (number := done[stage, kind]) < len(window):
                    yield Op(stage, kind, window[number])
                done[stage, kind] += 1
            for stage in self.stages_of(rank):
                yield Op(stage, "U", update)

    def _plan(self, rank: int, count: int) -> Iterator[tuple[int, str]]:
        """Stage and kind of every operation over a window of `count` micro-batches (figure 6 of the source)."""
        (down, up), after = self.stages_of(rank), self.ranks - rank
        yield from [(down, "F")] * (2 * after - 1)
        yield from [(up, "F"), (down, "F")] * rank
        yield from [(up, "F"), (up, "I"), (up, "W")] * after
        begun = 2 * self.ranks - 1 - rank
        for turn in range(count - self.ranks):
            if begun + turn < count:
                yield down, "F"
            yield from ((down, "I"), (down, "W"), (up, "F"), (up, "I"), (up, "W"))
        yield from [(down, "I"), (up, "I")] * rank
        yield from [(down, "I"), (down, "W")] * after
        yield from [(up, "W")] * rank
        yield from [(down, "W")] * rank

    def in_flight(self, stage: int) -> int:
        return _held(self.shortened(self.window), stage)

    def ideal_bubble_fraction(self) -> float:
        """With I = W = F, and windows of at least 2R-1 micro-batches."""
        return (self.ranks - 1) / (6 * self.microbatches + self.ranks - 1)


@functools.lru_cache
def _held(schedule: Schedule, stage: int) -> int:
    return most_held(schedule, stage)
