"""Made-up languages, written on the fly, that show which sentences are not in the catalogue and where a layout breaks.

en_XA is English in accented letters, in brackets and longer by a third: plain letters in it were never looked up, a
text without its closing bracket was cut off. ar_XB is English from right to left, word by word, and as long.
"""

from __future__ import annotations

import functools
import gettext
import re

__all__ = ["PSEUDO", "Pseudo"]

PSEUDO = ("en_XA", "ar_XB")
"""What PACI_LAB_LANGUAGE may name beside the catalogues."""

_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ACCENTED = str.maketrans(_PLAIN, "ÅƁÇÐÉƑĜĤÎĴĶĻṀÑÖÞǪŔŠŢÛṼŴẊÝŽåƀçðéƒĝĥîĵķļḿñöþɋŕšţûṽŵẋýž")
_PLACE = re.compile(r"(\{[^{}]*\})")
_WORD = re.compile(r"[^\W\d_]+")
_OVERRIDE, _POP = "\u202e", "\u202c"


class Pseudo(gettext.NullTranslations):
    """Every message in the language `name` of `PSEUDO`; places to fill in stay as they are."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._write = functools.cache(_accented if name == "en_XA" else _mirrored)

    def gettext(self, message: str) -> str:
        return self._write(message)

    def ngettext(self, one: str, many: str, number: int) -> str:
        return self._write(one if number == 1 else many)


def _accented(message: str) -> str:
    return "⟦" + _outside(message, lambda text: text.translate(_ACCENTED)) + _padding(message) + "⟧"


def _mirrored(message: str) -> str:
    return _outside(message, lambda text: _WORD.sub(lambda word: _OVERRIDE + word[0] + _POP, text)) + _padding(message)


def _padding(message: str) -> str:
    """A third of the message's length, for other languages need more room than English."""
    return "·" * -(-sum(character.isalpha() for character in _PLACE.sub("", message)) // 3)


def _outside(message: str, write) -> str:
    """`write` applied to the parts of a message between its places."""
    return "".join(part if part.startswith("{") else write(part) for part in _PLACE.split(message))
