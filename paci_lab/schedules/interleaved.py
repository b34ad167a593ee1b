"""Interleaved 1F1B (Megatron-LM, arXiv 2104.04473): every rank holds several smaller stages, and the bubble shrinks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from paci_lab.errors import InputError
from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule, most_held

__all__ = ["Interleaved"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interleaved(Schedule):
    """Consistent weights and a bubble of (R-1)/(mV+R-1) on R ranks with V chunks each, for V times the messages.

    Stage s lives on rank s mod R. Micro-batches go through in groups of R: a rank runs a group through its first chunk,
    then through its second, and so on, after a warm-up of 2(R-1-r) + (V-1)R forwards (section 2.2). As published, a
    window holds a multiple of R micro-batches.

    Args:
        chunks: V, stages on every rank; `stages` is R * V.
    """

    chunks: int = 2

    name = "interleaved"
    summary = "1F1B with several smaller stages on every rank, drained after every window (flush)"
    flushes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.chunks, bool) or not isinstance(self.chunks, int) or self.chunks < 2:
            raise InputError("chunks", self.chunks, "a whole number from 2", "use schedule 1f1b for one stage per rank")
        if self.stages % self.chunks or self.stages == self.chunks:
            allowed = f"a multiple of chunks = {self.chunks}, for at least two ranks"
            raise InputError("stages", self.stages, allowed, f"try stages {self.chunks * max(2, self.ranks)}")
        self.check_window()

    def check_window(self) -> None:
        """Raise InputError for a window, or a stream, that this order cannot be laid out for."""
        if self.window % self.ranks or self.microbatches % self.ranks:
            allowed = f"a multiple of {self.ranks}, the number of ranks (stages / chunks), as is the whole stream"
            value = self.window if self.window % self.ranks else f"{self.window} in {self.microbatches} micro-batches"
            raise InputError("window", value, allowed, f"try window {-(-self.window // self.ranks) * self.ranks}")

    @property
    def ranks(self) -> int:
        return self.stages // self.chunks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank, self.stages, self.ranks))

    def rank_of(self, stage: int) -> int:
        return stage % self.ranks

    def ops(self, rank: int) -> Iterator[Op]:
        for update in range(self.updates):
            yield from self._window(rank, self.window_microbatches(update))
            for stage in self.stages_of(rank):
                yield Op(stage, "U", update)

    def _window(self, rank: int, window: range) -> Iterator[Op]:
        stages = self.stages_of(rank)
        groups = [window[start : start + self.ranks] for start in range(0, len(window), self.ranks)]
        forwards = [Op(stage, "F", m) for group in groups for stage in stages for m in group]
        backwards = [Op(stage, "B", m) for group in groups for stage in reversed(stages) for m in group]
        # One forward more than the published warm-up: there, each of the turns that follow begins with a forward.
        ahead = min(len(forwards), 2 * (self.ranks - 1 - rank) + (self.chunks - 1) * self.ranks + 1)
        yield from forwards[:ahead]
        for number, backward in enumerate(backwards):
            yield backward
            yield from forwards[ahead + number : ahead + number + 1]

    def in_flight(self, stage: int) -> int:
        return _held(self.shortened(self.window), stage)

    def excerpt(self) -> Schedule:
        window = min(self.window, 4 * self.stages)
        return dataclasses.replace(self, window=window, microbatches=min(4 * window, self.microbatches))

    def ideal_bubble_fraction(self) -> float:
        work = self.microbatches * self.chunks
        return 1 - work / (work + self.updates * (self.ranks - 1))


@functools.lru_cache
def _held(schedule: Schedule, stage: int) -> int:
    return most_held(schedule, stage)
