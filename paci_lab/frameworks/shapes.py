"""Segmentation on data made here: bright shapes on noise, and a mask that says which pixels belong to one."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["IMAGE", "intersection_over_union", "shapes_batch"]

IMAGE = 32
"""Pixels along a side."""


def shapes_batch(rows: int, *, seed: int = 0, side: int = IMAGE) -> tuple[Tensor, Tensor]:
    """Images (rows, 1, side, side) float32 and masks (rows, side, side) int64: 1 inside a disc or a square, else 0.

    Brightness and contrast differ from image to image, as between cameras: statistics over few images say little.
    """
    draw = torch.Generator().manual_seed(seed)
    places = torch.arange(side, dtype=torch.float32)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand((rows, 1, 1), generator=draw)

    masks = torch.zeros(rows, side, side, dtype=torch.bool)
    for square in (True, False):
        radius = uniform(side / 10, side / 4)
        across = (places - uniform(0.2 * side, 0.8 * side)).abs().expand(rows, side, side)
        down = (places[:, None] - uniform(0.2 * side, 0.8 * side)).abs().expand(rows, side, side)
        masks |= torch.maximum(across, down) < radius if square else across**2 + down**2 < radius**2
    noise = torch.randn((rows, side, side), generator=draw)
    images = uniform(-2, 2) + uniform(0.5, 3) * (masks + 0.5 * noise)
    return images.unsqueeze(1), masks.long()


def intersection_over_union(logits: Tensor, masks: Tensor) -> float:
    """Pixels found and right over pixels found or right, for logits (rows, 2, side, side)."""
    found, right = logits.argmax(dim=1) == 1, masks == 1
    return float((found & right).sum() / (found | right).sum().clamp(min=1))
