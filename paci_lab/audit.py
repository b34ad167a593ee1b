"""The version audit: which version of the weights a backward really used, measured on the real stage.

A micro-batch goes forward through the stage as the engine sends it. Then the weights are changed as an update changes
them, in place and behind the version guard, but by a known factor, 2, which no rounding blurs. The micro-batch goes
back, and what each module gave as the gradient of its input is compared with what that module alone gives for the
same input and the same gradient of its output: once with the weights before the change, once with those after it.

    current    it equals the second: the backward read the weights as they were at its moment
    forward's  it equals the first: the backward read a copy that was made in the forward
    mixed      neither: the module keeps something else of its forward that depends on its weights
    not used   both are equal: this weight does not enter the backward (a bias; the rows of an embedding)
    not seen   the module was not called, or no gradient came to what it made

Nothing is assumed about how a copy may hide. Autocast's casts are found, and so are the copies of a custom Function
and of schedules that stash. Factor and guard are undone afterwards: times 1/2 is exact too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paci_lab.data import open_data
from paci_lab.models import build_model
from paci_lab.precision import computing, message_dtype
from paci_lab.runtime.guard import guarded_step
from paci_lab.runtime.weights import weights_for
from paci_lab.spec import TrainSpec

if TYPE_CHECKING:
    from paci_lab.runtime.stage import Stage

__all__ = ["audit", "audit_stage", "merge_findings"]

_CLOSE = 0.05
"""Share of the distance between the two references within which a gradient is one of them."""

_MARK = 0.5
"""Value that stands for a weight of nothing but zeros, which no factor changes, while the audit lasts."""


def audit(spec: TrainSpec) -> dict[str, str]:
    """Audit every stage of `spec` (resolved or not) in this process: {kind of parameter: finding}.

    Raises what `resolve` raises.
    """
    from paci_lab.runtime.resolve import resolve
    from paci_lab.runtime.stage import Stage

    spec = resolve(spec)
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    schedule, device = spec.build_schedule(), torch.device(spec.device)
    return merge_findings(
        [audit_stage(Stage(spec, model, data, schedule, stage, device)) for stage in range(spec.stages)]
    )


def audit_stage(stage: Stage) -> dict[str, str]:
    """Audit one stage before its first micro-batch; it is left as it was.

    One layer of each kind is looked at, for layers of one kind differ in nothing but their weights. Dropout is off
    meanwhile. Takes about the time of three forwards and backwards of one micro-batch.
    """
    kinds = {stage.model.layer_kind(layer): layer for layer in range(stage.first_layer, _end(stage))}
    layers = [stage.layers[layer - stage.first_layer] for layer in kinds.values()]
    weights = stage.weights
    stage.weights = weights_for(stage.schedule, stage.optimizer.parameters)  # a probe must not use up real versions
    stage.layers.eval()
    probes = [_Probe(module) for layer in layers for module in layer.modules() if _own(module)]
    own = [parameter for probe in probes for parameter in probe.parameters.values()]
    try:
        with _marked(own) as mark:
            stage.forward(0, None if stage.first else stage._sample())
            stage.weights.before_update()
            guarded_step(mark, stage.optimizer.parameters)
            _backward(stage)
            for probe in probes:
                probe.hooks_off()
            findings = [probe.finding(stage) for probe in probes]
    finally:
        stage.weights = weights
        stage.losses.clear()
        stage.layers.train()
        stage.optimizer.zero_grad()
    return merge_findings(findings)


def merge_findings(findings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """One finding per kind; where they differ, all of them, divided by " / "."""
    words: dict[str, set[str]] = {}
    for found in findings:
        for kind, word in found.items():
            words.setdefault(kind, set()).update(word.split(" / "))
    return {kind: " / ".join(sorted(words[kind])) for kind in sorted(words)}


def _end(stage: Stage) -> int:
    return stage.first_layer + len(stage.layers)


def _own(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _backward(stage: Stage) -> None:
    gradient = None
    if not stage.last:
        shape, dtype = stage.model.boundary_shape(stage.spec.microbatch_size), message_dtype(stage.spec.precision)
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(stage.device, dtype)
    if stage.split is None:
        stage.backward(0, gradient)
    else:
        stage.input_gradient(0, gradient)
        stage.weight_gradient(0)


@contextlib.contextmanager
def _marked(parameters: Sequence[nn.Parameter]) -> Iterator[Callable[[], None]]:
    """Gives the function that marks `parameters`; the mark is taken off in the end."""
    hollow = [parameter for parameter in parameters if not parameter.any()]
    done = []

    def mark() -> None:
        with torch.no_grad():
            torch._foreach_mul_(list(parameters), 2.0)
        done.append(True)

    with torch.no_grad():
        for parameter in hollow:
            parameter.fill_(_MARK)
    try:
        yield mark
    finally:
        with torch.no_grad():
            if done:
                torch._foreach_mul_(list(parameters), 0.5)
            for parameter in hollow:
                parameter.zero_()


class _Probe:
    """Watches one module that owns parameters, in its first call that makes a graph."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}
        self.call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.given: Tensor | None = None  # gradient of the output
        self.made: Tensor | None = None  # gradient of the input; None where the input has none, as for tokens
        self._handles = [
            module.register_forward_pre_hook(self._enter, with_kwargs=True),
            module.register_forward_hook(self._leave),
        ]

    def _enter(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.call is not None or not torch.is_grad_enabled():
            return None
        self.call = (args, kwargs)
        if not _has_gradient(args):
            return None
        # A tensor of its own: the input may have other readers, whose gradients are not this module's.
        own = args[0].view_as(args[0])
        own.register_hook(lambda gradient: setattr(self, "made", gradient))
        return (own, *args[1:]), kwargs

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if self.given is None and isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda gradient: setattr(self, "given", gradient))

    def hooks_off(self) -> None:
        for handle in self._handles:
            handle.remove()

    def finding(self, stage: Stage) -> dict[str, str]:
        """What the backward that is over now has used, for each of this module's parameters."""
        kinds = {name: f"{type(self.module).__name__} {name}" for name in self.parameters}
        if self.call is None or self.given is None or not self.given.any():
            return dict.fromkeys(kinds.values(), "not seen")
        current = self._alone(stage)
        used = []
        for name, parameter in self.parameters.items():
            with _halved([parameter]):
                if _distance(self._alone(stage), current) > 1e-3 * _distance(current, torch.zeros_like(current)):
                    used.append(name)
        with _halved(list(self.parameters.values())):
            forwards = self._alone(stage)
        found, apart = self._found(), _distance(current, forwards)
        if _distance(found, current) <= _CLOSE * apart:
            word = "current"
        else:
            word = "forward's" if _distance(found, forwards) <= _CLOSE * apart else "mixed"
        return {kind: word if name in used else "not used" for name, kind in kinds.items()}

    def _found(self) -> Tensor:
        if self.made is not None:
            return self.made.float().flatten()
        return torch.cat([p.grad.float().flatten() for p in self.parameters.values() if p.grad is not None])

    def _alone(self, stage: Stage) -> Tensor:
        """The same gradient from the module by itself, forward and backward with its weights as they are now."""
        args, kwargs = self.call
        wanted = list(self.parameters.values())
        if _has_gradient(args):
            args = (args[0].detach().requires_grad_(), *args[1:])
            wanted = [args[0]]
        with computing(stage.spec.precision, stage.device):
            output = self.module(*args, **kwargs)
        gradients = torch.autograd.grad(output, wanted, self.given, allow_unused=True)
        return torch.cat([gradient.float().flatten() for gradient in gradients if gradient is not None])


def _has_gradient(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], Tensor) and args[0].requires_grad


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm())


@contextlib.contextmanager
def _halved(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """With these weights as they were before the mark."""
    with torch.no_grad():
        torch._foreach_mul_(list(parameters), 0.5)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_mul_(list(parameters), 2.0)
