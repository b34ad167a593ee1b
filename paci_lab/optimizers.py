"""Optimizers by name, each stage with its own, and a learning-rate schedule that counts tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paci_lab.errors import InputError
from paci_lab.models import is_hidden
from paci_lab.objects import accepts, load_object

__all__ = ["IMPLEMENTATIONS", "OPTIMIZERS", "Optimizer", "build_optimizer", "learning_rate_factor"]

IMPLEMENTATIONS = ("foreach", "forloop", "fused")

NamedParameters = Sequence[tuple[str, nn.Parameter]]


class Optimizer:
    """One or more torch optimizers that step as one and share one learning-rate factor.

    Attributes:
        parameters: every parameter it updates, in the order given.
        inner: the torch optimizers; empty when there are no parameters.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], inner: Sequence[torch.optim.Optimizer]) -> None:
        self.parameters, self.inner = tuple(parameters), list(inner)
        self._initial = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.inner]

    def step(self) -> None:
        for optimizer in self.inner:
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients, so that the next backward writes instead of adding."""
        for parameter in self.parameters:
            parameter.grad = None

    def stepped(self, parameter: Tensor) -> Tensor | None:
        """What this process steps for `parameter`: itself, its master, or nothing where another process does."""
        return parameter

    def in_full(self, tensor: Tensor) -> Tensor:
        """`tensor` in the precision that is stepped: itself, unless it is a parameter that has a master."""
        return tensor

    def scale_learning_rate(self, factor: float) -> None:
        """Set every group's learning rate to its initial one times ``factor``."""
        for optimizer, initial in zip(self.inner, self._initial, strict=True):
            for group, rate in zip(optimizer.param_groups, initial, strict=True):
                group["lr"] = rate * factor

    def state_dict(self) -> dict[str, Any]:
        """Moments and learning rates of every inner optimizer; the tensors are shared, not copied, as in torch."""
        return {"inner": [optimizer.state_dict() for optimizer in self.inner]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore moments and learning rates into an optimizer built the same way over the same parameters."""
        for optimizer, saved in zip(self.inner, state["inner"], strict=True):
            optimizer.load_state_dict(saved)


def _groups(parameters: NamedParameters, weight_decay: float) -> list[dict[str, Any]]:
    """Decay matrices, not vectors: biases and LayerNorm scales have no reason to be small."""
    matrices = [item for item in parameters if item[1].ndim >= 2]
    vectors = [item for item in parameters if item[1].ndim < 2]
    decays = ((matrices, weight_decay), (vectors, 0.0))
    return [{"params": members, "weight_decay": decay} for members, decay in decays if members]


def _flags(implementation: str) -> dict[str, bool]:
    return {"foreach": implementation == "foreach", "fused": implementation == "fused"}


@dataclass(frozen=True)
class _Request:
    """What the user asked for; ``parameters`` is not empty."""

    parameters: NamedParameters
    learning_rate: float
    weight_decay: float
    implementation: str
    options: dict[str, Any]

    def groups(self) -> list[dict[str, Any]]:
        return _groups(self.parameters, self.weight_decay)


def _adamw(asked: _Request) -> list[torch.optim.Optimizer]:
    flags = _flags(asked.implementation)
    return [torch.optim.AdamW(asked.groups(), lr=asked.learning_rate, **asked.options, **flags)]


def _nadam(asked: _Request) -> list[torch.optim.Optimizer]:
    foreach = asked.implementation == "foreach"
    options = {**asked.options, "decoupled_weight_decay": True, "foreach": foreach}
    return [torch.optim.NAdam(asked.groups(), lr=asked.learning_rate, **options)]


def _sgd(asked: _Request) -> list[torch.optim.Optimizer]:
    flags = _flags(asked.implementation)
    return [torch.optim.SGD(asked.groups(), lr=asked.learning_rate, **asked.options, **flags)]


def _muon(asked: _Request) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices (torch has it as a for-loop only), AdamW for all else.

    ``match_rms_adamw`` scales Muon's steps to the size of AdamW's, so that one learning rate serves both.
    """
    hidden = [item for item in asked.parameters if is_hidden(item[1])]
    rest = [item for item in asked.parameters if not is_hidden(item[1])]
    own = {key: asked.options[key] for key in ("momentum", "nesterov", "ns_steps")}
    adamw = {key: asked.options[key] for key in ("betas", "eps")}
    rate, inner = asked.learning_rate, []
    if hidden:
        groups = _groups(hidden, asked.weight_decay)
        inner.append(torch.optim.Muon(groups, lr=rate, adjust_lr_fn="match_rms_adamw", **own))
    if rest:
        groups = _groups(rest, asked.weight_decay)
        inner.append(torch.optim.AdamW(groups, lr=rate, **adamw, **_flags(asked.implementation)))
    return inner


@dataclass(frozen=True)
class _Recipe:
    build: Callable[[_Request], list[torch.optim.Optimizer]]
    defaults: dict[str, Any]
    implementations: tuple[str, ...] = IMPLEMENTATIONS


_BETAS, _EPS = (0.9, 0.95), 1e-8

_RECIPES = {
    "adamw": _Recipe(_adamw, {"betas": _BETAS, "eps": _EPS}),
    "nadam": _Recipe(
        _nadam, {"betas": (0.95, 0.95), "eps": _EPS, "momentum_decay": 0.004}, implementations=("foreach", "forloop")
    ),
    "muon": _Recipe(_muon, {"momentum": 0.95, "nesterov": True, "ns_steps": 5, "betas": _BETAS, "eps": _EPS}),
    "sgd": _Recipe(_sgd, {"momentum": 0.9, "nesterov": False}),
}

OPTIMIZERS: dict[str, dict[str, Any]] = {name: dict(recipe.defaults) for name, recipe in _RECIPES.items()}
"""Every named optimizer, with its options and their defaults."""

_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "betas": (
        "two numbers from 0 up to, not including, 1",
        lambda v: isinstance(v, Sequence) and len(v) == 2 and all(_is_number(b) and 0 <= b < 1 for b in v),
    ),
    "eps": ("a number above 0", lambda v: _is_number(v) and v > 0),
    "momentum": ("a number from 0 up to, not including, 1", lambda v: _is_number(v) and 0 <= v < 1),
    "momentum_decay": ("a number from 0", lambda v: _is_number(v) and v >= 0),
    "nesterov": ("true or false", lambda v: isinstance(v, bool)),
    "ns_steps": ("a whole number from 1 to 99", lambda v: isinstance(v, int) and _is_number(v) and 1 <= v < 100),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    defaults = _RECIPES[name].defaults
    for key, value in options.items():
        if key not in defaults:
            raise InputError(f"{name} option", key, f"one of {', '.join(defaults)}", f"remove {key}")
        allowed, fits = _RANGES[key]
        if not fits(value):
            raise InputError(f"{name}: {key}", value, allowed, f"try {key} = {defaults[key]}")
    checked = {**defaults, **options}
    if "betas" in checked:
        checked["betas"] = tuple(checked["betas"])  # TOML and JSON give a list
    if name == "sgd" and checked["nesterov"] and not checked["momentum"]:
        raise InputError("sgd: momentum", 0, "a number above 0 with nesterov", "raise it or set nesterov to false")
    return checked


def build_optimizer(
    name: str,
    named_parameters: NamedParameters,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    implementation: str = "foreach",
    options: Mapping[str, Any] | None = None,
) -> Optimizer:
    """Make the optimizer of one stage.

    Args:
        name: "adamw", "nadam", "muon", "sgd", or a user's own "module:Class" or "file.py:Class", called as
            ``Class(params, lr=..., **options)``, with weight_decay added when it is not 0.
        named_parameters: what ``module.named_parameters()`` gives. Muon takes those that the model marked
            (``paci_lab.models.is_hidden``: matrices outside the first and the last layer), AdamW the rest.
        learning_rate: above 0; for all groups.
        weight_decay: from 0; decoupled but for sgd; vectors (biases, LayerNorm) are not decayed.
        implementation: torch's "foreach", "forloop" or "fused". NAdam has no fused; Muon's own part is always a
            for-loop; a user's own takes it from its options.
        options: see ``OPTIMIZERS`` for the names and defaults; betas is a pair. "NAdam (0.95)" in the docs is
            betas = (0.95, 0.95).

    Raises:
        InputError: for an unknown name or option, or a value out of range.
    """
    options = dict(options or {})
    if not (_is_number(learning_rate) and learning_rate > 0):
        raise InputError("learning_rate", learning_rate, "a number above 0", "try learning_rate = 0.001")
    if not (_is_number(weight_decay) and weight_decay >= 0):
        raise InputError("weight_decay", weight_decay, "a number from 0", "try weight_decay = 0.1")
    if implementation not in IMPLEMENTATIONS:
        raise InputError("implementation", implementation, f"one of {', '.join(IMPLEMENTATIONS)}", "use foreach")
    named_parameters = list(named_parameters)
    parameters = [parameter for _, parameter in named_parameters]
    if name in _RECIPES:
        recipe, checked = _RECIPES[name], _checked_options(name, options)
        if implementation not in recipe.implementations:
            allowed = f"one of {', '.join(recipe.implementations)} for {name}"
            raise InputError("implementation", implementation, allowed, "use foreach")
        asked = _Request(named_parameters, learning_rate, weight_decay, implementation, checked)
        return Optimizer(parameters, recipe.build(asked) if parameters else [])
    if not accepts(name):
        raise InputError("optimizer", name, f"one of {', '.join(_RECIPES)}, or module:Class", "try nadam")
    return Optimizer(parameters, [_own(name, parameters, learning_rate, weight_decay, options)] if parameters else [])


def _own(
    name: str, parameters: list[nn.Parameter], learning_rate: float, weight_decay: float, options: dict[str, Any]
) -> torch.optim.Optimizer:
    factory = load_object("optimizer", name)
    allowed = "a torch.optim.Optimizer class that takes (params, lr=..., **options)"
    if weight_decay:
        options = {"weight_decay": weight_decay, **options}
    try:
        made = factory(parameters, lr=learning_rate, **options)
    except (TypeError, ValueError) as error:
        raise InputError("optimizer", f"{name} ({error})", allowed, "check its options") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError("optimizer", f"{name} (makes {type(made).__name__})", allowed, "derive it from that class")
    return made


def learning_rate_factor(
    tokens: int, total_tokens: int, *, kind: str = "cosine", warmup: float = 0.01, final: float = 0.1
) -> float:
    """Factor on the initial learning rate after ``tokens`` of ``total_tokens``; it knows no updates.

    Rises linearly from 0 to 1 over the first ``warmup`` share of the tokens, then falls along half a cosine to
    ``final`` ("cosine") or stays at 1 ("constant"). Count the tokens of the window that is about to step, so that
    the first update has a factor above 0. Past the end the factor stays.

    >>> [round(learning_rate_factor(tokens, 1000), 3) for tokens in (5, 10, 505, 1000, 2000)]
    [0.5, 1.0, 0.55, 0.1, 0.1]
    """
    if kind not in ("cosine", "constant"):
        raise InputError("learning-rate schedule", kind, "cosine or constant", "use cosine")
    if total_tokens < 1:
        raise InputError("total_tokens", total_tokens, "a whole number from 1", "give the tokens of the whole run")
    for what, value in (("warmup", warmup), ("final", final)):
        if not 0.0 <= value <= 1.0:
            raise InputError(what, value, "a share from 0 to 1", "try warmup = 0.01 and final = 0.1")
    share = min(tokens / total_tokens, 1.0)
    if share < warmup:
        return share / warmup
    if kind == "constant" or warmup == 1.0:
        return 1.0
    progress = (share - warmup) / (1.0 - warmup)
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
