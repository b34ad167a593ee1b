"""The eight loops of lesson 09 in the lesson's order."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import ModuleType

from paci_lab.bugs import deadlock, means, rescaled, scheduler, shifted, stale, summed, wiped
from paci_lab.bugs.compare import ROUNDING
from paci_lab.bugs.loops import WINDOWS
from paci_lab.bugs.seen import Seen
from paci_lab.errors import InputError

__all__ = ["BUGS", "Bug", "bug"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bug:
    """A loop with a fault.

    Args:
        number: of the loop in the lesson, from 1.
        fault: a key of `faults.FAULTS`.
        function: the name that the loop has in the lesson.
        module: has the loop with its fault (`faulty`), without it (`fixed`) and what watches any of them (`run`).
        shown: updates that the lesson shows.
        drawn: updates of which its Gantt chart is.
        paired: whether the reference's Gantt chart is drawn below it.
        rounding: see `compare.difference`.
    """

    number: int
    fault: str
    function: str
    module: ModuleType
    shown: int = WINDOWS
    drawn: int = 3
    paired: bool = False
    rounding: float = ROUNDING

    @property
    def run(self) -> Callable[[Callable, int], Seen]:
        """(a loop, updates) -> what is seen of it."""
        return self.module.run

    @functools.cached_property
    def seen(self) -> Seen:
        """The loop with its fault."""
        return self.run(self.module.faulty, self.shown)

    @functools.cached_property
    def reference(self) -> Seen:
        """The loop without it."""
        return self.run(self.module.fixed, self.shown)

    def source(self, which: str) -> str:
        """The text of the loop "faulty" or "fixed", under the name it has in the lesson."""
        text = inspect.getsource(getattr(self.module, which))
        return text.replace(f"def {which}(", f"def {self.function}(", 1)


BUGS = (
    Bug(number=1, fault="summed", function="train_1", module=summed),
    Bug(number=2, fault="scheduler", function="train_2", module=scheduler),
    Bug(number=3, fault="wiped", function="train_3", module=wiped),
    Bug(number=4, fault="rescaled", function="train_4", module=rescaled),
    Bug(number=5, fault="means", function="train_5", module=means),
    Bug(number=6, fault="shifted", function="last_stage", module=shifted, drawn=2),
    # Where exactly autocast begins and ends decides which sums are rounded to 8 bits.
    Bug(number=7, fault="stale", function="train_7", module=stale, rounding=0.05),
    Bug(number=8, fault="deadlock", function="rank_1", module=deadlock, shown=3, drawn=1, paired=True),
)


def bug(number: int) -> Bug:
    """The loop of this number; raises InputError for another."""
    for found in BUGS:
        if found.number == number:
            return found
    raise InputError("loop", number, f"1..{len(BUGS)}", "take the number from the lesson")
