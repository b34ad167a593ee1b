"""`Schedule`: who does what in which order, as data. Nothing here knows about torch, time or processes."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from paci_lab.errors import InputError
from paci_lab.schedules.op import Op

__all__ = ["Schedule", "most_held", "never_drained", "one_forward_one_backward"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """The order of operations on every rank of a pipeline.

    A subclass is one file in this folder: a `name`, the class facts below and `ops`.

    Args:
        stages: number of pipeline stages N, numbered 0 .. N-1.
        microbatches: micro-batches in the whole stream, numbered from 0.
        window: micro-batches per update on a stage (m for a flush schedule, a for PACI). Window j is micro-batches
            j*window .. (j+1)*window - 1; a stream that ends inside a window closes it with a shorter last update.
    """

    stages: int
    microbatches: int
    window: int

    name: ClassVar[str]
    summary: ClassVar[str]
    flushes: ClassVar[bool]
    weight_policy: ClassVar[str] = "live"
    """How a stage keeps its weights, in a word: "live" is one copy, and whatever it holds at that moment is used."""

    chunks: ClassVar[int] = 1
    """Stages on every rank."""

    def __post_init__(self) -> None:
        for field in ("stages", "microbatches", "window"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(field, value, "a whole number from 1", f"give {field} at least 1")

    # -- placement: one stage per rank unless a schedule says otherwise -------------------------------------------
    @property
    def ranks(self) -> int:
        """Processes needed."""
        return self.stages

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages (model chunks) that `rank` holds."""
        return (rank,)

    def rank_of(self, stage: int) -> int:
        """The rank that holds `stage`."""
        return stage

    # -- the order itself -----------------------------------------------------------------------------------------
    @abstractmethod
    def ops(self, rank: int) -> Iterator[Op]:
        """Operations of `rank` in the order it runs them, lazily."""

    @abstractmethod
    def in_flight(self, stage: int) -> int:
        """Most micro-batches whose forward ran on `stage` and whose backward has not: activations held at once."""

    # -- what follows from it -------------------------------------------------------------------------------------
    def version_used(self, microbatch: int, updates: int) -> int | None:
        """Version of the weights (number of updates in them) that forward and backward of `microbatch` use on a stage
        that has made `updates` when the forward begins. None: each uses the weights as they are at its own moment."""
        return None

    def gap_bound(self, stage: int) -> int:
        """Most updates `stage` makes between a micro-batch's forward and its backward."""
        return 0

    def learning_rate_factor(self, stage: int, share: float) -> float:
        """Factor on the run's learning rate for an update of `stage` that brings it to `share` of the run's tokens."""
        return 1.0

    @abstractmethod
    def ideal_bubble_fraction(self) -> float:
        """Idle share of the whole stream when every stage takes equal time and messages take none."""

    @property
    def updates(self) -> int:
        """Updates per stage over the stream."""
        return -(-self.microbatches // self.window)

    @property
    def first_update(self) -> int:
        """The first update that this schedule makes: 0 but for a stream that goes on from a checkpoint."""
        return 0

    @property
    def stream(self) -> range:
        """Micro-batches that it runs: all of them but those in front of a checkpoint it goes on from."""
        return range(self.first_update * self.window, self.microbatches)

    def window_of(self, microbatch: int) -> int:
        """The update that `microbatch` contributes to."""
        return microbatch // self.window

    def window_microbatches(self, update: int) -> range:
        """Micro-batches of window `update`; the last window may be shorter."""
        return range(update * self.window, min((update + 1) * self.window, self.microbatches))

    def excerpt(self) -> Schedule:
        """A stream that shows every fault this one can have: its fill, some windows and its drain.

        Long streams repeat themselves, and a window of thousands is in itself only more of the same.
        """
        window = min(self.window, max(512, 2 * self.stages))
        return dataclasses.replace(self, window=window).shortened(4 * window + 6 * self.stages)

    def shortened(self, microbatches: int) -> Schedule:
        """The same schedule over at most `microbatches` of them, for checks that need not see the whole stream."""
        return dataclasses.replace(self, microbatches=min(microbatches, self.microbatches))


def one_forward_one_backward(stage: int, microbatches: range, in_flight: int) -> Iterator[Op]:
    """Forwards up to `in_flight`, then one backward, one forward in turn, then the backwards left.

    The common core of 1F1B-flush (called once per window) and PACI (called once for the whole stream).
    """
    start, stop = microbatches.start, microbatches.stop
    ahead = min(in_flight, stop - start)
    for microbatch in range(start, start + ahead):
        yield Op(stage, "F", microbatch)
    for microbatch in range(start, stop):
        yield Op(stage, "B", microbatch)
        if microbatch + ahead < stop:
            yield Op(stage, "F", microbatch + ahead)


def never_drained(schedule: Schedule, rank: int) -> Iterator[Op]:
    """Asynchronous 1F1B over the whole stream, with an update after the last backward of every window."""
    for op in one_forward_one_backward(rank, range(schedule.microbatches), schedule.in_flight(rank)):
        yield op
        done = op.microbatch + 1
        if op.kind == "B" and (done % schedule.window == 0 or done == schedule.microbatches):
            yield Op(rank, "U", schedule.window_of(op.microbatch))


def most_held(schedule: Schedule, stage: int) -> int:
    """Most micro-batches held on `stage` at once, counted along the order of its rank."""
    held = most = 0
    for op in schedule.ops(schedule.rank_of(stage)):
        if op.stage == stage:
            held += (op.kind == "F") - (op.kind in "BW")
            most = max(most, held)
    return most
