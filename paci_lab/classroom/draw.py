"""The smallest case that fails as a chart: the learner's order of operations over the reference's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from paci_lab.classroom.exercise import Case
from paci_lab.language import _
from paci_lab.schedules import Op, Schedule
from paci_lab.schedules.validate import ScheduleError, validate
from paci_lab.simulate import Costs, simulate
from paci_lab.trace import Trace

__all__ = ["draw_order", "trace_of"]

MOST_OPS = 500
"""A longer order is not drawn: nothing could be read off it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Given(Schedule):
    """A schedule that somebody wrote down; one without updates gets one at the end of every stage."""

    orders: tuple[tuple[str, ...], ...] = ()
    name = "yours"
    summary = "an order that was given"
    flushes = True

    def ops(self, rank: int) -> Iterator[Op]:
        yield from (Op.parse(f"{rank}{text}") for text in self.orders[rank])
        if not any(text.startswith("U") for text in self.orders[rank]):
            yield Op(rank, "U", 0)

    def in_flight(self, stage: int) -> int:
        return self.microbatches

    def ideal_bubble_fraction(self) -> float:
        return 0.0


def draw_order(got: Any, expected: list[list[str]], case: Case) -> Any:
    """Two Gantt charts for orders like [["F0", "B0", "U0"], …], a list per stage; one when the learner's cannot run.

    None where the charts would look the same: on a single stage, which is never idle in either, and for equal orders.
    Backwards take twice as long as forwards.
    """
    if len(expected) < 2 or got == expected:
        return None
    from paci_lab.show.gantt import gantt, gantt_pair

    right = trace_of(expected)
    yours = trace_of(got)
    if right is None:
        return None
    if yours is None:
        return gantt(right, title=_("The reference, with {case}: yours cannot run").format(case=case.words))
    return gantt_pair(yours, right, names=(_("yours"), _("reference")), title=_("With {case}").format(case=case.words))


def trace_of(orders: Any) -> Trace | None:
    """The simulated trace of these orders; None when they are no schedule that could run.

    One that breaks a rule and runs all the same, with updates in the wrong places, say, is drawn: that shows it.
    """
    if not isinstance(orders, list) or not orders or not all(isinstance(order, list) for order in orders):
        return None
    if sum(map(len, orders)) > MOST_OPS or not all(isinstance(text, str) for order in orders for text in order):
        return None
    m, updates = (sum(text.startswith(kind) for text in orders[0]) for kind in "FU")
    try:
        given = tuple(tuple(order) for order in orders)
        schedule = _Given(stages=len(orders), microbatches=m, window=-(-m // max(updates, 1)), orders=given)
        validate(schedule)
    except ScheduleError as error:
        if error.code in ("placement", "repeated", "forgotten", "order", "deadlock"):
            return None
    except ValueError:  # an operation that is none, or InputError
        return None
    return simulate(schedule, Costs(forward_ms=1, backward_ms=2))
