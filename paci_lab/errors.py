"""The two ways paci_lab refuses: wrong input, and a run that failed."""

from __future__ import annotations

__all__ = ["InputError", "RunFailed", "printable"]


class InputError(ValueError):
    """A value the user gave cannot be used.

    The command line turns it into one message and exit code 2; a notebook shows the same sentence.

    Args:
        what: name of the value as the user wrote it: a flag, a TOML key or a file.
        value: what was given.
        allowed: the values that would have been accepted, in words.
        fix: what to do about it, in words.

    >>> print(InputError("window", 0, "a whole number from 1", "try window=8"))
    window = 0 is not possible: allowed is a whole number from 1. Try window=8.
    """

    def __init__(self, what: str, value: object, allowed: str, fix: str) -> None:
        self.what, self.value, self.allowed, self.fix = what, value, allowed, fix
        fix = fix[:1].upper() + fix[1:].rstrip(".")
        super().__init__(printable(f"{what} = {value!s} is not possible: allowed is {allowed}. {fix}."))


def printable(text: object) -> str:
    """`text` with control characters written out: those of a file that somebody else wrote would steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(text))


class RunFailed(RuntimeError):
    """A run started well and ended badly: the message names rank, stage, operation, micro-batch and cause."""
