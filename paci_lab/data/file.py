"""Any file, text or binary, as a stream of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paci_lab.data.base import TokenStream, minimum_tokens
from paci_lab.errors import InputError

__all__ = ["open_source"]


def open_source(source: str, *, context: int, microbatch_size: int, seed: int) -> TokenStream:
    """The file's bytes, memory-mapped, so its size does not matter.

    Raises:
        InputError: when it is not a readable file of at least ``minimum_tokens(context)`` bytes.
    """
    path, needed = Path(source).expanduser(), minimum_tokens(context)
    allowed = f"a readable file of at least {needed} bytes for context {context}, stdlib, hf:DATASET or module:callable"
    if not path.is_file():
        problem = "is a directory" if path.is_dir() else "no such file"
        raise InputError("data", f"{source} ({problem})", allowed, "check the path, or leave data out to use stdlib")
    if (size := path.stat().st_size) < needed:
        fix = "name a longer file, or make the context shorter"
        raise InputError("data", f"{source} ({size} bytes)" if size else f"{source} (empty)", allowed, fix)
    try:
        tokens = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise InputError("data", f"{source} ({error.strerror})", allowed, "check its permissions") from error
    return TokenStream(path.name, tokens, vocabulary=256, context=context, microbatch_size=microbatch_size, seed=seed)
