"""Completion files of a class, checked again: nothing in them is believed but the learner's source, which is run.

The source runs as in a learner's own check, in a process with limits of time and memory. That keeps accidents away, not
somebody who means harm: what runs there may read and delete what the teacher's account may.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paci_lab.classroom.checking import judge
from paci_lab.classroom.completion import SCHEMA
from paci_lab.classroom.exercise import Exercise, every_exercise
from paci_lab.classroom.source import LONGEST
from paci_lab.errors import InputError, RunFailed, printable
from paci_lab.language import _
from paci_lab.reading import file_inside, parse_json

__all__ = ["Graded", "Refused", "grade"]

MOST_BYTES = 4 << 20
MOST_FILES = 2_000


@dataclasses.dataclass(frozen=True)
class Graded:
    """A learner's file: by exercise a state ("passed", "failed", "missing" or "claimed") and what the check said."""

    file: str
    learner: str
    exercises: dict[str, tuple[str, str]]

    def count(self, state: str) -> int:
        return sum(found == state for found, _said in self.exercises.values())


@dataclasses.dataclass(frozen=True)
class Refused:
    """A file that is no completion file, and why."""

    file: str
    why: str


def grade(folder: Path, *, say: Callable[[str], None] = lambda sentence: None) -> tuple[list[Graded], list[Refused]]:
    """Check every JSON file in `folder` and below; `say` is told which is being checked.

    A file that is none of ours, or broken, is refused with a sentence and stops nobody else's. Raises InputError when
    there is no such folder, or no file in it.
    """
    if not folder.is_dir():
        raise InputError("FOLDER", folder, "a folder with completion files", "name the folder where you collected them")
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise InputError("FOLDER", folder, "a folder with completion-*.json files", "collect what progress.save wrote")
    if len(files) > MOST_FILES:
        raise InputError("FOLDER", f"{len(files)} files", f"at most {MOST_FILES}", "grade a folder for each class")
    exercises = every_exercise()
    graded, refused = [], []
    for number, path in enumerate(files, 1):
        name = printable(path.relative_to(folder))
        say(_("{number} of {all}: {file}").format(number=number, all=len(files), file=name))
        try:
            learner, answers = read(folder, path)
        except InputError as error:
            refused.append(Refused(name, str(error)))
            continue
        found = {exercise.id: _state(exercise, answers.get(exercise.id)) for exercise in exercises}
        graded.append(Graded(name, learner, found))
    return graded, refused


def read(folder: Path, path: Path) -> tuple[str, dict[str, Any]]:
    """(learner, answers by exercise) of one file; raises InputError for what is no completion file."""
    allowed = _("a file that progress.save wrote")
    fix = _("ask for it again, or take it out of the folder")
    try:
        if file_inside(folder, path, most_bytes=MOST_BYTES) is None:
            raise InputError(str(path), _("nothing"), allowed, fix)
        document = parse_json(path.read_text(encoding="utf-8"))
    except InputError as error:  # it is no file to be read; what `file_inside` says to do is about a run
        raise InputError(str(path), error.value, error.allowed, fix) from None
    except (OSError, ValueError) as error:
        raise InputError(str(path), _("its content"), allowed, f"{fix} ({error})") from None
    match document:
        case {"schema": found, "learner": str(learner), "exercises": dict(answers)} if found == SCHEMA:
            return printable(learner.strip())[:100].replace("\n", " "), answers
    raise InputError(str(path), _("another kind of JSON"), allowed, fix)


def _state(exercise: Exercise, answer: Any) -> tuple[str, str]:
    match answer:
        case None:
            return "missing", _("No answer.")
        case {"passed": bool(claimed), "source": str(source), "name": str(name)} if len(source) <= LONGEST:
            try:
                feedback = judge(exercise, source, name)
            except RunFailed as error:
                return "claimed" if claimed else "failed", printable(error)
            if feedback.passed:
                return "passed", printable(feedback.sentence)
            return "claimed" if claimed else "failed", printable(feedback.sentence)
    return "failed", _("The answer in the file is not as a check writes it.")
