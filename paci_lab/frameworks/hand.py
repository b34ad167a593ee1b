"""The reference: a loop that one can read, in plain torch."""

from __future__ import annotations

import torch

from paci_lab.frameworks.case import Case, mean_loss, total_loss
from paci_lab.frameworks.probe import Probe, Result

__all__ = ["train"]


def train(case: Case) -> Result:
    """Sums of losses over the targets of the window; clipping, update and learning rate once per window."""
    net = case.net()
    optimizer = case.optimizer(net)
    scheduler = case.scheduler(optimizer)
    probe = Probe(case, net, optimizer)
    for window, targets in case.windows():
        for x, y in window:
            with torch.autocast("cpu", torch.bfloat16, enabled=case.bf16):
                logits = net(x)
            total = total_loss(logits, y)
            probe.saw(total, y)
            (mean_loss(logits, y) / case.window if case.naive == "loss" else total / targets).backward()
            if case.clip and case.naive == "clip":
                torch.nn.utils.clip_grad_norm_(net.parameters(), case.clip)
            if case.naive == "schedule":
                scheduler.step()
        if case.clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), case.clip)
        optimizer.step()
        if case.naive != "schedule":
            scheduler.step()
        optimizer.zero_grad()
    return probe.finish()
