"""FSDP2, `fully_shard` of torch, on two ranks over gloo: each has half the rows of every micro-batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from paci_lab.frameworks.case import Case, Net, mean_loss, total_loss
from paci_lab.frameworks.probe import Probe, Result

__all__ = ["RANKS", "train"]

RANKS = 2


def train(case: Case) -> Result:
    """As documented: gradients are exchanged in a window's last backward only. FSDP takes the mean over ranks, so a
    loss that is divided by the targets of the window is multiplied by the ranks.

    Naive loss: every rank's own mean. Naive schedule: a step with every micro-batch. Naive exchange: in every backward.
    """
    net = case.net()
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if case.bf16 else None,
        reduce_dtype=torch.float32 if case.bf16 else None,
    )
    mesh = init_device_mesh("cpu", (RANKS,))
    for piece in _pieces(net):
        fully_shard(piece, mesh=mesh, mp_policy=precision)
    fully_shard(net, mesh=mesh, mp_policy=precision)
    optimizer = case.optimizer(net)
    scheduler = case.scheduler(optimizer)
    probe = Probe(case, net, optimizer)
    for window, targets in case.windows():
        for number, (x, y) in enumerate(window):
            x, y = (part[dist.get_rank() :: RANKS] for part in (x, y))
            last = number == len(window) - 1
            net.set_requires_gradient_sync(last or case.naive == "exchange")
            net.set_is_last_backward(last)
            logits = net(x)
            total = total_loss(logits, y)
            probe.saw(total, y)
            (mean_loss(logits, y) / case.window if case.naive == "loss" else total * RANKS / targets).backward()
            if case.naive == "schedule":
                scheduler.step()
        if case.clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), case.clip)
        optimizer.step()
        if case.naive != "schedule":
            scheduler.step()
        optimizer.zero_grad()
    # A rank saw the losses of its own rows.
    sums = torch.tensor(probe.sums)
    dist.all_reduce(sums)
    probe.sums = sums.tolist()
    return probe.finish()


def _pieces(net: Net) -> list[torch.nn.Module]:
    """What is gathered as a unit: the GPT's layers, or the U-Net's blocks."""
    return list(getattr(net, "layers", None) or net.children())
