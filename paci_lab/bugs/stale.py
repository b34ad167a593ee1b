"""The loop has one autocast context around everything, whose cache keeps the weights as they were first cast."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from paci_lab.bugs.loops import watched
from paci_lab.bugs.seen import Seen

__all__ = ["faulty", "fixed", "run"]


def faulty(model, optimizer, batches, window):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for number, (x, y) in enumerate(batches, 1):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / window).backward()
            if number % window == 0:
                optimizer.step()
                optimizer.zero_grad()


def fixed(model, optimizer, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def run(train: Callable, windows: int) -> Seen:
    return watched(train, windows)
