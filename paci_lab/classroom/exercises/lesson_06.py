"""Exercise of lesson 06: which window to recommend."""

from __future__ import annotations

from collections.abc import Callable

from paci_lab.classroom.compare import same
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _

__all__ = ["exercises"]

Point = list
"""[window, seconds per update, updates to the target, or None when it was never reached]."""


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_recommend()]


def _time(point: Point) -> float:
    return point[1] * point[2]


def _best(key: Callable[[Point], float], *, largest: bool = False) -> Callable[[list[Point], float], int]:
    def choose(points: list[Point], tolerance: float) -> int:
        reached = [point for point in points if point[2] is not None]
        return min(reached, key=key)[0]

    return choose


def _reference(points: list[Point], tolerance: float) -> int:
    reached = [point for point in points if point[2] is not None]
    limit = min(map(_time, reached)) * (1 + tolerance)
    return max(point[0] for point in reached if _time(point) <= limit)


def _recommend() -> Exercise:
    return Exercise(
        id="06-recommend",
        title=_("Recommend a window"),
        function="recommend",
        difficulty=2,
        minutes=6,
        hints=(
            _("Leave out what never reached the target. What is the time to target of the others?"),
            _("Time is seconds per update times updates. Keep all within (1 + tolerance) times the least time."),
            _("Of those, the smallest gap is the widest window: max(window for window, time in … if time <= limit)."),
        ),
        reference=_reference,
        cases=[
            Case(([[4, 0.5, 100]], 0.05), _("one window")),
            Case(([[1, 0.1, 900], [6, 0.6, 100]], 0.05), _("two windows")),
            Case(([[3, 0.3, 200], [6, 0.6, 120], [12, 1.1, None]], 0.05), _("a window that never reached the target")),
            Case(([[3, 0.3, 200], [6, 0.59, 104], [12, 1.2, 80]], 0.05), _("two windows within 5 %")),
        ],
        compare=same(),
        mistakes=[
            Mistake(
                _best(_time),
                _(
                    "That is the fastest; within the tolerance there is no difference, so the smaller "
                    "version gap wins, which is the wider window."
                ),
            ),
            Mistake(_best(lambda point: point[1]), _("Quick updates are not enough: how many does it need?")),
            Mistake(_best(lambda point: point[2]), _("Few updates are not enough: how long does each take?")),
        ],
    )
