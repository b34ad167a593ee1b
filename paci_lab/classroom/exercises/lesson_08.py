"""Exercise of lesson 08: give a framework the loss that comes out right after its own division."""

from __future__ import annotations

from collections.abc import Callable

from paci_lab.classroom.compare import close_tensor
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_rescale()]


def _framework(function: Callable, targets: list[int], ranks: int):
    """The gradient after one window of a framework that divides every loss by window and ranks, as one vector.

    `targets` are those of each micro-batch of each rank. The loss of one is the sum over its targets.
    """
    import torch

    draw = torch.Generator().manual_seed(sum(targets))
    weight = torch.zeros(5, requires_grad=True)
    window, count = len(targets) // ranks, sum(targets)
    for size in targets:
        total = (torch.randn(size, 5, generator=draw) @ weight).sum()
        loss = function(total, count, window, ranks)
        (loss / window / ranks).backward()
    return weight.grad


def _rescale() -> Exercise:
    return Exercise(
        id="08-rescale",
        title=_("The loss for a framework that divides"),
        function="loss_for_framework",
        difficulty=2,
        minutes=4,
        hints=(
            _("What should the gradient be? The sum over all targets, divided by their number."),
            _("The framework will divide by window and by ranks. Multiply by both beforehand."),
            _("return total * window * ranks / targets"),
        ),
        reference=lambda total, targets, window, ranks: total * window * ranks / targets,
        call=_framework,
        cases=[
            Case(([3], 1), _("one micro-batch on one rank")),
            Case(([3, 1], 1), _("two micro-batches of 3 and 1 targets")),
            Case(([4, 2, 3, 1], 2), _("two micro-batches on each of 2 ranks")),
        ],
        compare=close_tensor(),
        mistakes=[
            Mistake(
                lambda total, targets, window, ranks: total / targets,
                _("The framework divides once more: by the window, and by the ranks."),
            ),
            Mistake(
                lambda total, targets, window, ranks: total * window / targets,
                _("With several ranks it also takes their mean, so multiply by the ranks too."),
            ),
        ],
    )
