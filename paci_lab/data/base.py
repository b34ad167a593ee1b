"""What training data must offer, and the one way the built-in sources cut batches from a stream of tokens."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from paci_lab.errors import InputError

__all__ = ["VALIDATION_ROWS", "Batch", "Data", "TokenStream", "check_batches", "minimum_tokens", "row_picks"]

Batch = tuple[Tensor, Tensor]
"""(inputs, targets), both int64 (sequences, context); a target of -100 does not count in the loss."""

VALIDATION_ROWS = 8
"""Sequences in a validation batch: fixed, so that runs with other micro-batch sizes are judged on the same text."""

HELD_OUT = 0.1
"""The last share of every source, by position, is for validation."""


@runtime_checkable
class Data(Protocol):
    """Batches by number: any rank can make any micro-batch, without having made those before it.

    Attributes:
        name: what it is, for people and for the run directory.
        vocabulary: number of different tokens.
    """

    name: str
    vocabulary: int

    @property
    def sha256(self) -> str:
        """Hash of the data in hexadecimal, so that two runs can show that they read the same."""

    def train(self, microbatch: int) -> Batch:
        """The micro-batch with this number, (microbatch_size, context): a function of (seed, number) alone."""

    def train_tokens(self, microbatch: int) -> int:
        """How many targets of that micro-batch count in the loss, without making it."""

    def validation(self, batches: int) -> list[Batch]:
        """The first ``batches`` batches of a held-out set that is the same whatever the seed."""


def row_picks(seed: int, microbatch: int, rows: int, choices: int) -> np.ndarray:
    """``rows`` independent draws from range(choices), the same for the same (seed, microbatch)."""
    return np.random.default_rng((seed, microbatch)).integers(0, choices, size=rows)


def check_batches(context: int, microbatch_size: int, seed: int) -> None:
    """Refuse sizes that no source can serve with an InputError."""
    for what, value, lowest in (("context", context, 1), ("microbatch_size", microbatch_size, 1), ("seed", seed, 0)):
        if value < lowest:
            raise InputError(what, value, f"a whole number from {lowest}", f"use {what} = {max(lowest, 1)} or more")


def minimum_tokens(context: int) -> int:
    """The shortest stream whose held-out tenth still holds one sequence and its last target."""
    return 10 * (context + 1)


class TokenStream:
    """``Data`` over one long array of tokens: the first nine tenths train, the last tenth validates.

    A training sequence starts anywhere in the training part, drawn from (seed, micro-batch number).

    Args:
        name: for people.
        tokens: (length,) unsigned integers, possibly memory-mapped; at least ``minimum_tokens(context)`` of them.
        vocabulary: number of different tokens.
        context, microbatch_size, seed: as for ``open_data``.
    """

    def __init__(
        self, name: str, tokens: np.ndarray, *, vocabulary: int, context: int, microbatch_size: int, seed: int
    ) -> None:
        self.name, self.vocabulary = name, vocabulary
        self._tokens, self._context, self._size, self._seed = tokens, context, microbatch_size, seed
        self._split = len(tokens) - max(int(len(tokens) * HELD_OUT), context + 1)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(memoryview(np.ascontiguousarray(self._tokens))).hexdigest()

    def _batch(self, starts: np.ndarray) -> Batch:
        rows = self._tokens[starts[:, None] + np.arange(self._context + 1)].astype(np.int64)
        rows = torch.from_numpy(rows)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def train(self, microbatch: int) -> Batch:
        return self._batch(row_picks(self._seed, microbatch, self._size, self._split - self._context))

    def train_tokens(self, microbatch: int) -> int:
        return self._size * self._context  # every target counts

    def validation(self, batches: int) -> list[Batch]:
        """Sequences in the order of a fixed shuffle of all places in the held-out part, so more batches extend it."""
        places = np.arange(self._split, len(self._tokens) - self._context, self._context)
        order = np.random.default_rng(0).permutation(places)
        starts = np.resize(order, batches * VALIDATION_ROWS)  # starts again at the front where the text is short
        return [self._batch(rows) for rows in starts.reshape(batches, VALIDATION_ROWS)]
