"""The optimizer's state, shared out among the replicas of a stage (ZeRO stage 1, arXiv 1910.02054).

Every replica keeps the state of its own parameters only, steps those, and gives the others their new values. The
gradients have been added up before, whole and everywhere, so norms and checks see what they see without sharding, and
so do the numbers. Whole parameters are shared out, because Muon needs whole matrices.

torch's ZeroRedundancyOptimizer does the same and passes behind the version guard to the last bit. It is not used
because it sends every tensor by itself, or else moves the weights into buckets of its own, where weight stashing, which
knows a weight by its storage, could not tell them apart; and because it collects states by unpickling what other ranks
send. FSDP2 does not fit: a micro-batch in flight keeps the weights that were gathered for its forward, which is weight
stashing by accident, and its hooks expect a forward's backward before the next forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from paci_lab.optimizers import NamedParameters, Optimizer
from paci_lab.runtime.replicas import BUCKET_BYTES, ReplicaGroup

__all__ = ["ShardedOptimizer", "owners_of", "sharded_optimizer"]


def owners_of(parameters: Sequence[nn.Parameter], replicas: int) -> list[int]:
    """The replica that steps each parameter: matrices first, the largest first, each to whoever has least.

    >>> owners_of([torch.nn.Parameter(torch.zeros(size, 2)) for size in (1, 9, 5, 4)], 2)
    [0, 0, 1, 1]
    """
    owners = [0] * len(parameters)
    held = [0] * replicas
    order = sorted(range(len(parameters)), key=lambda i: (parameters[i].ndim < 2, -parameters[i].numel()))
    for number in order:
        owners[number] = min(range(replicas), key=lambda replica: held[replica])
        held[owners[number]] += parameters[number].numel()
    return owners


class ShardedOptimizer(Optimizer):
    """Steps this replica's own parameters and takes the others from their owners.

    Args:
        own: built over this replica's parameters alone.
        parameters: all of the stage.
        owners: a replica for each of them.
        group: of the stage.
    """

    def __init__(
        self, own: Optimizer, parameters: Sequence[nn.Parameter], owners: Sequence[int], group: ReplicaGroup
    ) -> None:
        super().__init__(parameters, own.inner)
        self.own, self.group = own, group
        self.packets: list[tuple[int, list[nn.Parameter]]] = []  # owner, what it hands out in one message
        for replica in range(group.replicas):
            size = BUCKET_BYTES
            for parameter, owner in zip(parameters, owners, strict=True):
                if owner != replica:
                    continue
                if size >= BUCKET_BYTES or parameter.dtype != self.packets[-1][1][0].dtype:
                    self.packets.append((replica, []))
                    size = 0
                self.packets[-1][1].append(parameter)
                size += parameter.numel() * parameter.element_size()

    def stepped(self, parameter: Tensor) -> Tensor | None:
        mine = any(parameter is own for own in self.own.parameters)
        return self.own.stepped(parameter) if mine else None

    def step(self) -> None:
        self.own.step()
        for owner, members in self.packets:  # one after the other: only one copy is there at a time
            flat = torch.cat([parameter.detach().flatten() for parameter in members])
            self.group.start(partial(self.group.hand_out, flat, owner))()
            if owner != self.group.replica:
                parts = flat.split([parameter.numel() for parameter in members])
                for parameter, part in zip(members, parts, strict=True):
                    parameter.detach().copy_(part.view_as(parameter))


def sharded_optimizer(
    build: Callable[[NamedParameters], Optimizer], named: NamedParameters, group: ReplicaGroup
) -> ShardedOptimizer:
    """What `build` makes of this replica's share of the `named` parameters of a stage."""
    parameters = [parameter for _, parameter in named]
    owners = owners_of(parameters, group.replicas)
    own = [item for item, owner in zip(named, owners, strict=True) if owner == group.replica]
    return ShardedOptimizer(build(own), parameters, owners, group)
