"""Exercise of lesson 00: what a bubble is, in numbers."""

from __future__ import annotations

from paci_lab.classroom.compare import close
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [
        Exercise(
            id="00-bubble",
            title=_("The bubble of a run"),
            function="bubble",
            difficulty=1,
            minutes=3,
            hints=(
                _("How much time do all stages have together, working or not?"),
                _("All stages together have len(work) * makespan; of that, sum(work) was work."),
                _("return 1 - sum(work) / (len(work) * makespan)"),
            ),
            reference=lambda work, makespan: 1 - sum(work) / (len(work) * makespan),
            cases=[
                Case(([3], 4), _("one stage that works 3 of 4 ms")),
                Case(([6, 6], 9), _("two stages that work 6 of 9 ms")),
                Case(([24, 24, 24, 24], 33), _("the four stages of the chart, at 24 of 33 ms")),
                Case(([10, 20, 5], 25), _("three unequal stages")),
            ],
            compare=close(),
            mistakes=[
                Mistake(
                    lambda work, makespan: sum(work) / (len(work) * makespan),
                    _("That is the share of time in which stages work; the bubble is the rest."),
                ),
                Mistake(
                    lambda work, makespan: 1 - sum(work) / makespan,
                    _("Every stage has the whole makespan: all of them together have len(work) times as much."),
                ),
                Mistake(
                    lambda work, makespan: 1 - max(work) / makespan,
                    _("That is the bubble of the busiest stage alone."),
                ),
            ],
        )
    ]
