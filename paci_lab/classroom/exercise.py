"""What an exercise is: data that a lesson, a check, a completion page and a teacher's table all read."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from typing import Any

from paci_lab.classroom import exercises as folder
from paci_lab.errors import InputError

__all__ = ["Case", "Exercise", "Mistake", "every_exercise", "find"]

Compare = Callable[[Any, Any], "str | None"]
"""(the learner's value, the reference's) -> what differs, as a sentence, or None when nothing does."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of the learner's function.

    Args:
        arguments: what `Exercise.call` gets after the function: numbers, strings and lists of them. Made anew in
            every process, so a function that changes its arguments changes nobody else's.
        words: the case in a sentence, as in "With {words}: …": "4 stages and 8 micro-batches".
    """

    arguments: tuple
    words: str


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A wrong answer that learners give, and the sentence that helps them on; tried when the answer is wrong."""

    function: Callable
    sentence: str


def _plain(function: Callable, *arguments: Any) -> Any:
    return function(*arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise.

    Args:
        id: "<lesson>-<word>", as in "01-loop".
        title: a few words.
        function: the name that the learner's function has in the lesson.
        difficulty, minutes: the badge; difficulty from 1 to 3.
        hints: three, each saying more than the one before.
        reference: a function that is right.
        cases: from the smallest to the largest; the first that fails is told, and the first whose chart shows a
            difference is drawn.
        compare: see `paci_lab.classroom.compare`.
        mistakes: wrong functions with what to say about them.
        call: how a function is called for one case, when not `function(*arguments)`: build a model with a fixed seed,
            call the function, return its gradients. It runs in the child and here, so it changes nothing global.
        draw: (learner's value, reference's, case) -> a figure of a case that fails, or None when it would
            show no difference.
        seconds: processor time that all cases together may take; twice that by the clock.
    """

    id: str
    title: str
    function: str
    difficulty: int
    minutes: int
    hints: tuple[str, str, str]
    reference: Callable
    cases: Sequence[Case]
    compare: Compare
    mistakes: Sequence[Mistake] = ()
    call: Callable = _plain
    draw: Callable[[Any, Any, Case], Any] | None = None
    seconds: int = 5

    @property
    def lesson(self) -> str:
        """The lesson's number, "01"."""
        return self.id[:2]

    @property
    def badge(self) -> str:
        """Difficulty as circles and the minutes: "●○○ · 4 min"."""
        return f"{'●' * self.difficulty}{'○' * (3 - self.difficulty)} · {self.minutes} min"


def find(exercise_id: str) -> Exercise:
    """The exercise of this id; raises InputError, naming those there are."""
    if isinstance(exercise_id, str) and re.fullmatch(r"\d\d-[\w-]{1,40}", exercise_id):
        for exercise in _of_lesson(exercise_id[:2]):
            if exercise.id == exercise_id:
                return exercise
    known = ", ".join(exercise.id for exercise in every_exercise())
    raise InputError("exercise", exercise_id, known, "copy the name from the lesson")


def every_exercise() -> list[Exercise]:
    """All exercises, in the order of the lessons."""
    modules = sorted(module.name for module in pkgutil.iter_modules(folder.__path__))
    return [exercise for name in modules for exercise in _of_lesson(name.removeprefix("lesson_"))]


def _of_lesson(number: str) -> list[Exercise]:
    try:
        module = importlib.import_module(f"{folder.__name__}.lesson_{number}")
    except ModuleNotFoundError as error:
        if error.name == f"{folder.__name__}.lesson_{number}":
            return []
        raise
    return module.exercises()
