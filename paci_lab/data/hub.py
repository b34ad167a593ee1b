"""A Hugging Face data set as GPT-2 tokens: the optional extra "hf" (packages datasets and tokenizers)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from paci_lab.data.base import HELD_OUT, VALIDATION_ROWS, Batch, row_picks
from paci_lab.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["HubData", "accepts", "open_source", "token_rows"]

TOKENIZER = "gpt2"
VOCABULARY = 50257
END_OF_TEXT = 50256


def accepts(source: str) -> bool:
    return source.startswith("hf:")


def token_rows(
    texts: Dataset, encode: Callable[[list[str]], list[list[int]]], tokenizer_name: str, context: int
) -> Dataset:
    """Cut a data set with a "text" column into rows of context + 1 tokens.

    Documents are joined with the end-of-text token, a thousand at a time, and what is left of the last row of each
    thousand is dropped. ``datasets`` keeps the result in its own cache, under the names of the data set and of the
    tokenizer and the context, so this is paid for once.
    """

    def cut(batch: dict[str, list[str]]) -> dict[str, np.ndarray]:
        stream = list(chain.from_iterable([*tokens, END_OF_TEXT] for tokens in encode(batch["text"])))
        rows = len(stream) // (context + 1)
        return {"tokens": np.array(stream[: rows * (context + 1)], dtype=np.uint16).reshape(rows, context + 1)}

    # Without a fingerprint of ours, datasets pickles the functions to find its cache, and forgets it where it cannot.
    fingerprint = hashlib.sha256(f"{texts._fingerprint},{tokenizer_name},{context}".encode()).hexdigest()[:16]
    return texts.map(cut, batched=True, remove_columns=texts.column_names, new_fingerprint=fingerprint, desc="tokens")


class HubData:
    """``Data`` over rows of context + 1 tokens: the first nine tenths of the rows train, the last tenth validates.

    Args:
        name: for people.
        rows: a ``datasets.Dataset`` with a column "tokens" of equal lengths, as ``token_rows`` makes it.
        microbatch_size, seed: as for ``open_data``.
    """

    vocabulary = VOCABULARY

    def __init__(self, name: str, rows: Dataset, *, microbatch_size: int, seed: int) -> None:
        self.name, self._rows = name, rows.with_format("numpy")
        self._size, self._seed = microbatch_size, seed
        self._split = len(rows) - max(int(len(rows) * HELD_OUT), 1)
        self._context = len(self._rows[0]["tokens"]) - 1

    @cached_property
    def sha256(self) -> str:
        """Over all tokens in order, as little-endian 16-bit numbers; minutes for a very large data set."""
        digest = hashlib.sha256()
        for batch in self._rows.iter(batch_size=1000):
            digest.update(np.ascontiguousarray(batch["tokens"], dtype="<u2"))
        return digest.hexdigest()

    def _batch(self, picks: np.ndarray) -> Batch:
        rows = torch.from_numpy(np.stack([self._rows[int(pick)]["tokens"] for pick in picks]).astype(np.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def train(self, microbatch: int) -> Batch:
        return self._batch(row_picks(self._seed, microbatch, self._size, self._split))

    def train_tokens(self, microbatch: int) -> int:
        return self._size * self._context  # every target counts

    def validation(self, batches: int) -> list[Batch]:
        order = np.resize(np.arange(self._split, len(self._rows)), batches * VALIDATION_ROWS)
        return [self._batch(picks) for picks in order.reshape(batches, VALIDATION_ROWS)]


def open_source(source: str, *, context: int, microbatch_size: int, seed: int) -> HubData:
    """Fetch "hf:DATASET" or "hf:DATASET@CONFIGURATION" (its "train" split, its "text" column) and tokenise it.

    Later calls read the cache of ``datasets``: open it once before ranks are started, or each would do the work.

    Raises:
        InputError: when the extra is not installed, the data set cannot be had, or it has no text column.
    """
    try:
        from datasets import load_dataset
        from tokenizers import Tokenizer
    except ImportError as error:
        needs = "a source whose packages are installed; this one needs datasets and tokenizers, and the network once"
        raise InputError("data", source, needs, 'install them with: pip install "paci-lab[hf]"') from error
    name, _, configuration = source.removeprefix("hf:").partition("@")
    allowed = 'hf:DATASET or hf:DATASET@CONFIGURATION with a "train" split and a "text" column'
    try:
        texts = load_dataset(name, configuration or None, split="train")
        tokenizer = Tokenizer.from_pretrained(TOKENIZER)
    except Exception as error:  # datasets and the hub raise many kinds; each says in words what it missed
        fix = "check the name and the network connection, for example hf:Skylion007/openwebtext"
        raise InputError("data", f"{source} ({type(error).__name__}: {error})", allowed, fix) from error
    if "text" not in texts.column_names:
        raise InputError("data", f"{source} (columns {', '.join(texts.column_names)})", allowed, "name another")

    def encode(batch: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(batch)]

    rows = token_rows(texts, encode, TOKENIZER, context)
    if len(rows) < 2:
        fix = "name a larger data set, or make the context shorter"
        raise InputError("data", f"{source} ({len(rows)} rows)", f"at least 2 rows of {context + 1} tokens", fix)
    return HubData(source, rows, microbatch_size=microbatch_size, seed=seed)
