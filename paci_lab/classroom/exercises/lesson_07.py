"""Exercises of lesson 07: find the straggler, and cut the model so that there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paci_lab.classroom.compare import same
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.classroom.values import describe
from paci_lab.language import _
from paci_lab.schedules import PACI
from paci_lab.simulate import Costs, simulate

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_straggler(), _balance()]


def _of_trace(function: Callable, stages: int, slow: int, factor: float) -> Any:
    schedule = PACI(stages=stages, microbatches=8 * stages, window=stages)
    return function(simulate(schedule, Costs(stragglers={slow: factor})))


def _straggler() -> Exercise:
    return Exercise(
        id="07-straggler",
        title=_("Name the straggler"),
        function="straggler",
        difficulty=1,
        minutes=3,
        hints=(
            _("The straggler is the stage that works all the time, while others wait for it."),
            _("trace.utilization() has one share per stage. Which place has the largest?"),
            _("return int(trace.utilization().argmax())"),
        ),
        reference=lambda trace: int(trace.utilization().argmax()),
        call=_of_trace,
        cases=[
            Case((2, 0, 1.5), _("2 stages and stage 0 slow")),
            Case((4, 2, 1.4), _("4 stages and stage 2 slow")),
            Case((8, 7, 1.2), _("8 stages and stage 7 slow")),
        ],
        compare=same(),
        mistakes=[
            Mistake(
                lambda trace: int(trace.utilization().argmin()),
                _("That is the stage that waits most, for the straggler."),
            ),
            Mistake(
                lambda trace: int(trace.waiting_ns().argmax()),
                _("That is the stage that waits most, for the straggler."),
            ),
        ],
    )


def _even(costs: list[float], stages: int) -> list[int]:
    """Equal numbers of layers, whatever they cost."""
    return [len(costs) // stages + (stage < len(costs) % stages) for stage in range(stages)]


def _loads(costs: list[float], cut: list[int]) -> list[float]:
    ends = [sum(cut[: stage + 1]) for stage in range(len(cut))]
    return [sum(costs[end - layers : end]) for end, layers in zip(ends, cut, strict=True)]


def _best_cut(costs: list[float], stages: int) -> list[int]:
    """Least slowest stage, by trying every first cut."""
    if stages == 1:
        return [len(costs)]
    cuts = ([n, *_best_cut(costs[n:], stages - 1)] for n in range(1, len(costs) - stages + 2))
    return min(cuts, key=lambda cut: max(_loads(costs, cut)))


def _cut(function: Callable, costs: list[float], stages: int) -> list[Any]:
    return [function(list(costs), stages), list(costs), stages]


def _compare_cuts(got: Any, expected: list[Any]) -> str | None:
    cut, (right, costs, stages) = got[0] if isinstance(got, list) and got else None, expected
    if not isinstance(cut, list) or len(cut) != stages or not all(type(n) is int and n >= 1 for n in cut):
        return _("it gives {got}; a list of layers per stage is asked for, each at least 1.").format(got=describe(cut))
    if sum(cut) != len(costs):
        return _("its stages hold {got} layers; there are {all}.").format(got=sum(cut), all=len(costs))
    yours, best = max(_loads(costs, cut)), max(_loads(costs, right))
    if yours <= best + 1e-9:
        return None
    words = {"cut": cut, "yours": f"{yours:g}", "best": f"{best:g}"}
    return _("with {cut}, the slowest stage takes {yours}; {best} is possible.").format(**words)


def _balance() -> Exercise:
    return Exercise(
        id="07-balance",
        title=_("A partition without a straggler"),
        function="balance",
        difficulty=3,
        minutes=10,
        hints=(
            _("Try all ways to cut. How many layers can the first stage have, so that one is left for each other?"),
            _("Recursion helps: a first stage of n layers, and then balance(costs[n:], stages - 1)."),
            _("Of all n, take the one whose larger of sum(costs[:n]) and the slowest stage of the rest is least."),
        ),
        reference=_best_cut,
        call=_cut,
        cases=[
            Case(([1, 1], 2), _("2 equal layers on 2 stages")),
            Case(([1, 1, 1, 3], 2), _("layers of 1, 1, 1 and 3 on 2 stages")),
            Case(([2, 1, 1, 1, 4], 3), _("layers of 2, 1, 1, 1 and 4 on 3 stages")),
            Case(([3, 1, 1, 2, 1, 1, 2, 5], 4), _("8 layers on 4 stages")),
        ],
        compare=_compare_cuts,
        mistakes=[
            Mistake(_even, _("Equal numbers of layers are not equal times: the last layer is a large one here."))
        ],
    )
