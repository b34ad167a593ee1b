"""Comparisons for exercises: each is made once and then gives, for two values, what differs, as a sentence, or None.

The learner's value may be anything that `values.decode` makes; the reference's is as the reference returns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from paci_lab.classroom.values import Foreign, describe
from paci_lab.language import _

__all__ = ["close", "close_tensor", "same", "same_orders"]


def close(*, relative: float = 1e-3, absolute: float = 1e-9) -> Callable[[Any, Any], str | None]:
    """Numbers that agree to rounding, and lists of them."""

    def compare(got: Any, expected: Any) -> str | None:
        if isinstance(expected, list | tuple):
            if not isinstance(got, list) or len(got) != len(expected):
                words = {"got": describe(got), "size": len(expected)}
                return _nothing() if got is None else _("it gives {got}, and not {size} numbers.").format(**words)
            for place, (one, other) in enumerate(zip(got, expected, strict=True)):
                if (difference := compare(one, other)) is not None:
                    words = {"place": place, "difference": difference}
                    return _("at place {place} (counted from 0) of what it returns, {difference}").format(**words)
            return None
        if (wrong := _no_number(got)) is not None:
            return wrong
        if math.isclose(got, expected, rel_tol=relative, abs_tol=absolute):
            return None
        return _unequal(got, expected)

    return compare


def same() -> Callable[[Any, Any], str | None]:
    """Equal whole numbers, texts, switches, None, and lists of them; lists are told by their first difference."""

    def compare(got: Any, expected: Any) -> str | None:
        expected = list(expected) if isinstance(expected, tuple) else expected
        if isinstance(expected, list):
            return _same_list(got, expected)
        if got is None and expected is not None:
            return _nothing()
        if type(expected) is int and type(got) is float and math.isfinite(got):
            words = _("it gives {got}, which is a float, and right is a whole number. Use // in place of /, or int().")
            return words.format(got=describe(got))
        if type(expected) is int and type(got) is not int:
            return _("it gives {got}, and not a whole number.").format(got=describe(got))
        return None if type(got) is type(expected) and got == expected else _unequal(got, expected)

    return compare


def same_orders() -> Callable[[Any, Any], str | None]:
    """A list per stage of operations written as text ("F0", "B0")."""

    def compare(got: Any, expected: list[list[str]]) -> str | None:
        if not isinstance(got, list) or len(got) != len(expected):
            return _("it gives {got}, and not a list of operations.").format(got=describe(got))
        for stage, (yours, right) in enumerate(zip(got, expected, strict=True)):
            if (difference := _same_list(yours, right)) is not None:
                return _("on stage {stage}, {difference}").format(stage=stage, difference=difference)
        return None

    return compare


def close_tensor(*, relative: float = 1e-4, none: str | None = None) -> Callable[[Any, Any], str | None]:
    """Tensors of one shape whose difference is short beside the reference; a wrong factor is told as a factor.

    `none` is what to say of None, where that is not what the learner's function returns.
    """

    def compare(got: Any, expected: Any) -> str | None:
        import torch

        if got is None:
            return none or _nothing()
        if not isinstance(got, torch.Tensor):
            return _("it gives {got}, and not a tensor.").format(got=describe(got))
        expected = expected.detach().double()
        if got.shape != expected.shape:
            shapes = {"got": tuple(got.shape), "expected": tuple(expected.shape)}
            return _("it gives a tensor of shape {got}; right is {expected}.").format(**shapes)
        if not torch.isfinite(got).all():
            return _("it gives numbers that are not finite.")
        length = float(expected.norm())
        error = float((got - expected).norm())
        if error <= relative * max(length, 1e-12):
            return None
        factor = float((got * expected).sum()) / length**2 if length else 0.0
        if factor > 0 and float((got - factor * expected).norm()) <= relative * abs(factor) * length:
            return _("it gives {factor:.3g} times what is right.").format(factor=factor)
        if not length:
            return _("it gives other numbers than 0, and all should be 0.")
        sentence = _("its numbers are wrong: they are off by {share:.0%} of the size of the right ones.")
        return sentence.format(share=error / length)

    return compare


def _same_list(got: Any, expected: list) -> str | None:
    if got is None:
        return _nothing()
    if not isinstance(got, list):
        return _("it gives {got}, and not a list.").format(got=describe(got))
    for place, (one, other) in enumerate(zip(got, expected, strict=False)):
        if isinstance(one, list) and isinstance(other, list | tuple):
            if _same_list(one, list(other)) is None:
                continue
        elif type(one) is type(other) and one == other:
            continue
        words = {"place": place, "got": describe(one), "expected": describe(other)}
        return _("entry {place} of its list is {got}; right is {expected}. Entries are counted from 0.").format(**words)
    if len(got) != len(expected):
        return _("its list has {got} entries; right is {expected}.").format(got=len(got), expected=len(expected))
    return None


def _no_number(got: Any) -> str | None:
    """What is wrong with `got` as a finite number, or None."""
    if got is None:
        return _nothing()
    if isinstance(got, bool) or not isinstance(got, int | float) or isinstance(got, Foreign):
        return _("it gives {got}, and not a number.").format(got=describe(got))
    if isinstance(got, float) and not math.isfinite(got):
        return _("it gives {got}, which is no finite number.").format(got=got)
    return None


def _nothing() -> str:
    return _("it returns nothing. Does every path end with return?")


def _unequal(got: Any, expected: Any) -> str:
    return _("it gives {got}; right is {expected}.").format(got=describe(got), expected=describe(expected))
