"""Every fourth micro-batch is short, and the loop averages the micro-batches' means: a mean of means."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F

from paci_lab.bugs.babble import batch, short_batch
from paci_lab.bugs.loops import WINDOW, watched
from paci_lab.bugs.seen import Seen

__all__ = ["faulty", "fixed", "run"]


def faulty(model, optimizer, batches, window):
    for first in range(0, len(batches), window):
        for x, y in batches[first : first + window]:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / window).backward()
        optimizer.step()
        optimizer.zero_grad()


def fixed(model, optimizer, batches, window):
    for first in range(0, len(batches), window):
        count = sum((y != -100).sum() for _, y in batches[first : first + window])
        for x, y in batches[first : first + window]:
            total = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            (total / count).backward()
        optimizer.step()
        optimizer.zero_grad()


def run(train: Callable, windows: int) -> Seen:
    numbers = range(windows * WINDOW)
    return watched(train, windows, batches=[short_batch(n) if n % WINDOW == WINDOW - 1 else batch(n) for n in numbers])
