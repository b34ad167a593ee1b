"""The numbers a stage computes with: fp32, bf16 with fp32 masters, or autocast, which is a hidden weight stash.

fp32      weights, activations and messages are float32.
bf16      weights, activations and messages are bfloat16: the one copy that forwards and backwards read. The gradient
          of a window is added up in float32, and the optimizer steps float32 *masters*, which are then rounded into
          that copy. A backward uses the weights of its moment: PACI as published.
autocast  weights and messages are float32, and every operation casts what it multiplies to bfloat16 on its own. The
          cast weights are saved for the backward, so each micro-batch in flight keeps its own copy of them, and its
          backward uses the weights of its *forward*: weight stashing that nobody asked for. The context is entered
          anew for every forward, with its cache off, for a cast kept from an earlier forward would be out of date.

In all three the loss and its sums are float32, and validation is in float32 (on the masters in bf16, which round to
exactly what the run computes with; where replicas share out the optimizer none has all masters, and the rounded weights
are validated), so that a target loss means the same in each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paci_lab.models import is_hidden, mark_hidden
from paci_lab.optimizers import NamedParameters, Optimizer

__all__ = ["HIDDEN_STASH", "MasterWeights", "computing", "master_of", "message_dtype", "precision_label", "to_bf16"]

HIDDEN_STASH = "a hidden weight stash: a backward multiplies with a bf16 copy of the weights of its forward"


def precision_label(precision: str, *, recompute: bool = False) -> str:
    """The precision in words that do not hide what it does to the weights."""
    if precision == "bf16":
        return "bf16 weights and activations, fp32 masters in the optimizer"
    if precision == "autocast":
        dropped = "whose copies of the weights a stage that recomputes drops"
        return f"autocast, {dropped if recompute else HIDDEN_STASH}"
    return "fp32"


def message_dtype(precision: str) -> torch.dtype:
    """Of the activations and gradients that stages exchange."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def computing(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What one forward runs under."""
    if precision != "autocast":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


class MasterWeights(Optimizer):
    """An optimizer over float32 masters of bfloat16 parameters.

    Args:
        parameters: still with the numbers of `of_masters`, and bfloat16 with float32 gradients before the first step
            (`to_bf16`).
        of_masters: made for the float32 copies that `master_of` gives, in the same order.

    Attributes:
        parameters: the bfloat16 ones. Only the rounding of the masters into them changes what a backward may have
            saved, so they are what the version guard guards.
        masters: the float32 ones; part of the optimizer's state.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], of_masters: Optimizer) -> None:
        super().__init__(parameters, of_masters.inner)
        self.masters = of_masters.parameters

    def step(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad
        super().step()
        with torch.no_grad():
            torch._foreach_copy_(list(self.parameters), list(self.masters))
        for master in self.masters:
            master.grad = None

    def stepped(self, parameter: Tensor) -> Tensor | None:
        return next((m for p, m in zip(self.parameters, self.masters, strict=True) if p is parameter), None)

    def in_full(self, tensor: Tensor) -> Tensor:
        master = self.stepped(tensor)
        return tensor if master is None else master

    def state_dict(self) -> dict[str, Any]:
        """Moments, learning rates and masters."""
        return {**super().state_dict(), "masters": [master.detach() for master in self.masters]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them, and round the masters into the parameters."""
        super().load_state_dict(state)
        with torch.no_grad():
            for parameter, master, saved in zip(self.parameters, self.masters, state["masters"], strict=True):
                master.copy_(saved)
                parameter.copy_(master)


def master_of(named: NamedParameters) -> NamedParameters:
    """Float32 copies of parameters, with their names and the marks that an optimizer reads."""
    masters = [(name, nn.Parameter(parameter.detach().clone())) for name, parameter in named]
    mark_hidden(master for (_, master), (_, parameter) in zip(masters, named, strict=True) if is_hidden(parameter))
    return masters


def to_bf16(layers: nn.Module) -> None:
    """Round the weights of `layers` to bfloat16, in place, and let their gradients be float32."""
    layers.to(torch.bfloat16)
    for parameter in layers.parameters():
        parameter.grad_dtype = torch.float32  # a sum of many bfloat16 gradients would lose the small ones
