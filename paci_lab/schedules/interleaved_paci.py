"""PACI with several smaller stages on every rank: interleaved 1F1B that is never drained."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import count, islice

from paci_lab.errors import InputError
from paci_lab.schedules.interleaved import Interleaved
from paci_lab.schedules.op import Op
from paci_lab.schedules.paci import check_slack, share_of_slack
from paci_lab.schedules.schedule import Schedule

__all__ = ["InterleavedPACI"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterleavedPACI(Interleaved):
    """No bubble after the fill, one copy of the weights, a fill and drain V times as short, and a gap that is bounded.

    Args:
        slack: forwards that rank 0 admits beyond those below, up to R-1; the ranks after it get a falling share. R-1 is
            the warm-up of `Interleaved`.

    The order: R ranks with V chunks each, stage s on rank r = s mod R as its chunk v = s div R. Micro-batches go
    through in groups of R. A rank runs the forwards of a group through its first chunk, then its second, and so on,
    and the backwards through its last chunk, then the one before. After (V-1)R + R-1-r + 1 forwards, and the rank's
    share of the slack, it takes one backward and one forward in turn to the end of the stream. Each stage makes its
    update after the last of its own backwards of a window.

    The bound: let micro-batch k be the q-th of group g. Its forward on chunk v is forward number gVR + vR + q of its
    rank, its backward is backward number gVR + (V-1-v)R + q. So the rank runs D = 2(V-1-v)R + R-1-r + share of slack
    backwards between the two (fewer in the fill). Backwards belong to a chunk in runs of R every VR, and the first q
    of those D, counted back from micro-batch k's own, are chunk v's. The most that are chunk v's, over q, is
    n = R (D div VR) + min(R-1, D mod VR); the mean is D/V. A stage that steps after every window of a backwards has
    therefore made at most ceil(n/a) updates between forward and backward, and it holds at most n+1 micro-batches.
    With V = 1 this would be PACI: n = R-1-r.

    Against PACI on the same ranks, in simulation. Without slack: the same activations on the first rank and more on
    all others, 2R-1 micro-batches of gap at the first stage where PACI has R-1, and a latency costs more, because
    there are V times as many messages between operations V times as short; only the fill and the drain, once in a
    run, are shorter. With slack R-1 both hide a latency (here up to (F+B)/(2V) of a rank's times); all ranks together
    then hold the same, and the fullest holds less: R + (R-1)/V micro-batches where PACI's holds 2R-1.
    """

    slack: int = 0

    name = "interleaved-paci"
    summary = "PACI with several smaller stages on every rank, never drained"
    flushes = False

    def check_window(self) -> None:
        check_slack(self.slack)
        if self.slack >= self.ranks:
            allowed = f"a whole number up to {self.ranks - 1}, the ranks less one: more would wait for itself"
            raise InputError("slack", self.slack, allowed, f"use slack {self.ranks - 1} or less")

    def ops(self, rank: int) -> Iterator[Op]:
        forwards, backwards = self._through(rank, "F"), self._through(rank, "B")
        yield from self._existing(islice(forwards, self._ahead(rank)))
        length = -(-self.microbatches // self.ranks) * self.ranks * self.chunks
        for backward, forward in zip(islice(backwards, length), forwards, strict=False):
            yield from self._existing((backward,))
            done = backward.microbatch + 1
            if done == self.microbatches or (done < self.microbatches and done % self.window == 0):
                yield Op(backward.stage, "U", self.window_of(backward.microbatch))
            yield from self._existing((forward,))

    def _through(self, rank: int, kind: str) -> Iterator[Op]:
        """All forwards or backwards of a rank in order, for a stream without an end."""
        stages = self.stages_of(rank) if kind == "F" else self.stages_of(rank)[::-1]
        for first in count(0, self.ranks):
            yield from (Op(stage, kind, m) for stage in stages for m in range(first, first + self.ranks))

    def _existing(self, ops: Iterator[Op] | tuple[Op, ...]) -> Iterator[Op]:
        # The last group is laid out whole: leaving out what is not there can neither block anything nor add to a gap.
        return (op for op in ops if op.microbatch < self.microbatches)

    def _ahead(self, rank: int) -> int:
        """Forwards before the first backward."""
        behind = self.ranks - 1 - rank
        return (self.chunks - 1) * self.ranks + behind + share_of_slack(self.slack, rank, self.ranks) + 1

    def _between(self, stage: int) -> int:
        """Most backwards of `stage` between a micro-batch's forward and its backward: n above."""
        rank, chunk = self.rank_of(stage), stage // self.ranks
        of_rank = self._ahead(rank) - 1 + (self.chunks - 1 - 2 * chunk) * self.ranks
        whole, rest = divmod(of_rank, self.stages)
        return whole * self.ranks + min(self.ranks - 1, rest)

    def in_flight(self, stage: int) -> int:
        return min(self.microbatches, self._between(stage) + 1)

    def gap_bound(self, stage: int) -> int:
        return -(-self._between(stage) // self.window)

    def excerpt(self) -> Schedule:
        window = min(self.window, max(512, 2 * self.stages))
        length = 4 * window + 6 * self.stages + 2 * self.slack
        return dataclasses.replace(self, window=window).shortened(length)

    def ideal_bubble_fraction(self) -> float:
        """For a stream of whole groups of R micro-batches."""
        return (self.ranks - 1) / (self.microbatches * self.chunks + self.ranks - 1)
