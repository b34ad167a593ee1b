"""The eight faults: their names, what each would be seen by, and what is seen of that in a given loop."""

from __future__ import annotations

import math
from collections.abc import Callable

from paci_lab.bugs.seen import Seen
from paci_lab.language import _, ngettext

__all__ = ["FAULTS", "answer", "name"]

FAULTS = ("rescaled", "summed", "means", "wiped", "shifted", "scheduler", "stale", "deadlock")
"""Keys, in the order in which a learner chooses from them."""


def name(fault: str) -> str:
    """The fault in a few words."""
    return {
        "rescaled": _("The gradients are divided again in every step."),
        "summed": _("A sum is used where a mean is meant."),
        "means": _("A mean of means is taken over unequal numbers of targets."),
        "wiped": _("An evaluation clears the gradients in mid-window."),
        "shifted": _("The targets are those of another micro-batch, off by one."),
        "scheduler": _("The learning-rate schedule steps with every micro-batch."),
        "stale": _("Autocast goes on using weights that it cast before the update."),
        "deadlock": _("Two ranks send in an order in which they block each other."),
    }[fault]


def answer(guess: str, right: str, seen: Seen, reference: Seen) -> str:
    """What is said to somebody who takes the fault `right` for `guess`: with reasons from what was seen."""
    verdict = _("Right.") if guess == right else _("Not this one.")
    return f"{verdict} {_sign(guess)} {_MEASURED[guess](seen, reference)}"


def _sign(fault: str) -> str:
    """What this fault does to what is seen, whatever the loop."""
    return {
        "rescaled": _("Dividing again in every step makes gradients too short: the loss comes down, but slowly."),
        "summed": _("A sum makes each gradient as many times too long as a window has micro-batches, here 4."),
        "means": _("A mean of means does harm where micro-batches have unequal numbers of targets."),
        "wiped": _("An evaluation in mid-window is a forward without a backward, and that window's gradient is short."),
        "shifted": _("With targets of other inputs there is nothing to learn, and the loss stays that of guessing."),
        "scheduler": _("After a schedule that ends too early the loss stands still, and the gradient stays long."),
        "stale": _("With old weights in the forward the gradient hardly changes, and the weights overshoot."),
        "deadlock": _("Ranks that block each other stand still, and no update follows."),
    }[fault]


def _compared(seen: Seen, reference: Seen) -> str:
    if not seen.norms:
        return _("Here there is no update, so there is no gradient to compare.")
    ratio = seen.norms[0] / reference.norms[0]
    if abs(ratio - 1) < 0.005:
        return _("Here the first update's gradient is as long as the reference's.")
    return _("Here the first update's gradient is {ratio:.2f} times as long as the reference's.").format(ratio=ratio)


def _slow(seen: Seen, reference: Seen) -> str:
    words = _compared(seen, reference)
    if seen.losses and math.isfinite(seen.losses[-1]):
        words += " " + _("The loss comes down to {lowest:.2f}.").format(lowest=min(seen.losses))
    return words


def _targets(seen: Seen, _reference: Seen) -> str:
    if min(seen.tokens) == max(seen.tokens):
        return _("Here every micro-batch has {count} of them.").format(count=max(seen.tokens))
    sentence = _("Here they have from {fewest} to {most}, which the widths of the bars show.")
    return sentence.format(fewest=min(seen.tokens), most=max(seen.tokens))


def _evaluations(seen: Seen, _reference: Seen) -> str:
    if not seen.evaluations:
        return _("Here there is no evaluation.")
    sentence = ngettext("Here there is {count} evaluation.", "Here there are {count} evaluations.", seen.evaluations)
    return sentence.format(count=seen.evaluations)


def _learnt(seen: Seen, reference: Seen) -> str:
    if not seen.losses:
        return _("Here there is no update, so nothing is learnt at all.")
    if not math.isfinite(seen.losses[-1]):
        return _("Here the loss leaves all bounds.")
    sentence = _("Here the lowest loss is {lowest:.2f}, and the reference's is {other:.2f}; guessing gives 3.47.")
    return sentence.format(lowest=min(seen.losses), other=min(reference.losses))


def _halves(seen: Seen, _reference: Seen) -> str:
    if not seen.losses:
        return _("Here the training stands still before its first update.")
    if not math.isfinite(seen.losses[-1]):
        return _("Here the loss leaves all bounds.")
    sentence = _(
        "Here the loss falls by {first:.2f} in the first half and by {second:.2f} in the second, and the last gradient "
        "is {ratio:.2f} times as long as the first."
    )
    middle = seen.losses[len(seen.losses) // 2]
    falls = {"first": seen.losses[0] - middle, "second": middle - seen.losses[-1]}
    return sentence.format(ratio=seen.norms[-1] / seen.norms[0], **falls)


def _overshoot(seen: Seen, _reference: Seen) -> str:
    if not seen.losses:
        return _("Here there is no update after which a weight could be old.")
    if not math.isfinite(seen.losses[-1]):
        return _("Here the gradient grows without bounds.")
    ratio, rise = max(seen.norms) / min(seen.norms), seen.losses[-1] - min(seen.losses)
    sentence = _(
        "Here the longest gradient is {ratio:.1f} times the shortest, and the loss ends {rise:.2f} above its lowest."
    )
    return sentence.format(ratio=ratio, rise=rise)


def _standing(seen: Seen, reference: Seen) -> str:
    if seen.stuck:
        return seen.stuck
    sentence = ngettext("Here the one update is made.", "Here all {count} updates are made.", len(reference.losses))
    return sentence.format(count=len(seen.losses))


_MEASURED: dict[str, Callable[[Seen, Seen], str]] = {
    "rescaled": _slow,
    "summed": _compared,
    "means": _targets,
    "wiped": _evaluations,
    "shifted": _learnt,
    "scheduler": _halves,
    "stale": _overshoot,
    "deadlock": _standing,
}
