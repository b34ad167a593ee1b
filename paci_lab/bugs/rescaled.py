"""The loop divides `.grad` by the window after every micro-batch, and with it all that was added up before."""

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
        for parameter in model.parameters():
            parameter.grad /= window
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def fixed(model, optimizer, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        if number % window == 0:
            for parameter in model.parameters():
                parameter.grad /= window
            optimizer.step()
            optimizer.zero_grad()


def run(train: Callable, windows: int) -> Seen:
    return watched(train, windows)
