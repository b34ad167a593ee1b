"""Exercises of lesson 02: the bubble, and why a small batch cannot be cured by more micro-batches."""

from __future__ import annotations

from paci_lab.classroom.compare import same, same_orders
from paci_lab.classroom.draw import draw_order
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _
from paci_lab.schedules import GPipe, OneFOneB

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_needed(), _order()]


def _enough(stages: int, most: float) -> int:
    m = 1
    while (stages - 1) / (m + stages - 1) > most:
        m += 1
    return m


def _enough_of_work(stages: int, most: float) -> int:
    m = 1
    while (stages - 1) / m > most:
        m += 1
    return m


def _needed() -> Exercise:
    return Exercise(
        id="02-enough",
        title=_("Enough micro-batches"),
        function="enough",
        difficulty=1,
        minutes=4,
        hints=(
            _("Start with m = 1 and make m larger until the bubble is small enough."),
            _("The bubble is (stages - 1) / (m + stages - 1). Compare it with `most` in the head of a while loop."),
            _("m = 1, then: while (stages - 1) / (m + stages - 1) > most: m += 1, and return m after the loop."),
        ),
        reference=_enough,
        cases=[
            Case((2, 0.5), _("2 stages and a bubble of 50 %")),
            Case((4, 0.25), _("4 stages and a bubble of 25 %")),
            Case((4, 0.01), _("4 stages and a bubble of 1 %")),
            Case((64, 0.1), _("64 stages and a bubble of 10 %")),
        ],
        compare=same(),
        mistakes=[
            Mistake(_enough_of_work, _("You divide by the time of the work; the bubble is a share of the whole time.")),
            Mistake(lambda stages, most: _enough(stages, most) + 1, _("One micro-batch less is enough already.")),
        ],
    )


def _ops_of(schedule: type, stage: int, stages: int, m: int) -> list[str]:
    return [str(op)[len(str(stage)) :] for op in schedule(stages=stages, microbatches=m, window=m).ops(stage)][:-1]


def _all_stages(function, stages: int, m: int) -> list[list[str]]:
    return [function(stage, stages, m) for stage in range(stages)]


def _order() -> Exercise:
    return Exercise(
        id="02-order",
        title=_("1F1B, written down"),
        function="order",
        difficulty=2,
        minutes=6,
        hints=(
            _("A stage begins with some forwards, and then does a backward and a forward in turn."),
            _("Stage s begins with min(stages - s, m) forwards; after B k comes the forward that many further on."),
            _('ahead = min(stages - stage, m); after "B{k}" comes "F{k + ahead}", as long as k + ahead < m.'),
        ),
        reference=lambda stage, stages, m: _ops_of(OneFOneB, stage, stages, m),
        cases=[
            Case((1, 2), _("1 stage and m = 2")),
            Case((2, 2), _("2 stages and m = 2")),
            Case((2, 4), _("2 stages and m = 4")),
            Case((4, 2), _("4 stages and m = 2")),
            Case((4, 8), _("4 stages and m = 8")),
        ],
        compare=same_orders(),
        mistakes=[
            Mistake(
                lambda stage, stages, m: _ops_of(GPipe, stage, stages, m),
                _("That is GPipe: all forwards first. 1F1B starts each backward as early as it can."),
            ),
        ],
        call=_all_stages,
        draw=draw_order,
    )
