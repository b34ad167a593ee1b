"""Training data: one file per kind of source, all of them serving batches by number."""

from __future__ import annotations

from pathlib import Path

from paci_lab.data import file, hub, own, stdlib
from paci_lab.data.base import Batch, Data, TokenStream, check_batches

__all__ = ["Batch", "Data", "TokenStream", "open_data"]


def open_data(source: str = "stdlib", *, context: int, microbatch_size: int, seed: int) -> Data:
    """Open a source of training data.

    The same (source, context, microbatch_size, seed) gives the same micro-batches to every rank, stage count, window
    and schedule; the validation set depends on source and context alone.

    Args:
        source: "stdlib" (the Python standard library's source, as bytes), the path of any file (its bytes),
            "hf:DATASET" (a Hugging Face data set as GPT-2 tokens), or "module:callable" or "file.py:callable",
            called with context, microbatch_size and seed, which returns a ``Data``.
        context: tokens per sequence, from 1.
        microbatch_size: sequences per micro-batch, from 1.
        seed: from 0.

    Raises:
        InputError: for a source that is missing, empty or too short, and for sizes out of range.
    """
    check_batches(context, microbatch_size, seed)
    if Path(source).is_file():  # also where its name contains a colon
        kind = file
    else:
        kind = next((kind for kind in (stdlib, hub, own) if kind.accepts(source)), file)
    return kind.open_source(source, context=context, microbatch_size=microbatch_size, seed=seed)
