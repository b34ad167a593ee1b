"""What lesson 08 shows: measured here, or from the recording that comes with the lessons."""

from __future__ import annotations

import json

from paci_lab.frameworks.compare import CASES, Comparison, Row, compare
from paci_lab.frameworks.segment import Segmented, segment
from paci_lab.lab import FOLDER
from paci_lab.lessons import training

__all__ = [
    "RECORDED",
    "SEGMENTED",
    "TRAININGS",
    "compared",
    "distance",
    "memory",
    "messages",
    "rates",
    "seconds",
    "segmented",
]

RECORDED = FOLDER / "frameworks" / "comparison.json"
SEGMENTED = FOLDER / "frameworks" / "segmentation.json"
"""What `python -m notebooks.make_frameworks` has recorded."""

TRAININGS = (("batchnorm", 32, 1), ("groupnorm", 32, 1), ("batchnorm", 2, 16), ("groupnorm", 2, 16))
"""Norm, micro-batch and window of the segmentation's trainings; all have an effective batch of 32."""


def compared() -> Comparison:
    """Every framework that is here, trained now; the others, or all with PACI_LAB_TRAIN=0, from the recording."""
    recorded = Comparison.load(RECORDED)
    if not training():
        print(f"Training is switched off: this is a recording, made on {recorded.machine}.")
        return recorded
    result = compare(CASES, recorded=recorded, say=lambda text: print(text, flush=True))
    if any(row.recorded for row in result.rows):
        print(f"What says (recorded) was made on {recorded.machine}.")
    return result


def segmented() -> list[Segmented]:
    """The segmentation with both norms and both micro-batches; from the recording with PACI_LAB_TRAIN=0."""
    if not training():
        said = json.loads(SEGMENTED.read_text(encoding="utf-8"))
        print(f"Training is switched off: this is a recording, made on {said['machine']}.")
        return [Segmented(**row) for row in said["rows"]]
    return [segment(norm, rows=rows, window=window) for norm, rows, window in TRAININGS]


def rates(row: Row) -> str:
    """Learning rates in hundredths, "10 8 5 3"."""
    return ("right " if row.schedule else "WRONG ") + " ".join(f"{100 * rate:.0f}" for rate in row.learning_rates)


def distance(row: Row) -> str:
    """The gradient's difference without a verdict, where another rounding is expected."""
    return f"{max(row.differences):.1e}"


def memory(row: Row) -> str:
    return f"{(row.peak_bytes or 0) / 1e6:.1f} MB"


def seconds(row: Row) -> str:
    return f"{1000 * (row.seconds or 0):.0f} ms"


def messages(row: Row) -> str:
    """How often ranks summed gradients up (reduce-scatter) and gathered weights, in all updates."""
    counts = {"sums of gradients": "reduce_scatter", "gatherings of weights": "allgather"}
    return ", ".join(f"{sum(n for k, n in row.collectives.items() if key in k)} {what}" for what, key in counts.items())
