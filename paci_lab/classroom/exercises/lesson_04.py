"""Exercises of lesson 04: PACI's order of operations, and the window for a gap."""

from __future__ import annotations

from collections.abc import Callable

from paci_lab.classroom.compare import same, same_orders
from paci_lab.classroom.draw import draw_order
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _
from paci_lab.schedules import PACI, OneFOneB

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_window(), _order()]


def _smallest(stages: int, gap: int) -> int:
    return -(-(stages - 1) // gap)


def _window() -> Exercise:
    return Exercise(
        id="04-window",
        title=_("The window for a gap"),
        function="smallest_window",
        difficulty=1,
        minutes=3,
        hints=(
            _("The largest gap is on stage 0. What does the bound say for s = 0?"),
            _("The gap there is at most ⌈(N − 1)/a⌉. For which smallest a is that no more than the gap allowed?"),
            _("a = ⌈(N − 1)/gap⌉, as math.ceil((stages - 1) / gap)."),
        ),
        reference=_smallest,
        cases=[
            Case((2, 1), _("2 stages and a gap of 1")),
            Case((4, 1), _("4 stages and a gap of 1")),
            Case((8, 2), _("8 stages and a gap of 2")),
            Case((64, 3), _("64 stages and a gap of 3")),
        ],
        compare=same(),
        mistakes=[
            Mistake(lambda stages, gap: -(-stages // gap), _("On stage 0 there are N − 1 others out, not N.")),
            Mistake(
                lambda stages, gap: max((stages - 1) // gap, 1),
                _("Rounded down, the window is too small: check it with ⌈(N − 1)/a⌉."),
            ),
        ],
    )


def _ops(schedule: type, stage: int, stages: int, microbatches: int, window: int) -> list[str]:
    made = schedule(stages=stages, microbatches=microbatches, window=window)
    return [f"{op.kind}{op.microbatch}" for op in made.ops(stage)]


def _all_stages(function: Callable, stages: int, microbatches: int, window: int) -> list[list[str]]:
    return [function(stage, stages, microbatches, window) for stage in range(stages)]


def _order() -> Exercise:
    return Exercise(
        id="04-order",
        title=_("PACI, written down"),
        function="paci_order",
        difficulty=2,
        minutes=6,
        hints=(
            _("It is 1F1B over the whole stream, never emptied: min(stages - stage, microbatches) forwards first."),
            _("After each backward k: if (k + 1) % window == 0, an update, and then the next forward if there is one."),
            _('Updates are numbered from 0: after "B{k}" comes "U{k // window}", then "F{k + ahead}".'),
        ),
        reference=lambda stage, stages, microbatches, window: _ops(PACI, stage, stages, microbatches, window),
        call=_all_stages,
        cases=[
            Case((1, 2, 1), _("1 stage, 2 micro-batches and a window of 1")),
            Case((2, 4, 2), _("2 stages, 4 micro-batches and a window of 2")),
            Case((4, 8, 4), _("4 stages, 8 micro-batches and a window of 4")),
            Case((4, 12, 2), _("4 stages, 12 micro-batches and a window of 2")),
        ],
        compare=same_orders(),
        mistakes=[
            Mistake(
                lambda stage, stages, microbatches, window: _ops(OneFOneB, stage, stages, microbatches, window),
                _("That is 1F1B with a flush: it empties the pipeline before every update. PACI does not."),
            ),
            Mistake(
                lambda stage, stages, microbatches, window: [
                    text for text in _ops(PACI, stage, stages, microbatches, window) if text[0] != "U"
                ],
                _("The order of F and B is right; the updates are missing."),
            ),
        ],
        draw=draw_order,
    )
