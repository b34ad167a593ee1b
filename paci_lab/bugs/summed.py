"""The loop adds up the micro-batches' mean losses and never divides: a sum instead of a mean."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F

from paci_lab.bugs.loops import watched
from paci_lab.bugs.seen import Seen

__all__ = ["faulty", "fixed", "run"]


def faulty(model, optimizer, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def fixed(model, optimizer, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def run(train: Callable, windows: int) -> Seen:
    return watched(train, windows)
