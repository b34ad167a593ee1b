"""A backward in two halves on ordinary modules: I gives the gradient of the input, W those of the weights.

Every module that owns parameters is watched in the forward. I asks autograd for the gradient of the stage's input and
of these modules' outputs, so no weight gradient is worked out; W takes each module's from the gradient of its output,
which goes no further than the module. Every number is the one that a whole backward gives, to the last bit.

A parameter that is used outside of its own module, or whose module is called more than once in a forward, has no one
output that all of its gradient comes from; its W is a whole backward for that parameter alone. `check` finds
what else cannot be split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paci_lab.schedules import Schedule

__all__ = ["SplitBackward", "splits_backward"]


def splits_backward(schedule: Schedule, stage: int) -> bool:
    """True when `stage` has I operations, as its first window shows."""
    first = takewhile(lambda op: op != (stage, "U", 0), schedule.ops(schedule.rank_of(stage)))
    return any(op.kind == "I" and op.stage == stage for op in first)


class _Call(NamedTuple):
    module: nn.Module
    output: Tensor


class _Deferred(NamedTuple):
    """What W still has to do."""

    parts: list[tuple[Tensor, Tensor, list[nn.Parameter]]]  # output of a module, its gradient, its parameters
    rest: tuple[Tensor, Tensor | None, list[nn.Parameter]]  # output of the stage, its gradient, all other parameters


class SplitBackward:
    """The halves of `layers`' backward, for any number of micro-batches in flight."""

    def __init__(self, layers: nn.Module) -> None:
        self.parameters = [parameter for parameter in layers.parameters() if parameter.requires_grad]
        self._calls: list[_Call] | None = None
        self._of: dict[int, list[_Call]] = {}
        self._deferred: dict[int, _Deferred] = {}
        for module in layers.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_hook(self._called)

    def _called(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if self._calls is not None and isinstance(output, Tensor) and output.requires_grad:
            self._calls.append(_Call(module, output))

    @contextmanager
    def forward(self, microbatch: int) -> Iterator[None]:
        """Watch the block, which is the forward of `microbatch`."""
        self._calls = []
        try:
            yield
            self._of[microbatch] = self._calls
        finally:
            self._calls = None

    def whole(self, microbatch: int) -> None:
        """A whole backward of `microbatch` is being made instead."""
        del self._of[microbatch]

    def input_half(
        self, microbatch: int, activation: Tensor | None, output: Tensor, gradient: Tensor | None
    ) -> Tensor | None:
        """I: the gradient of `activation`, None for a stage that has none; what W needs is put by."""
        calls = self._of.pop(microbatch)
        count = Counter(id(call.module) for call in calls)
        once = [
            (call.output, [p for p in call.module.parameters(recurse=False) if p.requires_grad])
            for call in calls
            if count[id(call.module)] == 1
        ]
        outputs = [made for made, _ in once] + ([] if activation is None else [activation])
        # Kept, for W goes through parts of the same graph.
        gradients = torch.autograd.grad(output, outputs, gradient, retain_graph=True, allow_unused=True)
        # `gradient` lies in a buffer that is used again after I, and a module that ends the stage is given just that.
        buffer = None if gradient is None else gradient.untyped_storage().data_ptr()
        parts = [
            (made, given.clone() if given.untyped_storage().data_ptr() == buffer else given, parameters)
            for (made, parameters), given in zip(once, gradients, strict=False)
            if given is not None
        ]
        covered = {id(parameter) for _, parameters in once for parameter in parameters}
        rest = [parameter for parameter in self.parameters if id(parameter) not in covered]
        kept = gradient.clone() if rest and gradient is not None else None
        self._deferred[microbatch] = _Deferred(parts, (output, kept, rest))
        return None if activation is None else gradients[-1]

    def weight_half(self, microbatch: int) -> None:
        """W: add the gradients of the weights."""
        deferred = self._deferred.pop(microbatch)
        for output, gradient, parameters in deferred.parts:
            torch.autograd.backward(output, gradient, inputs=parameters, retain_graph=True)
        output, gradient, parameters = deferred.rest
        if parameters:
            torch.autograd.backward(output, gradient, inputs=parameters, retain_graph=True)

    def check(self, run: Any, activation: Tensor) -> None:
        """Compare the halves with a whole backward of `run(activation)`; ValueError, naming a weight, if they differ.

        Leaves no gradient behind.
        """
        with self.forward(-1):
            output = run(activation)
        gradient = torch.ones_like(output)
        inputs = activation if activation.requires_grad else None
        whole = torch.autograd.grad(
            output,
            [*self.parameters, *([] if inputs is None else [inputs])],
            gradient,
            retain_graph=True,
            allow_unused=True,
        )
        found = self.input_half(-1, inputs, output, gradient)
        self.weight_half(-1)
        halves = [parameter.grad for parameter in self.parameters] + ([] if inputs is None else [found])
        for parameter in self.parameters:
            parameter.grad = None
        for number, (half, all_of_it) in enumerate(zip(halves, whole, strict=True)):
            same = (
                half is None if all_of_it is None else half is not None and torch.allclose(half, all_of_it, rtol=1e-3)
            )
            if not same:
                shape = tuple(output.shape) if number == len(self.parameters) else tuple(self.parameters[number].shape)
                raise ValueError(
                    f"this model's backward cannot be split: the halves give another gradient for the weight of shape "
                    f"{shape} than the whole; a weight is used both by its module and outside of it. Use a schedule "
                    "with whole backwards, such as 1f1b"
                )
