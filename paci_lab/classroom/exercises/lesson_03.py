"""Exercise of lesson 03: version gaps, read off the order of operations of one stage."""

from __future__ import annotations

from paci_lab.classroom.compare import same
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _
from paci_lab.schedules import PACI, OneFOneB

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_gaps()]


def _order(schedule: type, stage: int, stages: int, microbatches: int, window: int) -> list[str]:
    return [
        f"{op.kind}{op.microbatch}"
        for op in schedule(stages=stages, microbatches=microbatches, window=window).ops(stage)
    ]


def _reference(order: list[str]) -> list[int]:
    updates, at_forward, gaps = 0, {}, []
    for text in order:
        kind, number = text[0], int(text[1:])
        if kind == "F":
            at_forward[number] = updates
        elif kind == "B":
            gaps.append(updates - at_forward[number])
        else:
            updates += 1
    return gaps


def _in_flight(order: list[str]) -> list[int]:
    """Other backwards between forward and backward, whether or not an update came."""
    return [
        sum(text[0] == "B" for text in order[order.index(f"F{number}") : order.index(f"B{number}")])
        for number in range(sum(text[0] == "F" for text in order))
    ]


def _version_of_backward(order: list[str]) -> list[int]:
    updates, versions = 0, []
    for text in order:
        if text[0] == "B":
            versions.append(updates)
        updates += text[0] == "U"
    return versions


def _gaps() -> Exercise:
    return Exercise(
        id="03-gaps",
        title=_("Version gaps of a stage"),
        function="gaps",
        difficulty=2,
        minutes=6,
        hints=(
            _("Walk through the order once and count the updates, U, that you have passed."),
            _("At F, note the count under the micro-batch's number. At B, look it up again."),
            _("At B: append count - noted[number], where number is int(text[1:])."),
        ),
        reference=_reference,
        cases=[
            Case((["F0", "B0", "U0"],), _("one micro-batch")),
            Case((["F0", "F1", "B0", "U0", "B1", "U1"],), _("the order F0 F1 B0 U0 B1 U1")),
            Case((_order(PACI, 0, 4, 8, 1),), _("stage 0 of 4, an update after every backward")),
            Case((_order(OneFOneB, 0, 4, 8, 4),), _("stage 0 of 4 in a flush schedule")),
            Case((_order(PACI, 0, 8, 24, 4),), _("stage 0 of 8 with a window of 4")),
        ],
        compare=same(),
        mistakes=[
            Mistake(_in_flight, _("You count backwards in between; a gap counts updates.")),
            Mistake(
                _version_of_backward, _("That is the version at the backward; take off the version at the forward.")
            ),
        ],
    )
