"""Loss spikes: updates whose training loss stands out from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["LEAST", "MADS", "WINDOW", "loss_spikes", "spikes_text"]

WINDOW = 50
"""Updates before it that a loss is compared with."""

LEAST = 10
"""Updates before it that there have to be."""

MADS = 8.0
"""A spike is above the median of its window by this many median absolute deviations: 5.4 standard deviations, were the
losses normally distributed."""

_FLOOR = 1e-3  # share of the median: losses that hardly differ have a deviation that says nothing


def loss_spikes(metrics: Sequence[Mapping[str, Any]], norms: Sequence[Sequence[float | None]]) -> list[dict[str, Any]]:
    """The spikes of a run, in order: {"update", "loss", "median", "mads", "grad_norm"}.

    Args:
        metrics: rows with "update" and "train_loss".
        norms: per stage, the gradient norm of every update; `grad_norm` lists them per stage, None where not known.
    """
    losses = np.array([row["train_loss"] for row in metrics], dtype=float)
    found = []
    for number in range(LEAST, len(losses)):
        before = losses[max(0, number - WINDOW) : number]
        median = float(np.median(before))
        deviation = max(float(np.median(np.abs(before - median))), _FLOOR * abs(median))
        if losses[number] > median + MADS * deviation:
            update = metrics[number]["update"]
            found.append(
                {
                    "update": update,
                    "loss": float(losses[number]),
                    "median": median,
                    "mads": float(losses[number] - median) / deviation,
                    "grad_norm": [norm[update] if update < len(norm) else None for norm in norms],
                }
            )
    return found


def spikes_text(spikes: Sequence[Mapping[str, Any]]) -> str:
    """How many, and the one that stands out most."""
    if not spikes:
        return "none"
    worst = max(spikes, key=lambda spike: spike["mads"])
    each = ", ".join("?" if norm is None else f"{norm:.3g}" for norm in worst["grad_norm"])
    return (
        f"{len(spikes)}; the worst at update {worst['update']}: {worst['loss']:.3f}, {worst['mads']:.0f} median "
        f"deviations above the {worst['median']:.3f} of the {WINDOW} updates before; gradient norms by stage {each}"
    )
