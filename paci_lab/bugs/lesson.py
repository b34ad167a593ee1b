"""What lesson 09 calls: `look` shows a loop from outside, `name_the_fault` asks what is wrong with it."""

from __future__ import annotations

from html import escape

import ipywidgets
from IPython.display import HTML, display

from paci_lab.bugs.catalogue import bug
from paci_lab.bugs.charts import curves, in_words, operations
from paci_lab.bugs.faults import FAULTS, answer, name
from paci_lab.language import _, direction

__all__ = ["FaultQuestion", "look", "name_the_fault"]


def look(number: int, *, theme: str = "light") -> None:
    """Run loop `number` and its reference, and show what can be seen of them without reading the code.

    Raises InputError for a number that there is not.
    """
    found = bug(number)
    seen, reference = found.seen, found.reference
    display(curves(seen, reference, theme=theme))
    display(HTML(in_words(seen, reference)))
    beside = reference if found.paired else None
    display(operations(seen, beside, updates=found.drawn, theme=theme))
    if seen.stuck:
        print(seen.stuck)


def name_the_fault(number: int) -> FaultQuestion:
    """The question which of the eight faults loop `number` has; raises InputError for a number that there is not."""
    return FaultQuestion(number)


class FaultQuestion(ipywidgets.VBox):
    """Eight faults to choose from; each choice is answered at once, with what is seen of it in this loop.

    Attributes:
        choice: the radio buttons; their value is a key of `faults.FAULTS`, None before the first choice.
        feedback: the answer, read out by a screen reader when it changes.
    """

    def __init__(self, number: int) -> None:
        self._bug = bug(number)
        self.choice = ipywidgets.RadioButtons(
            options=[(name(fault), fault) for fault in FAULTS], value=None, layout={"width": "auto"}
        )
        self.feedback = ipywidgets.HTML(_say(""))
        self.choice.observe(self._chosen, "value")
        question = _("What is wrong with loop {number}?").format(number=number)
        super().__init__([ipywidgets.HTML(f"<b>{escape(question)}</b>"), self.choice, self.feedback])

    def _chosen(self, change: dict) -> None:
        if change["new"] is not None:
            words = answer(change["new"], self._bug.fault, self._bug.seen, self._bug.reference)
            self.feedback.value = _say(words)


def _say(words: str) -> str:
    return f'<div role="status" dir="{direction()}" style="font-size:16px;line-height:1.5">{escape(words)}</div>'
