"""`Drained`: any schedule, emptied after every so many updates, so that a checkpoint can be made there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from paci_lab.errors import InputError
from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule

__all__ = ["Drained", "drained"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drained(Schedule):
    """Runs `inner` on one segment of the stream after the other, as if each were a stream of its own.

    A stage begins a segment when it has made every update of the one before and holds no micro-batch: what it is then
    fits into a checkpoint. Micro-batches and updates are numbered through. Weight policies begin anew in every segment,
    with the weights as they are. Operations of a flush schedule are those of `inner` itself.

    Args:
        inner: the schedule over the whole stream.
        every: updates per segment, counted from the start of the stream.
        start: updates that a checkpoint holds already; the stream goes on behind them.
    """

    inner: Schedule
    every: int
    start: int = 0

    flushes = True  # said for the class; every instance says what its inner schedule does

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise InputError("checkpoint_every", self.every, "a whole number of updates from 1", "try 100")
        for segment in {len(segment): segment for segment in self._first_segments()}.values():
            self._over(segment)  # refuses what the inner schedule cannot run as a stream of its own
        object.__setattr__(self, "name", self.inner.name)
        object.__setattr__(self, "summary", self.inner.summary)
        object.__setattr__(self, "flushes", self.inner.flushes)
        object.__setattr__(self, "weight_policy", self.inner.weight_policy)

    # -- segments -------------------------------------------------------------------------------------------------
    def segments(self) -> Iterator[range]:
        """Updates of every segment, in order."""
        start = self.start
        while start < self.updates:
            stop = min((start // self.every + 1) * self.every, self.updates)
            yield range(start, stop)
            start = stop

    def _first_segments(self) -> list[range]:
        """One of every length that a segment has: the first may be cut by `start`, the last by the end."""
        last = max(self.start, (self.updates - 1) // self.every * self.every)
        second = (self.start // self.every + 1) * self.every
        found = [range(self.start, min(second, self.updates)), range(last, self.updates)]
        if second + self.every <= self.updates:
            found.append(range(second, second + self.every))
        return [segment for segment in found if segment]

    def _microbatches(self, segment: range) -> int:
        return min(segment.stop * self.window, self.microbatches) - segment.start * self.window

    def _over(self, segment: range) -> Schedule:
        return dataclasses.replace(self.inner, microbatches=self._microbatches(segment))

    # -- what the interpreters ask --------------------------------------------------------------------------------
    @property
    def first_update(self) -> int:
        return self.start

    @property
    def ranks(self) -> int:
        return self.inner.ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        return self.inner.stages_of(rank)

    def rank_of(self, stage: int) -> int:
        return self.inner.rank_of(stage)

    def ops(self, rank: int) -> Iterator[Op]:
        for segment in self.segments():
            before = segment.start * self.window
            for stage, kind, number in self._over(segment).ops(rank):
                yield Op(stage, kind, number + (segment.start if kind == "U" else before))

    def in_flight(self, stage: int) -> int:
        return max((self._over(segment).in_flight(stage) for segment in self._first_segments()), default=0)

    def version_used(self, microbatch: int, updates: int) -> int | None:
        begun = max(self.window_of(microbatch) // self.every * self.every, self.start)
        used = self.inner.version_used(microbatch - begun * self.window, updates - begun)
        return None if used is None else used + begun

    def gap_bound(self, stage: int) -> int:
        return min(self.inner.gap_bound(stage), self.every - 1)  # nothing crosses a drained point

    def ideal_bubble_fraction(self) -> float:
        if self.flushes:  # draining is what it does anyway
            return dataclasses.replace(
                self.inner, microbatches=self._microbatches(range(self.start, self.updates))
            ).ideal_bubble_fraction()
        # Stage 0 is the first to begin a segment and the last to end it, so their times add up.
        work = total = 0.0
        for segment in self.segments():
            share, length = self._over(segment).ideal_bubble_fraction(), self._microbatches(segment)
            work, total = work + length, total + length / (1 - share)
        return 1 - work / total if total else 0.0

    def excerpt(self) -> Schedule:
        """Two segments, each as much of one as shows every fault it can have."""
        one = self._over(range(0, min(self.every, self.updates))).excerpt()
        if one.microbatches < one.window:
            return one
        every = one.microbatches // one.window
        length = 2 * every * one.window if self.updates > self.every else every * one.window
        return drained(dataclasses.replace(one, microbatches=length), every=every)

    def shortened(self, microbatches: int) -> Schedule:
        length = min(microbatches, self.microbatches)
        return dataclasses.replace(self, microbatches=length, inner=self.inner.shortened(length))


def drained(schedule: Schedule, *, every: int | None = None, start: int = 0) -> Schedule:
    """`schedule` drained after every `every` updates (None: as it is drained already, or not before its end), going on
    behind `start` updates."""
    if isinstance(schedule, Drained):
        return dataclasses.replace(schedule, start=start)
    if every is None and start == 0:
        return schedule
    return Drained(
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        window=schedule.window,
        inner=schedule,
        every=schedule.updates if every is None else every,
        start=start,
    )
