"""`check`: the learner's function against the reference, in a process of its own, told in a sentence."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from paci_lab.classroom import client, recorded
from paci_lab.classroom.child import MEMORY_BYTES
from paci_lab.classroom.exercise import Case, Exercise, find
from paci_lab.classroom.feedback import Feedback
from paci_lab.classroom.source import NotTaken, gather
from paci_lab.classroom.values import decode
from paci_lab.language import _
from paci_lab.reading import parse_json

__all__ = ["check", "judge"]


def check(exercise: str, function: Callable) -> Feedback:
    """Check `function` as the answer to `exercise` ("01-loop"), show what is wrong with it, and keep what passes.

    Whatever the function does, this returns: it runs elsewhere, within limits of time and memory. Raises InputError for
    an exercise that there is not.
    """
    asked = find(exercise)
    try:
        source = gather(function)
    except NotTaken as error:
        return Feedback("failed", str(error))
    feedback = judge(asked, source, function.__name__)
    if feedback.state != "open":
        recorded.keep(asked.id, feedback.passed, source, function.__name__)
    return feedback


def judge(exercise: Exercise, source: str, name: str) -> Feedback:
    """Run `name` of `source` for the cases of `exercise` and compare; never raises for what `source` does."""
    answer = client.ask(exercise, source, name)
    values, problem = _read(answer["lines"], len(exercise.cases))
    if problem is not None and problem["problem"] == "stub":
        return Feedback("open", _("{name} is not written yet.").format(name=name))
    printed = answer["printed"]
    if answer["printed_bytes"] > len(printed.encode(errors="replace")):
        more = answer["printed_bytes"] - len(printed.encode(errors="replace"))
        printed += "\n" + _("… and {more} bytes more").format(more=f"{more:,}")
    with _undisturbed():
        for case, got in zip(exercise.cases, values, strict=False):
            expected = exercise.call(exercise.reference, *case.arguments)
            difference = exercise.compare(got, expected)
            if difference is not None:
                sentence = _("With {case}: {difference}").format(case=case.words, difference=difference)
                if (why := _known_mistake(exercise, values)) is not None:
                    sentence += " " + why
                return Feedback("failed", sentence, printed, _figure(exercise, values))
    if len(values) == len(exercise.cases) and problem is None and answer["ended"] == "well":
        words = _("{title} is solved.").format(title=exercise.title)
        return Feedback("passed", words, printed)
    case = exercise.cases[min(len(values), len(exercise.cases) - 1)]
    return Feedback("failed", _trouble(exercise, case, problem, answer), printed)


def _read(lines: list[str], most: int) -> tuple[list[Any], dict[str, Any] | None]:
    """(values of the first cases, the problem that came after them); whoever ran may have written anything."""
    values: list[Any] = []
    for text in lines[: most + 1]:
        try:
            line = parse_json(text)
            match line:
                case {"case": int(number), "value": value} if number == len(values) < most:
                    values.append(decode(value))
                case {"problem": str(), "words": str(), "line": str()}:
                    return values, line
                case {"end": True}:
                    return values, None
                case _:
                    raise ValueError("not an outcome")
        except (ValueError, RecursionError):
            return values, {"problem": "unreadable", "words": "", "line": ""}
    return values, None


def _trouble(exercise: Exercise, case: Case, problem: dict[str, Any] | None, answer: dict[str, Any]) -> str:
    """The sentence for a function that did not get through its cases."""
    at = {"case": case.words}
    if problem is not None:
        if problem["problem"] == "syntax":
            return _("This is not Python: {error}").format(error=problem["words"])
        if problem["problem"] == "raised":
            at |= {"error": problem["words"], "line": problem["line"]}
            if problem["line"]:
                return _("With {case}: your function raises {error}, in the line: {line}").format(**at)
            return _("With {case}: your function raises {error}").format(**at)
        if problem["problem"] == "memory":
            at["limit"] = MEMORY_BYTES >> 30
            return _("With {case}: your function needs more than {limit} GB of memory.").format(**at)
        if problem["problem"] == "exit":
            return _("With {case}: your function leaves Python with sys.exit; let it return instead.").format(**at)
        return _("With {case}: your function returns something that is too large or cannot be read.").format(**at)
    if answer["ended"] == "time":
        if answer["detail"] != signal.SIGXCPU:
            at["seconds"] = 2 * exercise.seconds
            words = _("With {case}: your function was stopped after {seconds} s by the clock. What does it wait for?")
            return words.format(**at)
        at["seconds"] = exercise.seconds
        return _("With {case}: your function was stopped after {seconds} s. Does a loop never end?").format(**at)
    if answer["ended"] == "server":
        return _("Your function ended the process that checks it. Let it end no process but those that it starts.")
    if answer["ended"] == "killed":
        at["signal"] = answer["detail"]
        return _("With {case}: the process of your function was killed (signal {signal}).").format(**at)
    return _("With {case}: your function ended its process instead of returning.").format(**at)


def _figure(exercise: Exercise, values: list[Any]) -> Any:
    """The chart of the first case that is wrong and shows it; None when no chart does."""
    if exercise.draw is None:
        return None
    for case, got in zip(exercise.cases, values, strict=False):
        expected = exercise.call(exercise.reference, *case.arguments)
        if exercise.compare(got, expected) is not None:
            if (figure := exercise.draw(got, expected, case)) is not None:
                return figure
    return None


def _known_mistake(exercise: Exercise, values: list[Any]) -> str | None:
    """The sentence for the mistake that gives exactly these values."""
    for mistake in exercise.mistakes:
        try:
            made = [exercise.call(mistake.function, *case.arguments) for case in exercise.cases[: len(values)]]
        except Exception:  # a mistake may be one that works for small cases only
            continue
        if all(exercise.compare(got, wrong) is None for got, wrong in zip(values, made, strict=True)):
            return mistake.sentence
    return None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """The learner's random numbers go on as if no reference had been run in between."""
    before, torch, numpy = random.getstate(), sys.modules.get("torch"), sys.modules.get("numpy")
    kept = numpy.random.get_state() if numpy else None
    fork = torch.random.fork_rng(devices=[]) if torch else contextlib.nullcontext()
    try:
        with fork:
            yield
    finally:
        random.setstate(before)
        if kept is not None:
            numpy.random.set_state(kept)
