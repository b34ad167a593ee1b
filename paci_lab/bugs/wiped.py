"""The loop evaluates in mid-window, and the evaluation clears what `.grad` held so far."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from paci_lab.bugs.babble import HELD_OUT
from paci_lab.bugs.loops import watched
from paci_lab.bugs.seen import Seen

__all__ = ["faulty", "fixed", "run"]


def faulty(model, optimizer, held_out, report, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number % 6 == 0:
            model.eval()
            model.zero_grad()  # make room for the evaluation
            with torch.no_grad():
                report(number, model(held_out))
            model.train()


def fixed(model, optimizer, held_out, report, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number % 6 == 0:
            model.eval()
            with torch.no_grad():
                report(number, model(held_out))
            model.train()


def run(train: Callable, windows: int) -> Seen:
    return watched(train, windows, more=lambda _optimizer: [HELD_OUT[0], lambda _number, _logits: None])
