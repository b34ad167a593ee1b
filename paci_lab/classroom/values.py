"""What a learner's function returned, on its way out of the process that ran it: as JSON, for that runs no code.

A pickle from that process could do anything here. So numbers, texts, lists, dicts, tensors and arrays pass, and of
everything else its type and a few words about it.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

__all__ = ["Foreign", "decode", "describe", "encode"]

MOST = 200_000
"""Numbers and texts in one value; an answer that has more is no answer."""


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A value that was not taken along: its type, and the beginning of its repr."""

    kind: str
    words: str


def encode(value: Any) -> Any:
    """`value` as what JSON has. Raises ValueError when it is too much, RecursionError when it holds itself."""
    left = MOST

    def walk(value: Any) -> Any:
        nonlocal left
        left -= 1 + (len(value) // 100 if isinstance(value, str) else 0)
        if left < 0:
            raise ValueError("too much")
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return int(value) if abs(value) < 10**300 else {"foreign": ["int", "a number of more than 300 digits"]}
        if isinstance(value, float):
            return float(value)
        if isinstance(value, list | tuple):
            return [walk(item) for item in value]
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": [[key, walk(item)] for key, item in value.items()]}
        if (tensor := _tensor(value)) is not None:
            if tensor.dim() == 0:
                return walk(tensor.item())
            left -= tensor.numel()
            if left < 0:
                raise ValueError("too much")
            flat = tensor.detach().cpu().double().flatten().tolist()
            return {"tensor": flat, "shape": list(tensor.shape)}
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            if getattr(value, "size", 1) > left:
                raise ValueError("too much")
            return walk(value.tolist())
        return {"foreign": [type(value).__name__[:80], repr(value)[:120]]}

    return walk(value)


def decode(value: Any) -> Any:
    """What `encode` made, as Python values; tensors are float64. Raises ValueError for what it cannot have made."""
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, list):
        return [decode(item) for item in value]
    match value:
        case {"dict": list(pairs)} if all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
            return {key: decode(item) for key, item in pairs}
        case {"foreign": [str(kind), str(words)]}:
            return Foreign(kind, words)
        case {"tensor": list(flat), "shape": list(shape)} if _is_shape(shape, len(flat)):
            import torch

            try:
                return torch.tensor(flat, dtype=torch.float64).reshape(shape)
            except (TypeError, RuntimeError) as error:
                raise ValueError(str(error)) from None
    raise ValueError("not a value")


def describe(value: Any) -> str:
    """A few words for a sentence: the number itself, or "a tensor of shape (3, 4)"."""
    if isinstance(value, Foreign):
        return f"{value.kind} {value.words}"
    if _tensor(value) is not None:
        return f"tensor {tuple(value.shape)}"
    text = f"{value:.6g}" if isinstance(value, float) and not value.is_integer() else repr(value)
    return text if len(text) <= 160 else text[:157] + "…"


def _is_shape(shape: list, size: int) -> bool:
    return all(type(n) is int and n >= 0 for n in shape) and math.prod(shape) == size


def _tensor(value: Any) -> Any:
    """`value` if it is a tensor of real numbers, else None; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return value if torch is not None and isinstance(value, torch.Tensor) and not value.is_complex() else None
