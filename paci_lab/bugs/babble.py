"""What the loops train: a model of a few thousand numbers, and a language of 32 symbols that it learns in a second.

Each symbol has one that follows it nine times in ten; the tenth time any may follow. A model that has learnt this has
a loss of about 0.65 nats per symbol, and one that knows nothing log(32) = 3.47. Everything is drawn from fixed seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GUESSING", "HELD_OUT", "IGNORED", "Batch", "batch", "build_model", "held_out_loss", "short_batch"]

Batch = tuple[Tensor, Tensor]
"""Symbols and the symbols that follow them, each (rows, context)."""

SYMBOLS, ROWS, CONTEXT, WIDTH = 32, 8, 16, 24

GUESSING = math.log(SYMBOLS)
"""Nats per symbol of a model that knows nothing."""

IGNORED = -100
"""A target that `cross_entropy` leaves out, as at the end of a row that is shorter than the others."""

_FOLLOWS = torch.randperm(SYMBOLS, generator=torch.Generator().manual_seed(7))
_PRECEDES = torch.argsort(_FOLLOWS)


def batch(number: int, *, rows: int = ROWS, follows: Tensor = _FOLLOWS) -> Batch:
    """Micro-batch `number`."""
    draw = torch.Generator().manual_seed(number)
    text = [torch.randint(SYMBOLS, (rows,), generator=draw)]
    for _ in range(CONTEXT):
        astray = torch.rand(rows, generator=draw) < 0.1
        text.append(torch.where(astray, torch.randint(SYMBOLS, (rows,), generator=draw), follows[text[-1]]))
    rows_of_text = torch.stack(text, 1)
    return rows_of_text[:, :-1], rows_of_text[:, 1:]


def short_batch(number: int) -> Batch:
    """A micro-batch whose rows have one target each, and in which the language runs backwards: short texts, titles say,
    are of another kind than long ones."""
    x, y = batch(number, follows=_PRECEDES)
    y = y.clone()
    y[:, 1:] = IGNORED
    return x, y


HELD_OUT = batch(1_000_000, rows=64)
"""What no loop trains on."""


def build_model() -> nn.Sequential:
    """Symbols (rows, context) -> logits (rows, context, 32), with the same weights each time."""
    with torch.random.fork_rng(devices=[]):  # the seed of whoever calls stays as it is
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Embedding(SYMBOLS, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.GELU(),
            nn.Linear(2 * WIDTH, SYMBOLS),
        )


def held_out_loss(model: Callable[[Tensor], Tensor]) -> float:
    """Nats per symbol on `HELD_OUT`, in float32 with the weights as they are, whatever the loop computes in."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return float(F.cross_entropy(model(HELD_OUT[0]).flatten(0, 1), HELD_OUT[1].flatten()))
