"""All that a stage is between two updates, as named tensors and plain numbers, and back, bit for bit.

Everything is kept by layer (`layers.<number in the whole model>.<name in the layer>`), so that stages cut elsewhere
find theirs: weights; what the optimizer keeps for each of them, tensors and numbers apart; and the state of the random
numbers, which belongs to a process and comes back only to the same cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paci_lab.errors import InputError
from paci_lab.optimizers import OPTIMIZERS, Optimizer, build_optimizer

if TYPE_CHECKING:
    from paci_lab.runtime.stage import Stage
    from paci_lab.spec import TrainSpec

__all__ = ["check_savable", "optimizer_state", "restore_optimizer", "restore_stage", "stage_state"]

_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
)
_DTYPES += (torch.uint8, torch.bool)
_GIVEN = ("params", "lr")  # of a parameter group: what the run sets, not what the optimizer remembers


def stage_state(stage: Stage) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors on the CPU, plain values) of a stage that holds no micro-batch.

    Replicas have the same weights; where they share out the optimizer, each of the others gives what it steps.
    """
    assert not stage.held and stage.accumulation.pending == 0, "a checkpoint is made at a drained point"
    names = _names(stage)
    kept, numbers, groups = optimizer_state(stage.optimizer, names, own=stage.spec.optimizer not in OPTIMIZERS)
    tensors = {f"optimizer/{name}": tensor for name, tensor in kept.items()}
    if stage.replica == 0:
        tensors |= {f"weights/{name}": tensor for name, tensor in stage.state().items()}
        tensors |= {f"clipping/{name}": tensor for name, tensor in stage.clipping.state().items()}
        tensors["random/cpu"] = torch.get_rng_state()
        if stage.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(stage.device)
    for parameter, name in zip(stage.optimizer.parameters, names, strict=True):
        if (stepped := stage.optimizer.stepped(parameter)) is not None:
            tensors[f"weights/{name}"] = stepped.detach().to("cpu", copy=True)
    return tensors, {"numbers": numbers, "groups": groups, "tokens": stage.tokens}


def restore_stage(
    stage: Stage, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, first_update: int, same_cut: bool
) -> None:
    """Make a fresh stage what `stage_state` saw, given the tensors and values of all its layers.

    Args:
        first_update: the update it makes next.
        same_cut: the tensors come from this very stage, random numbers included.

    Raises InputError when they do not fit.
    """
    weights = {name.removeprefix("weights/"): t for name, t in tensors.items() if name.startswith("weights/")}
    own = {
        f"layers.{layer}.{name}": tensor
        for layer, module in enumerate(stage.layers, stage.first_layer)
        for name, tensor in module.state_dict().items()
    }
    unlike = sorted(
        name
        for name in own.keys() | weights.keys()
        if name not in own
        or name not in weights
        or (own[name].shape, _in_full(own[name].dtype)) != (weights[name].shape, weights[name].dtype)
    )
    if unlike:
        raise InputError(
            "checkpoint", unlike[0], "the weights of the same model", "resume with the model it was made with"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
        for parameter, name in zip(stage.optimizer.parameters, _names(stage), strict=True):
            if (stepped := stage.optimizer.stepped(parameter)) is not None:
                stepped.copy_(weights[name])
    kept = {name.removeprefix("optimizer/"): t for name, t in tensors.items() if name.startswith("optimizer/")}
    restore_optimizer(stage.optimizer, _names(stage), kept, values["numbers"], values["groups"])
    stage.tokens = values["tokens"]
    stage.accumulation.version = first_update
    if same_cut:
        stage.clipping.restore({name[9:]: t for name, t in tensors.items() if name.startswith("clipping/")})
        torch.set_rng_state(tensors["random/cpu"])
        if stage.device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], stage.device)


def _in_full(dtype: torch.dtype) -> torch.dtype:
    """Of what is saved for a weight: bfloat16 ones have float32 masters."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _names(stage: Stage) -> list[str]:
    """Of the optimizer's parameters, in its order."""
    names = []
    for name, _ in stage.layers.named_parameters():
        layer, _, rest = name.partition(".")
        names.append(f"layers.{stage.first_layer + int(layer)}.{rest}")
    return names


