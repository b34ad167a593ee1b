"""Whether a loop did what the reference does, number by number, and where it first differs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from paci_lab.bugs.seen import Seen
from paci_lab.language import _

__all__ = ["ROUNDING", "difference"]

ROUNDING = 1e-3
"""How far a gradient may be from the reference's, as a share of its length: far more than float32 rounds off in these
few updates, and far less than any fault does."""


def difference(mine: dict[str, Any], right: dict[str, Any], *, rounding: float = ROUNDING) -> str | None:
    """The first thing that differs, in words that go on after "With 2 updates: "; None when nothing does.

    Both are `Seen.values`, of a learner's loop and of the reference.
    """
    seen, reference = Seen.of(mine), Seen.of(right)
    if seen.stuck != reference.stuck:
        return _("the ranks block each other: {who}").format(who=seen.stuck)
    for update in range(min(len(seen.rates), len(reference.rates))):
        if found := _in_update(update, seen, reference, rounding):
            return found
    if len(seen.rates) != len(reference.rates):
        sentence = _("the number of updates is {count}, and {due} are due.")
        return sentence.format(count=len(seen.rates), due=len(reference.rates))
    if seen.computed_in != reference.computed_in:
        sentence = _("the forwards compute in {mine}, and should compute in {right}.")
        return sentence.format(mine=seen.computed_in, right=reference.computed_in)
    if seen.evaluations != reference.evaluations:
        sentence = _("the number of evaluations is {count}, and {due} are due.")
        return sentence.format(count=seen.evaluations, due=reference.evaluations)
    held, enough = seen.trace().in_flight_peak(), reference.trace().in_flight_peak()
    for stage in range(reference.stages):
        if held[stage] > enough[stage]:
            sentence = _(
                "the numbers are right, but stage {stage} holds {count} micro-batches at once: {due} are enough."
            )
            return sentence.format(stage=stage, count=held[stage], due=enough[stage])
    return None


def _in_update(update: int, seen: Seen, reference: Seen, rounding: float) -> str | None:
    rate, due = seen.rates[update], reference.rates[update]
    if not math.isclose(rate, due, rel_tol=1e-6, abs_tol=1e-9):
        sentence = _("update {update} is made with a learning rate of {rate:.4g}, and {due:.4g} is due.")
        return sentence.format(update=update, rate=rate, due=due)
    mine, right = seen.gradients[update], reference.gradients[update]
    length, whole = float(np.linalg.norm(mine)), float(np.linalg.norm(right))
    if not math.isfinite(length):
        return _("the gradient of update {update} is no finite number any more.").format(update=update)
    if length == 0:
        return _("update {update} is made without any gradient.").format(update=update)
    apart = float(np.linalg.norm(mine - right)) / whole
    if apart > rounding:
        if float(mine @ right) / (length * whole) > 0.9999:
            sentence = _("the gradient of update {update} points the right way and is {ratio:.3g} times too long.")
            if length < whole:
                sentence = _("the gradient of update {update} points the right way and has {ratio:.3g} of its length.")
            return sentence.format(update=update, ratio=length / whole)
        sentence = _("the gradient of update {update} is another one: the two are {apart:.0%} of its length apart.")
        return sentence.format(update=update, apart=apart)
    if not math.isclose(seen.losses[update], reference.losses[update], rel_tol=10 * rounding):
        sentence = _("after update {update} the loss is {mine:.4f}, and should be {right:.4f}.")
        return sentence.format(update=update, mine=seen.losses[update], right=reference.losses[update])
    return None
