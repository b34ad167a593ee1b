"""The paper's table for 8 stages, and the cost of its micro-batches as its flush hours tell it.

GPT-2 Medium, OpenWebText, sequences of 1,024, 49.8 billion tokens, eight 96 GB GPUs on PCIe.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["HOURS", "HOURS_TO_PERPLEXITY", "PERPLEXITY", "STAGES", "TARGET_SHARES", "microbatch_costs"]

STAGES = 8

HOURS: Mapping[int, Mapping[tuple[str, int], float]] = {
    128: {("1f1b", 4): 227.62, ("1f1b", 8): 162.33, ("1f1b", 16): 148.64, ("paci", 4): 111.51, ("paci", 8): 87.99},
    256: {("1f1b", 8): 169.38, ("1f1b", 16): 124.27, ("paci", 8): 111.91, ("paci", 16): 87.89},
}
"""Batch in sequences -> (schedule, window) -> hours of the whole training."""

PERPLEXITY: Mapping[int, Mapping[tuple[str, int], tuple[float, float]]] = {
    128: {("1f1b", 0): (15.480, 0.265), ("paci", 4): (15.632, 0.009), ("paci", 8): (15.483, 0.028)},
    256: {("1f1b", 0): (15.350, 0.089), ("paci", 8): (15.399, 0.042), ("paci", 16): (15.291, 0.008)},
}
"""Final perplexity, mean and spread; one for the flush, whatever its m (here window 0)."""

HOURS_TO_PERPLEXITY: Mapping[tuple[str, int], Mapping[int, float]] = {
    ("1f1b", 8): {18: 63.03, 17: 92.05, 16: 126.28},
    ("1f1b", 16): {18: 57.72, 17: 84.29, 16: 115.63},
    ("paci", 8): {18: 37.32, 17: 52.86, 16: 70.31},
}
"""At batch 128."""

TARGET_SHARES = {ppl: hours / HOURS[128]["1f1b", 16] for ppl, hours in HOURS_TO_PERPLEXITY["1f1b", 16].items()}
"""Where in its run the flush reaches each of these perplexities: 39, 57 and 78 % of its tokens."""


def microbatch_costs() -> dict[int, float]:
    """Time of one micro-batch (forward and backward) of 8, 16 and 32 sequences, that of 16 being 1.

    An update of a flush takes (m + N - 1) of them, and batch 256 has half the updates of batch 128 for as many tokens.
    Where two runs used the same size their mean is taken. Only the hours of flushes are used.

    >>> {size: round(cost, 3) for size, cost in microbatch_costs().items()}
    {8: 0.598, 16: 1.0, 32: 2.001}
    """
    found: dict[int, list[float]] = {}
    for batch, runs in HOURS.items():
        for (schedule, m), hours in runs.items():
            if schedule == "1f1b":
                found.setdefault(batch // m, []).append(batch / 128 * hours / (m + STAGES - 1))
    costs = {size: sum(values) / len(values) for size, values in found.items()}
    return {size: costs[size] / costs[16] for size in sorted(costs)}
