"""`predict`: a number or a choice asked for before a run, and held against what the run says."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from paci_lab.classroom import recorded
from paci_lab.classroom.feedback import Feedback
from paci_lab.errors import InputError
from paci_lab.language import _, direction

__all__ = ["Prediction", "predict"]


class Prediction:
    """A question in the page, and `against`, which compares.

    Args:
        question: "<lesson>-<word>", under which the guess is kept.
        asked: the question, in a sentence.
        unit: of the number that is asked for, as "%".
        choices: what to choose from, instead of a number.
    """

    def __init__(self, question: str, asked: str, *, unit: str = "", choices: Sequence[str] = ()) -> None:
        import ipywidgets

        if choices and len(choices) < 2:
            raise InputError("choices", list(choices), "two or more", "give what there is to choose from")
        self.question, self.unit, self.choices = question, unit, list(choices)
        words = html.escape(asked)
        style = "border-inline-start:6px solid #2373bb;padding:.2em .8em;font-size:1.1em;line-height:1.45;color:inherit"
        self._head = ipywidgets.HTML(f'<div dir="{direction()}" style="{style}"><b>{words}</b></div>')
        if choices:
            self._field = ipywidgets.RadioButtons(options=self.choices, value=None, tooltip=asked)
        else:
            # A field for text: one for numbers cannot be empty, and 0 would be taken for a guess.
            self._field = ipywidgets.Text(
                placeholder=_("your guess"), description=unit, tooltip=asked, continuous_update=True
            )
        self._said = ipywidgets.HTML(f'<div role="status">{html.escape(self._status())}</div>')
        self._field.observe(lambda change: self._tell(), "value")
        self.view = ipywidgets.VBox([self._head, self._field, self._said])

    @property
    def guess(self) -> float | str | None:
        """What the learner has said; None when nothing yet, or no number where one is asked for."""
        if self.choices:
            return self._field.value
        try:
            number = float(self._field.value.strip().rstrip("%").strip().replace(",", "."))
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    def against(self, found: float | str) -> Feedback:
        """Compare the guess with what was found, in a sentence, and keep the two."""
        guess = self.guess
        words = {"found": self._words(found), "guess": "" if guess is None else self._words(guess)}
        if guess is None:
            return Feedback("told", _("It is {found}. You had made no guess; next time, guess first.").format(**words))
        recorded.keep_guess(self.question, guess, found)
        if isinstance(found, str) or guess == found:
            if guess == found:
                return Feedback("told", _("You said {guess}, and so it is.").format(**words))
            return Feedback("told", _("You said {guess}; it is {found}.").format(**words))
        words["off"] = self._words(abs(guess - found))
        if guess > found:
            return Feedback("told", _("You said {guess}; it is {found}: your guess is {off} too high.").format(**words))
        return Feedback("told", _("You said {guess}; it is {found}: your guess is {off} too low.").format(**words))

    def _words(self, value: float | str) -> str:
        if isinstance(value, str):
            return value
        return f"{value:.3g} {self.unit}".strip()

    def _status(self) -> str:
        if self.guess is not None:
            return _("Noted: {guess}. Now run the next cells.").format(guess=self._words(self.guess))
        if not self.choices and self._field.value.strip():
            return _("That is no number.")
        return _("Guess first; then run the next cells.")

    def _tell(self) -> None:
        self._said.value = f'<div role="status">{html.escape(self._status())}</div>'

    def _ipython_display_(self) -> None:
        """Nothing: `predict` has shown it, and a cell that ends with it would show it again."""

    def __repr__(self) -> str:
        return self._status()


def predict(question: str, asked: str, *, unit: str = "", choices: Sequence[str] = ()) -> Prediction:
    """Ask for a guess: `guess = predict("02-bubble", "How much of the time is lost?", unit="%")`, shown in the page.

    Later, `guess.against(found)` says how far off it was. Raises InputError for less than two choices.
    """
    prediction = Prediction(question, asked, unit=unit, choices=choices)
    from IPython.display import display

    display(prediction.view)
    return prediction
