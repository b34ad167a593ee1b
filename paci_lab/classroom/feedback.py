"""What a learner is told: one sentence, in a notebook with a sign in front and a chart below."""

from __future__ import annotations

import dataclasses
import html
from typing import Any

from paci_lab.language import _, direction

__all__ = ["Feedback", "box"]

SIGNS = {
    "passed": ("✓", "#10817c"),
    "failed": ("✗", "#ac5414"),
    "open": ("…", "#4c4ba1"),
    "told": ("≈", "#2373bb"),
}
"""A sign and a colour for each outcome: the sign tells it without the colour."""


@dataclasses.dataclass(frozen=True)
class Feedback:
    """The outcome of a check.

    Args:
        state: "passed", "failed", or "open" for a function that is not written yet.
        sentence: what the learner is told.
        printed: the beginning of what the function printed.
        figure: a chart of the smallest case that fails, or None.
    """

    state: str
    sentence: str
    printed: str = ""
    figure: Any = None

    @property
    def passed(self) -> bool:
        return self.state == "passed"

    def __str__(self) -> str:
        text = self.printed.strip()
        text = text if len(text) < 300 else text[:300] + "…"
        printed = "\n" + _("It printed: {text}").format(text=text) if text else ""
        return f"{SIGNS[self.state][0]} {self.sentence}{printed}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        printed = ""
        if self.printed.strip():
            head = html.escape(_("What your function printed"))
            body = html.escape(self.printed.strip())
            printed = (
                f'<details><summary>{head}</summary><pre style="overflow:auto;max-height:12em">{body}</pre></details>'
            )
        return box(self.sentence, self.state) + printed

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"text/plain": str(self), "text/html": self._repr_html_()}, raw=True)
        if self.figure is not None:
            display(self.figure)


def box(sentence: str, state: str) -> str:
    """`sentence` as HTML behind the sign of `state`, readable on a light and on a dark page."""
    sign, color = SIGNS[state]
    name = {"passed": _("Passed"), "failed": _("Not yet"), "open": _("To do"), "told": _("Compared")}[state]
    return (
        f'<div role="status" dir="{direction()}" style="border-inline-start:6px solid {color};padding:.4em .8em;'
        f'margin:.3em 0;font-size:1.1em;line-height:1.45;color:inherit">'
        f'<span aria-hidden="true" style="background:{color};color:#fefefe;border-radius:.3em;padding:0 .45em;'
        f'margin-inline-end:.5em;font-weight:bold">{sign}</span><b>{html.escape(name)}.</b> {html.escape(sentence)}'
        "</div>"
    )
