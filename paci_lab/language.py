"""The language of what a learner reads: one message catalogue, gettext's, for widgets, charts, checks and games.

The sentences stand in the code in English, each inside `_(…)` as one whole sentence with named places to fill in:
`_("Stage {stage} is idle.").format(stage=2)`; where a number decides the form, inside `ngettext(…)`. They are looked
up when they are shown, never at import: the language may be chosen later. A translation is one file,
`locale/<language>.po`, and PACI_LAB_LANGUAGE names it; without it, and for a sentence that the file has not, the
English stands. `paci_lab/catalogue.py` collects the sentences; en_XA and ar_XB are made-up languages that show what
it missed.
"""

from __future__ import annotations

import functools
import gettext as standard
import io
import os
import string
from pathlib import Path

from paci_lab.errors import InputError
from paci_lab.pseudo_language import PSEUDO, Pseudo

__all__ = ["FOLDER", "VARIABLE", "_", "direction", "language", "languages", "ngettext"]

FOLDER = Path(__file__).parent / "locale"
"""Where the catalogues are."""

VARIABLE = "PACI_LAB_LANGUAGE"
"""The environment variable that names the language."""

_RIGHT_TO_LEFT = ("ar", "dv", "fa", "he", "ps", "ur", "yi")
_ISOLATE, _POP = "\u2067", "\u2069"


def languages() -> list[str]:
    """English and every language that has a catalogue."""
    return ["en", *sorted(path.stem for path in FOLDER.glob("*.po"))]


def language() -> str:
    """The language in use; raises InputError when PACI_LAB_LANGUAGE names one without a catalogue, or a broken one."""
    chosen = os.environ.get(VARIABLE) or "en"
    _catalogue(chosen, FOLDER)
    return chosen


def direction() -> str:
    """ "rtl" for a language that is written from right to left, else "ltr"."""
    return "rtl" if _is_right_to_left(language()) else "ltr"


def _(message: str) -> str:
    """The message in the language in use."""
    return _catalogue(os.environ.get(VARIABLE) or "en", FOLDER).gettext(message)


def ngettext(one: str, many: str, number: int) -> str:
    """`one` or `many`, or what the language in use says for `number` of them."""
    return _catalogue(os.environ.get(VARIABLE) or "en", FOLDER).ngettext(one, many, number)


def _is_right_to_left(name: str) -> bool:
    return name.partition("_")[0] in _RIGHT_TO_LEFT


@functools.cache  # an error is not kept: a catalogue that was corrected is read again
def _catalogue(name: str, folder: Path) -> standard.NullTranslations:
    if name == "en":
        return standard.NullTranslations()
    if name in PSEUDO:
        found: standard.NullTranslations = Pseudo(name)
    elif name in [path.stem for path in folder.glob("*.po")]:
        found = _read(folder / f"{name}.po")
    else:
        raise InputError(VARIABLE, name, " | ".join(languages()), f"write {folder.name}/{name}.po, or unset it")
    return _Isolated(found) if _is_right_to_left(name) else found


class _Isolated(standard.NullTranslations):
    """Messages that bring their direction along: charts are drawn from left to right, and so are texts in them."""

    def __init__(self, inner: standard.NullTranslations) -> None:
        super().__init__()
        self._inner = inner

    def gettext(self, message: str) -> str:
        return f"{_ISOLATE}{self._inner.gettext(message)}{_POP}"

    def ngettext(self, one: str, many: str, number: int) -> str:
        return f"{_ISOLATE}{self._inner.ngettext(one, many, number)}{_POP}"


def _read(path: Path) -> standard.NullTranslations:
    """A catalogue as it is, for one that had to be compiled first would be two files, one of them often out of date.

    Raises InputError, naming file, line and message, for one that would fail later, in the middle of a callback.
    """
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import PoFileError, read_po

    where = f"{path.parent.name}/{path.name}"
    try:
        with open(path, "rb") as file:
            catalogue = read_po(file, abort_invalid=True)
        for message in catalogue:
            _check(where, message)
        compiled = io.BytesIO()
        write_mo(compiled, catalogue)
        compiled.seek(0)
        return standard.GNUTranslations(compiled)
    except PoFileError as error:
        line = f"{where} line {error.lineno + 1}"
        raise InputError(line, error.line.strip(), "a gettext catalogue", f"correct it ({error})") from None
    except InputError:
        raise
    except (OSError, ValueError) as error:  # UnicodeDecodeError and a broken Plural-Forms are ValueErrors
        raise InputError("catalogue", where, "a gettext catalogue in UTF-8", f"correct it ({error})") from None


def _check(where: str, message) -> None:
    """Raise InputError when a translation has a place that its English has not; a fuzzy one is not used."""
    if not message.id or message.fuzzy:
        return
    english = (message.id,) if isinstance(message.id, str) else message.id
    known = set().union(*map(_places, english))
    for text in (message.string,) if isinstance(message.string, str) else message.string:
        try:
            unknown = _places(text or "") - known
        except ValueError as error:
            unknown = {str(error)}
        if unknown:
            line = f"{where} line {message.lineno}" if message.lineno else where
            places = " ".join(sorted(known)) or "(it has none)"
            allowed = f"a translation of {english[-1]!r} with no other places than {places}"
            raise InputError(line, repr(text), allowed, f"correct {' '.join(sorted(unknown))}")


def _places(text: str) -> set[str]:
    """The places of a message, as in {"{stage}", "{share:.1%}"}; raises ValueError for one that is not closed."""
    return {
        "{" + field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "") + "}"
        for _text, field, form, conversion in string.Formatter().parse(text)
        if field is not None
    }
