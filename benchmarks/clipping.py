"""Clipping without a flush against exact clipping: `python -m benchmarks.clipping [--updates 400] [--json FILE]`.

Exact replays, so every figure is the same on each machine with this torch: loss after the same samples, share of the
updates that were cut, and how far the norm that lagged stages judge by is from the true one. Exact clipping is a flush
on one stage: a flush over any number of stages is the same training, and there a stage's own norm is the norm of all.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.machine import machine_line
from paci_lab.commands.common import print_table
from paci_lab.exact_replay import Replay, replay
from paci_lab.partition import even_partition
from paci_lab.spec import TrainSpec

STAGES, BLOCKS = 4, 6
BASE = TrainSpec(
    model=f"gpt:blocks={BLOCKS},width=32,heads=2,context=32",
    stages=STAGES,
    window=4,
    microbatch_size=2,
    optimizer="nadam",
    learning_rate=3e-3,
    validation_batches=64,
    device="cpu",
    trace=False,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clip-norm", type=float, default=1.0)
    parser.add_argument("--json", metavar="FILE")
    asked = parser.parse_args()
    limit = asked.clip_norm
    cases = {
        "flush, none": {"schedule": "1f1b"},
        "flush, exact": {"schedule": "1f1b", "stages": 1, "clip_norm": limit},
        "flush, stage": {"schedule": "1f1b", "clip_norm": limit, "clip": "stage"},
        "flush, lagged": {"schedule": "1f1b", "clip_norm": limit, "clip": "lagged"},
        "PACI, none": {"schedule": "paci"},
        "PACI, stage": {"schedule": "paci", "clip_norm": limit, "clip": "stage"},
        "PACI, lagged": {"schedule": "paci", "clip_norm": limit, "clip": "lagged"},
    }
    figures, rows = [], []
    for name, changes in cases.items():
        found = []
        for seed in range(asked.seeds):
            stages = changes.get("stages", STAGES)
            partition = even_partition(BLOCKS + 2, stages)
            spec = BASE.replace(
                updates=asked.updates, seed=seed, **{"partition": partition, **changes, "stages": stages}
            )
            found.append(figures_of(replay(spec), limit))
            print(f"{name}, seed {seed}: {found[-1]['val_loss']:.4f}", file=sys.stderr)
        mean = {key: _mean([f[key] for f in found]) for key in found[0]}
        figures.append({"case": name, "seeds": found, **mean})
        rows.append(
            (
                name,
                f"{mean['train_loss']:.3f}",
                f"{mean['val_loss']:.3f}",
                _share(mean["above"]),
                _share(mean["clipped"]),
                *("–" if mean[key] is None else f"{mean[key]:.3f}" for key in ("ratio_median", "ratio_95", "longest")),
            )
        )
    print_table(
        f"{STAGES} stages, window 4, {asked.updates} updates, clip norm {limit:g}, {asked.seeds} seeds",
        [
            "",
            "train loss, last tenth",
            "validation loss",
            "true norm above it",
            "cut",
            "judged / true norm, median",
            "off by, 95 %",
            "longest update / limit",
        ],
        rows,
        notes=[
            "off by: |log| of that ratio, as a factor minus 1, which 95 % of the stages' updates stay below.",
            machine_line(),
        ],
    )
    if asked.json:
        Path(asked.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def figures_of(found: Replay, limit: float) -> dict[str, float | None]:
    """Losses, and over all stages and updates how clipping went."""
    tenth = max(len(found.losses) // 10, 1)
    figures: dict[str, float | None] = {
        "train_loss": float(np.mean(found.losses[-tenth:])),
        "val_loss": found.validation[-1][2],
        "above": None,
        "clipped": None,
        "ratio_median": None,
        "ratio_95": None,
        "longest": None,
    }
    if found.updates[0][0].clipping is None:
        return figures
    norms = np.array([[record.grad_norm for record in records] for records in found.updates])
    factors, judged = (np.array([[r.clipping[i] for r in records] for records in found.updates]) for i in (0, 1))
    true = np.sqrt((norms**2).sum(axis=0))
    figures["above"] = float((true > limit).mean())
    figures["clipped"] = float((factors < 1).mean())
    figures["longest"] = float(np.sqrt(((norms * factors) ** 2).sum(axis=0)).max())
    if found.trace.stages > 1 and np.allclose(judged, norms):
        return figures  # stages that judge by themselves alone
    ratios = (judged / true)[:, 1:]  # in the first update nobody has been heard of
    figures["ratio_median"] = float(np.median(ratios))
    figures["ratio_95"] = float(np.exp(np.quantile(np.abs(np.log(ratios)), 0.95)) - 1)
    return figures


def _mean(values: list[float | None]) -> float | None:
    return None if values[0] is None else float(np.mean(values))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


if __name__ == "__main__":
    sys.exit(main())
