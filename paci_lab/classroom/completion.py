"""`progress`: a page of what a learner has done, and the one file with it that a teacher collects."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import time
from pathlib import Path
from typing import Any

from paci_lab.classroom import recorded
from paci_lab.classroom.exercise import every_exercise
from paci_lab.errors import InputError
from paci_lab.language import _, direction, language

__all__ = ["SCHEMA", "Page", "Progress", "progress"]

SCHEMA = "paci-lab completion 1"
"""What a collected file says it is."""


@dataclasses.dataclass(frozen=True)
class Page:
    """Rows of (lesson, exercise, badge, state), and predictions as (question, guess, found)."""

    rows: list[tuple[str, str, str, str]]
    guesses: list[tuple[str, str, str]]
    learner: str = ""

    def __str__(self) -> str:
        lines = [f"{_words()[state]:12} {lesson}  {title}  {badge}" for lesson, title, badge, state in self.rows]
        return "\n".join([self._summary(), *lines])

    __repr__ = __str__

    def _summary(self) -> str:
        solved = sum(state == "passed" for *_rest, state in self.rows)
        return _("{solved} of {all} exercises are solved.").format(solved=solved, all=len(self.rows))

    def _repr_html_(self) -> str:
        head = [_("Lesson"), _("Exercise"), _("Difficulty and time"), _("State")]
        signs = {"passed": "✓", "failed": "✗", "open": "–"}
        body = [
            (lesson, title, badge, f"{signs[state]} {_words()[state]}") for lesson, title, badge, state in self.rows
        ]
        parts = [f"<p><b>{html.escape(self._summary())}</b></p>", _table(head, body)]
        if self.guesses:
            parts += [_table([_("Prediction"), _("Your guess"), _("What it was")], self.guesses)]
        return f'<div dir="{direction()}" style="font-size:1.05em;color:inherit">{"".join(parts)}</div>'

    def html(self) -> str:
        """A whole page, with nothing to load."""
        title = _("PACI Lab: what {learner} has done").format(learner=self.learner)
        return (
            f'<!doctype html><html lang="{language()}" dir="{direction()}"><meta charset="utf-8">'
            f"<title>{html.escape(title)}</title>"
            "<style>:root{color-scheme:light dark}"
            "body{font:18px/1.5 system-ui,sans-serif;max-width:50em;margin:2em auto;padding:0 1em}</style>"
            f"<h1>{html.escape(title)}</h1>{self._repr_html_()}</html>"
        )


class Progress:
    """`progress()` shows what is done; `progress.save("Ada")` writes the file for the teacher."""

    def __call__(self) -> Page:
        """What is done in this folder, exercise by exercise."""
        return self._page("")

    def save(self, learner: str) -> Path:
        """Write `completion-<learner>.json`, and beside it a page to read; returns the first.

        It holds the source of every answer, which `paci-lab grade` runs again. Raises InputError for an empty name, and
        for a folder that cannot be written.
        """
        if not isinstance(learner, str) or not learner.strip() or len(learner) > 100 or not learner.isprintable():
            raise InputError("learner", learner, "a name of up to 100 characters", 'write progress.save("Ada")')
        stem = "completion-" + (re.sub(r"[^\w.-]+", "_", learner.strip()).strip("._") or "learner")
        answers = {name: dataclasses.asdict(done) for name, done in recorded.done().items()}
        predictions = {name: dataclasses.asdict(guess) for name, guess in recorded.guesses().items()}
        document = {
            "schema": SCHEMA,
            "learner": learner.strip(),
            "saved": time.strftime("%Y-%m-%d %H:%M:%S"),
            "exercises": answers,
            "predictions": predictions,
        }
        path = Path.cwd() / f"{stem}.json"
        try:
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            path.with_suffix(".html").write_text(self._page(learner.strip()).html(), encoding="utf-8")
        except OSError as error:
            raise InputError("folder", path.parent, "a folder that can be written", f"change it ({error})") from None
        print(_("Written: {path}").format(path=path))
        return path

    def _page(self, learner: str) -> Page:
        done = recorded.done()
        rows = [
            (exercise.lesson, exercise.title, exercise.badge, _state(done.get(exercise.id)))
            for exercise in every_exercise()
        ]
        guesses = [(name, _number(guess.guess), _number(guess.found)) for name, guess in recorded.guesses().items()]
        return Page(rows, guesses, learner)


def _state(done: recorded.Done | None) -> str:
    return "open" if done is None else "passed" if done.passed else "failed"


def _words() -> dict[str, str]:
    return {"passed": _("solved"), "failed": _("not yet"), "open": _("to do")}


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _table(head: list[str], rows: list[tuple[Any, ...]]) -> str:
    cell = "padding:.25em .8em;text-align:start;color:inherit"
    first = "".join(f'<th scope="col" style="{cell}">{html.escape(word)}</th>' for word in head)
    lines = [
        "<tr>" + "".join(f'<td style="{cell}">{html.escape(str(word))}</td>' for word in row) + "</tr>" for row in rows
    ]
    body = "".join(lines)
    return f'<table style="border-collapse:collapse"><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>'


progress = Progress()
