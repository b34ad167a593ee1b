"""The loop steps its learning-rate schedule per micro-batch; the schedule was made for updates."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from paci_lab.bugs.loops import WINDOWS, watched
from paci_lab.bugs.seen import Seen

__all__ = ["faulty", "fixed", "run"]


def faulty(model, optimizer, scheduler, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


def fixed(model, optimizer, scheduler, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


def run(train: Callable, windows: int) -> Seen:
    return watched(train, windows, more=lambda optimizer: [_schedule(optimizer)])


def _schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Down to nothing in a straight line, over the updates that a loop is shown with."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda made: max(0.0, 1 - made / WINDOWS))
