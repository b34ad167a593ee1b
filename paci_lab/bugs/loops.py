"""Runs a loop of one process on the model and the symbols of `babble`, watched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paci_lab.bugs.babble import Batch, batch, build_model
from paci_lab.bugs.seen import Seen
from paci_lab.bugs.watch import Watch

__all__ = ["LEARNING_RATE", "WINDOW", "WINDOWS", "watched"]

WINDOW = 4
"""Micro-batches per update, in every loop."""

WINDOWS = 16
"""Updates that a loop is shown with."""

LEARNING_RATE = 2.0
"""Of plain gradient descent, close to the best for this model: a step of four times that length diverges."""


def watched(
    train: Callable[..., Any],
    windows: int,
    *,
    batches: Sequence[Batch] | None = None,
    more: Callable[[torch.optim.Optimizer], Sequence[Any]] = lambda _optimizer: (),
    learning_rate: float = LEARNING_RATE,
) -> Seen:
    """What `train(model, optimizer, *more(optimizer), batches, window)` does in `windows` updates.

    Args:
        batches: micro-batches; the first ones of `babble` when not given.
        more: further arguments of the loop, made from its optimizer.
    """
    if batches is None:
        batches = [batch(number) for number in range(windows * WINDOW)]
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    watch = Watch([(model, optimizer)], batches, WINDOW)
    with warnings.catch_warnings():
        # torch warns of a scheduler that steps before the optimizer, which is one of the faults to be found.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        train(model, optimizer, *more(optimizer), batches, WINDOW)
    return watch.seen()
