"""`Placed`: what lies on a board as a `Schedule`, so that simulator, validator, replay and real ranks can read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from paci_lab.game.levels import Level
from paci_lab.schedules import Op, Schedule
from paci_lab.simulate import simulate

__all__ = ["Placed", "placed"]

Lines = tuple[tuple[Op, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed(Schedule):
    """The operations that somebody has placed, complete or not.

    With more micro-batches than its level has, the board is run again and again, each time as soon as a rank is free.

    Args:
        level: whose limits hold.
        lines: the operations of every rank in order.
    """

    level: Level
    lines: Lines

    name = "game"
    summary = "placed by hand in the schedule-design game"

    @property
    def flushes(self) -> bool:
        return max(self.level.gap_bound) == 0

    @property
    def weight_policy(self) -> str:
        return "stashed" if self.level.stashed else "live"

    def ops(self, rank: int) -> Iterator[Op]:
        level = self.level
        for lap in range(-(-self.microbatches // level.microbatches)):
            for stage, kind, number in self.lines[rank]:
                number += lap * (level.updates if kind == "U" else level.microbatches)
                if number < (self.updates if kind == "U" else self.microbatches):
                    yield Op(stage, kind, number)

    def in_flight(self, stage: int) -> int:
        return self.level.in_flight[stage]

    def version_used(self, microbatch: int, updates: int) -> int | None:
        return updates if self.level.stashed else None

    def gap_bound(self, stage: int) -> int:
        return self.level.gap_bound[stage]

    def ideal_bubble_fraction(self) -> float:
        """With the costs of the level."""
        return simulate(self, self.level.costs).bubble_fraction()

    def excerpt(self) -> Schedule:
        return self.shortened(3 * self.level.microbatches)


def placed(level: Level, lines: Lines) -> Placed:
    """The schedule of one board."""
    return Placed(level=level, lines=lines, stages=level.stages, microbatches=level.microbatches, window=level.window)
