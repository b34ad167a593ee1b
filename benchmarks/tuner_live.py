"""Live studies against searching everything, on paced devices: `python -m benchmarks.tuner live`.

First every point of both sides trains with four seeds. Then each study, with fresh run directories and a seed of its
own, searches the same points, one run each, without a confirmation: what a confirmation adds is another question.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import tuning
from paci_lab import launch
from paci_lab.commands.common import console, print_table
from tuning.demo import SETTINGS

__all__ = ["FOLDER", "live"]

FOLDER = Path("runs/tuner-live")
SEEDS = 4
BASE, SPACE = SETTINGS.base.replace(learning_rate=1e-3, target_loss=3.5, microbatches=400, trace=False), SETTINGS.space
"""The demo's, at a rate where seeds differ by a few per cent alone: one run of a point can then stand for it."""


def live(folder: Path, studies: int) -> dict[str, Any]:
    """Search everything, then run the studies; what an earlier benchmark left in `folder` is replaced."""
    for earlier in (folder / "exhaustive", *folder.glob("study-*")):
        shutil.rmtree(earlier, ignore_errors=True)
    began = time.monotonic()
    times, spent = _exhaustive(folder / "exhaustive")
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians, key=medians.__getitem__)
    found, rows = [], []
    for number in range(studies):
        settings = tuning.Settings(
            base=BASE.replace(seed=BASE.seed + SEEDS + number), space=SPACE, budget_s=1e6, seeds=1
        )
        study = tuning.Study.create(folder / f"study-{number}", settings)
        pick = study.run(confirm=False)["point"]
        trials = study.trials()
        training_s, wall_s = sum(t.training_s for t in trials), sum(t.wall_s for t in trials)
        ratio = medians[pick] / medians[best] if pick is not None else float("inf")
        found.append({"pick": pick, "ratio": ratio, "training": training_s / spent, "trials": len(trials)})
        rows.append(
            [str(number), str(pick), f"{ratio:.3f}", f"{training_s / spent:.0%}", str(len(trials)), f"{wall_s:.0f} s"]
        )
        console().print(f"  study {number}: {pick}, {ratio:.3f} of the best's time", style="dim")
    near = sum(f["ratio"] <= 1.05 for f in found)
    print_table(
        f"live studies on paced devices; exhaustive search: {len(medians)} points × {SEEDS} seeds, {spent:.0f} s of "
        f"training, best {best} ({medians[best]:.2f} s)",
        ["study", "pick", "time / best's", "training: share\nof exhaustive", "trials", "wall clock"],
        rows,
        notes=[
            f"within 5 % of the best: {near} of {studies}; the baseline counts as training of its study",
            "seconds to the target, median (lowest to highest): "
            + ", ".join(
                f"{n} {m:.2f} ({min(times[n]):.2f}–{max(times[n]):.2f})"
                for n, m in sorted(medians.items(), key=lambda item: item[1])
            ),
            f"{time.monotonic() - began:.0f} s in all",
        ],
    )
    return {"best": best, "seconds": times, "exhaustive_training_s": spent, "within_5_percent": near, "studies": found}


def _exhaustive(folder: Path) -> tuple[dict[str, list[float]], float]:
    """Seconds to the target of every point and seed, twice its whole run for a miss; and the training time of all."""
    times: dict[str, list[float]] = {}
    spent = 0.0
    sides = [SPACE.side(name, BASE) for name in ("paci", "flush")]
    for seed in range(SEEDS):  # all points with one seed before the next: a slow minute of the machine hits all alike
        for side in sides:
            for point in side.points():
                name = side.label(point)
                result = launch(side.spec(point, seed), folder / f"{name}-{seed}").wait()
                spent += result["wall_time_s"]
                times.setdefault(name, []).append(result["time_to_target_s"] or 2 * result["wall_time_s"])
        console().print(f"  exhaustive search: seed {seed} of every point", style="dim")
    return times, spent
