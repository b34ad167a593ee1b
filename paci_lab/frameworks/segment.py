"""Segmentation trained to the end, to see what the micro-batch does to a model with BatchNorm or GroupNorm."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from paci_lab.frameworks.case import Case, mean_loss
from paci_lab.frameworks.shapes import intersection_over_union, shapes_batch

__all__ = ["Segmented", "segment"]

VALIDATION = 128
"""Images that training has not seen, drawn with a seed of their own."""


@dataclass(frozen=True, kw_only=True)
class Segmented:
    """What a training of `norm` with micro-batches of `rows` images reached after `updates` of rows x window images.

    `overlap` is intersection over union on unseen images, with the running statistics that BatchNorm has gathered;
    `overlap_batch` is the same with the statistics of the validation images themselves.
    """

    norm: str
    rows: int
    window: int
    updates: int
    train_loss: float
    overlap: float
    overlap_batch: float

    def to_dict(self) -> dict:
        return asdict(self)


def segment(norm: str, *, rows: int, window: int, updates: int = 40, seed: int = 0) -> Segmented:
    """Train a small U-Net with a hand-written loop and AdamW; the same images in the same order for every `rows`."""
    case = Case(
        name="segment", model=f"unet-{norm}", rows=rows, window=window, microbatches=window * updates, seed=seed
    )
    net = case.net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses: list[float] = []
    for micro_batches, _ in case.windows():
        for image, mask in micro_batches:
            loss = mean_loss(net(image), mask) / len(micro_batches)  # all masks have as many pixels
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    images, masks = shapes_batch(VALIDATION, seed=seed + 1000)
    with torch.no_grad():
        running = intersection_over_union(net.eval()(images), masks)  # first: the other one changes the statistics
        own = intersection_over_union(net.train()(images), masks)
    return Segmented(
        norm=norm,
        rows=rows,
        window=window,
        updates=updates,
        train_loss=sum(losses[-window:]),
        overlap=running,
        overlap_batch=own,
    )
