"""Exercise of lesson 05: a step with 32-bit masters, without which small updates vanish."""

from __future__ import annotations

from collections.abc import Callable

from paci_lab.classroom.compare import close_tensor
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_master()]


def _after(function: Callable, steps: int, rate: float):
    """The 16-bit weights and the masters after `steps` steps along a constant gradient."""
    import torch

    master = torch.linspace(0.5, 2.0, 4)
    weight = master.to(torch.bfloat16)
    gradient = torch.ones(4, dtype=torch.bfloat16)
    for _number in range(steps):
        function(weight, master, gradient, rate)
    return torch.stack([weight.float(), master.float()])


def _reference(weight, master, gradient, rate):
    master -= rate * gradient.float()
    weight.copy_(master)


def _in_16_bits(weight, master, gradient, rate):
    weight -= rate * gradient
    master.copy_(weight)


def _not_copied(weight, master, gradient, rate):
    master -= rate * gradient.float()


def _master() -> Exercise:
    return Exercise(
        id="05-master",
        title=_("A step that does not vanish"),
        function="master_step",
        difficulty=2,
        minutes=5,
        hints=(
            _("Which of the two tensors has enough digits for a small step?"),
            _("Step the master in place, in 32 bits: master -= …. Then the weight must follow."),
            _("master -= rate * gradient.float(), and then weight.copy_(master)"),
        ),
        reference=_reference,
        call=_after,
        cases=[
            Case((1, 0.25), _("one large step")),
            Case((1, 0.001), _("one small step")),
            Case((200, 0.001), _("200 small steps")),
        ],
        compare=close_tensor(relative=1e-5),
        mistakes=[
            Mistake(_in_16_bits, _("You step in 16 bits: 1 − 0.001 is 1 there, however often. Step the master.")),
            Mistake(_not_copied, _("The masters are right; the 16-bit weights have not followed.")),
        ],
    )
