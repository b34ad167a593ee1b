"""What a learner has done, in `progress.jsonl` beside the notebooks: it is there again after a restart.

A line is written when something has changed, whole and at once, so notebooks that run side by side lose nothing of each
other, and a kill in the middle loses one line at most. The file lies in the notebook's folder, so thirty learners with
folders of their own never meet.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from paci_lab.reading import parse_json

__all__ = ["FILE", "Done", "Guess", "done", "guesses", "keep", "keep_guess"]

FILE = "progress.jsonl"


@dataclasses.dataclass(frozen=True)
class Done:
    """The newest answer to an exercise that counts: one that passed, else the last one that did not."""

    passed: bool
    source: str
    name: str


@dataclasses.dataclass(frozen=True)
class Guess:
    """A prediction: what was asked, guessed, and found."""

    guess: float | str
    found: float | str


def keep(exercise: str, passed: bool, source: str, name: str) -> None:
    """Write down how a check went, if that is news: an exercise that has passed stays passed."""
    before, now = done().get(exercise), Done(passed, source, name)
    if before != now and (passed or before is None or not before.passed):
        _append({"exercise": exercise, **dataclasses.asdict(now)})


def keep_guess(question: str, guess: float | str, found: float | str) -> None:
    """Write down a prediction; the first one to a question counts."""
    if question not in guesses():
        _append({"question": question, "guess": guess, "found": found})


def done(folder: Path | None = None) -> dict[str, Done]:
    """What was done, by exercise."""
    found: dict[str, Done] = {}
    for line in _lines(folder):
        match line:
            case {"exercise": str(name), "passed": bool(passed), "source": str(source), "name": str(function)}:
                if passed or name not in found or not found[name].passed:
                    found[name] = Done(passed, source, function)
    return found


def guesses(folder: Path | None = None) -> dict[str, Guess]:
    """The first prediction to each question."""
    found: dict[str, Guess] = {}
    for line in _lines(folder):
        match line:
            case {
                "question": str(name),
                "guess": int() | float() | str() as guess,
                "found": int() | float() | str() as so,
            }:
                found.setdefault(name, Guess(guess, so))
    return found


def _lines(folder: Path | None) -> list[Any]:
    """Every line that can be read; what a kill has cut short, or somebody has spoiled, is left out."""
    try:
        text = ((folder or Path.cwd()) / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = []
    for line in text.split("\n"):  # and at nothing else that splitlines takes for an end: a source may hold U+2028
        try:
            lines.append(parse_json(line))
        except ValueError:
            continue
    return lines


def _append(line: dict[str, Any]) -> None:
    """Add a line. A folder that cannot be written keeps nothing, and the check is told all the same."""
    data = (json.dumps({"time": round(time.time()), **line}) + "\n").encode()  # ASCII: a lone surrogate has no UTF-8
    try:
        file = os.open(FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # a home folder over the network does not append at once by itself
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data  # the line before was cut short
        os.write(file, data)
    except OSError:
        pass
    finally:
        os.close(file)
