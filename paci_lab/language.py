"""The language of what a learner reads: one message catalogue, gettext's, for widgets, charts, checks and games.

The sentences stand in the code in English, each inside `_(…)` as one whole sentence with named places to fill in:
`_("Stage {stage} is idle.").format(stage=2)`. A translation is one file, `locale/<language>.po`, and PACI_LAB_LANGUAGE
names it; without it, and for a sentence that the file has not, the English stands.
"""

from __future__ import annotations

import functools
import gettext as standard
import io
import os
from pathlib import Path

from paci_lab.errors import InputError

__all__ = ["FOLDER", "_", "direction", "language", "languages", "ngettext"]

FOLDER = Path(__file__).parent / "locale"
"""Where the catalogues are."""

VARIABLE = "PACI_LAB_LANGUAGE"
_RIGHT_TO_LEFT = ("ar", "dv", "fa", "he", "ps", "ur", "yi")


def languages() -> list[str]:
    """English and every language that has a catalogue."""
    return ["en", *sorted(path.stem for path in FOLDER.glob("*.po"))]


def language() -> str:
    """The language in use; raises InputError when PACI_LAB_LANGUAGE names one without a catalogue."""
    chosen = os.environ.get(VARIABLE) or "en"
    if chosen not in languages():
        raise InputError(VARIABLE, chosen, " | ".join(languages()), f"write {FOLDER.name}/{chosen}.po, or unset it")
    return chosen


def direction() -> str:
    """ "rtl" for a language that is written from right to left, else "ltr"."""
    return "rtl" if language().partition("_")[0] in _RIGHT_TO_LEFT else "ltr"


def _(message: str) -> str:
    """The message in the language in use."""
    return _catalogue(language()).gettext(message)


def ngettext(one: str, many: str, number: int) -> str:
    """`one` or `many`, or what the language in use says for `number` of them."""
    return _catalogue(language()).ngettext(one, many, number)


@functools.cache
def _catalogue(name: str) -> standard.NullTranslations:
    if name == "en":
        return standard.NullTranslations()
    # Read as it is: a catalogue that had to be compiled first would be two files, one of them often out of date.
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    compiled = io.BytesIO()
    with open(FOLDER / f"{name}.po", "rb") as file:
        write_mo(compiled, read_po(file, locale=None))
    compiled.seek(0)
    return standard.GNUTranslations(compiled)