def optimizer_state(
    optimizer: Optimizer, names: list[str], *, own: bool
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """What an optimizer remembers: (copies of tensors by `<parameter>/<key>`, numbers by parameter and key, numbers of
    every parameter group, of somebody's own optimizer).

    Raises InputError, naming what it is, for anything that is neither a tensor nor a number.
    """
    name_of = _name_of(optimizer, names)
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for inner in optimizer.inner:
        for parameter, state in inner.state.items():
            if id(parameter) not in name_of:
                raise _unsavable(f"state of {parameter!r:.40}, which is no weight")
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dtype in _DTYPES and isinstance(key, str) and "/" not in key:
                    tensors[f"{name_of[id(parameter)]}/{key}"] = value.detach().to("cpu", copy=True).contiguous()
                elif _is_plain(value) and isinstance(key, str):
                    numbers.setdefault(name_of[id(parameter)], {})[key] = value
                else:
                    raise _unsavable(f"{key!r}, a {type(value).__name__}")
        for group in inner.param_groups if own else ():
            groups.append({key: v for key, v in group.items() if key not in _GIVEN and _is_plain(v)})
    return tensors, numbers, groups


def _name_of(optimizer: Optimizer, names: list[str]) -> dict[int, str]:
    """Names by the id of what is stepped: a parameter, or its master."""
    stepped = map(optimizer.stepped, optimizer.parameters)
    return {id(tensor): name for tensor, name in zip(stepped, names, strict=True) if tensor is not None}


def restore_optimizer(
    optimizer: Optimizer,
    names: list[str],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Mapping[str, Any]],
    groups: list[dict[str, Any]],
) -> None:
    """The reverse of `optimizer_state`, into an optimizer built in the same way over these parameters."""
    name_of = _name_of(optimizer, names)
    kept: dict[str, dict[str, Any]] = {name: dict(of) for name, of in numbers.items()}
    for path, tensor in tensors.items():
        name, _, key = path.rpartition("/")
        kept.setdefault(name, {})[key] = tensor
    left = list(groups)
    for inner in optimizer.inner:
        for group in inner.param_groups:
            if left:
                group.update({key: value for key, value in left.pop(0).items() if key not in _GIVEN})
            on_device = group.get("fused") or group.get("capturable")
            for parameter in group["params"]:
                for key, value in kept.get(name_of[id(parameter)], {}).items():
                    # As torch's own: counters of an optimizer stay on the host unless its kernels want them.
                    if isinstance(value, Tensor) and (value.ndim or on_device):
                        value = value.to(parameter.device)
                    inner.state[parameter][key] = value


def check_savable(spec: TrainSpec, options: dict[str, Any]) -> None:
    """Refuse somebody's own optimizer whose memory a checkpoint could not hold: two steps of it show what it keeps."""
    if not spec.checkpoint_every or spec.optimizer in OPTIMIZERS:
        return
    parameters = [("matrix", nn.Parameter(torch.ones(4, 4))), ("vector", nn.Parameter(torch.ones(4)))]
    optimizer = build_optimizer(
        spec.optimizer,
        parameters,
        learning_rate=spec.learning_rate,
        weight_decay=spec.weight_decay,
        implementation=spec.optimizer_implementation,
        options=options,
    )
    before = [dict(group) for inner in optimizer.inner for group in inner.param_groups]
    for _ in range(2):
        for _, parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
    optimizer_state(optimizer, [name for name, _ in parameters], own=True)
    for group, old in zip((g for inner in optimizer.inner for g in inner.param_groups), before, strict=True):
        for key, value in group.items():
            if key not in _GIVEN and not _is_plain(value) and value is not old.get(key):
                raise _unsavable(f"{key!r} of its parameter group, a {type(value).__name__}")


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and not math.isnan(value))


def _unsavable(what: str) -> InputError:
    return InputError(
        "optimizer",
        f"one that keeps {what}",
        "tensors and plain numbers, kept per parameter, for a run with checkpoints (which hold no pickle)",
        "train with checkpoint_every = 0, or change the optimizer",
    )
