"""`hint`: three steps and the solution, each folded into the one before, so that nobody reads on by accident."""

from __future__ import annotations

import dataclasses
import html

from paci_lab.classroom.exercise import find
from paci_lab.lab import solution
from paci_lab.language import _, direction

__all__ = ["Hints", "hint"]

_STYLE = "margin:.35em 0;padding:.2em .8em;border-inline-start:4px solid #4c4ba1;line-height:1.45;color:inherit"


@dataclasses.dataclass(frozen=True)
class Hints:
    """What helps with an exercise: (heading, text, whether it is code), from the least to the most."""

    steps: tuple[tuple[str, str, bool], ...]

    def __str__(self) -> str:
        return self.steps[0][1]  # a terminal cannot fold, so it gets the first step

    __repr__ = __str__

    def _repr_html_(self) -> str:
        inner = ""
        for head, text, code in reversed(self.steps):
            body = html.escape(text)
            body = f'<pre style="overflow:auto;color:inherit">{body}</pre>' if code else f"<p>{body}</p>"
            summary = f'<summary style="cursor:pointer"><b>{html.escape(head)}</b></summary>'
            inner = f'<details style="{_STYLE}">{summary}{body}{inner}</details>'
        return f'<div dir="{direction()}">{inner}</div>'


def hint(exercise: str) -> Hints:
    """Three hints for `exercise`, and then its solution; raises InputError for an exercise that there is not."""
    asked = find(exercise)
    steps = [
        (_("Hint {number} of {most}").format(number=number, most=len(asked.hints)), text, False)
        for number, text in enumerate(asked.hints, 1)
    ]
    if (solved := solution(asked.lesson, asked.function)) is not None:
        steps.append((_("The solution"), solved, True))
    return Hints(tuple(steps))
