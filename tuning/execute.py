"""One trial from its start to its outcome, in a run directory of its own."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

from paci_lab import TrainSpec
from tuning.launchers import Launcher
from tuning.side import Side
from tuning.trial import Frozen, Trial, judge
from tuning.watch import Limits, watch

__all__ = ["execute", "free_folder", "trial_spec"]


def trial_spec(side: Side, trial: Trial, frozen: Frozen) -> TrainSpec:
    """What a trial runs: its point and seed, to the frozen target, evaluated as often per token as the baseline."""
    spec = side.spec(trial.params, trial.seed)
    if spec.partition == "auto" and spec.stages == side.base.stages:
        spec = spec.replace(partition=frozen.partition)
    every = max(1, round(frozen.evaluate_every * side.base.microbatch_size / spec.microbatch_size))
    return spec.replace(target_loss=frozen.target_loss, evaluate_every=every)


def execute(
    side: Side,
    trial: Trial,
    run_dir: Path,
    frozen: Frozen,
    launcher: Launcher,
    *,
    cap_s: Callable[[], float],
    prune: Callable[[int, float], bool],
    submitted: Callable[[str], None] = lambda job: None,
) -> Trial:
    """Start `trial` in `run_dir`, watch it and judge it. The run is stopped when this is interrupted, and is lost then.

    Args:
        cap_s, prune: as for `watch`.
        submitted: told the launcher's job id, before anything is waited for.
    """
    limits = Limits(target_loss=frozen.target_loss, grid_s=frozen.grid_s, hang_s=frozen.hang_s)
    curve: dict[int, float] = {}

    def at_grid(step: int, loss: float) -> bool:
        curve[step] = loss
        return prune(step, loss)

    began = time.monotonic()
    job = launcher.start(trial_spec(side, trial, frozen), run_dir)
    try:
        submitted(job.id)
        end = watch(job, run_dir, limits, cap_s=cap_s, prune=at_grid, started=lambda: trial.save(run_dir))
    except BaseException:
        job.stop()
        if run_dir.exists():
            dataclasses.replace(trial, status="lost", wall_s=time.monotonic() - began).save(run_dir)
        raise
    done = judge(trial, run_dir, frozen, end, curve=curve, wall_s=time.monotonic() - began - end.waited_s)
    done.save(run_dir)
    return done


def free_folder(path: Path) -> Path:
    """`path`, once whatever an interrupted trial left there has been put aside."""
    number = 1
    while path.exists():
        aside = path.with_name(f"{path.name}.lost-{number}")
        if not aside.exists():
            os.rename(path, aside)
        number += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
