"""The baseline: one flush run on this machine, before the search, that settles what all trials are held to."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path

from paci_lab import InputError, RunFailed, TrainSpec, open_run
from tuning.launchers import Launcher
from tuning.machine import fingerprint, machine_memory
from tuning.settings import Settings, memory_share
from tuning.side import flush_schedule
from tuning.trial import Frozen, Trial, device_memory
from tuning.watch import Grid, Limits, watch

__all__ = ["baseline_spec", "run_baseline"]

TARGET_AT = 0.75
"""Share of the baseline's stream after which its best validation loss becomes the target, when none is given. The rest
of the stream is what a trial may need more than the baseline does."""

_EVALUATIONS = 60
"""In a whole stream, unless the spec says otherwise: a time to target is then known to about 2 %."""

_GRID = 40


def baseline_spec(base: TrainSpec) -> TrainSpec:
    """The flush run of `base`: its own window, learning rate and optimizer."""
    flush = flush_schedule(base)
    total = base.total_microbatches
    return base.replace(
        schedule=flush,
        slack=0,
        updates=None,
        microbatches=total,
        evaluate_every=base.evaluate_every or max(1, total // _EVALUATIONS),
    )


def run_baseline(folder: Path, settings: Settings, launcher: Launcher, params: dict) -> Frozen:
    """Run it in `folder`/baseline and settle target, time cap and grid; `params` is its point in the flush space.

    Raises InputError when the target is never reached or nothing is learned, RunFailed when the run fails.
    """
    run_dir = folder / "baseline"
    _set_aside(run_dir)
    spec = baseline_spec(settings.base)
    trial = Trial(side="flush", number=-1, phase="baseline", params=params, seed=0, reason="the base spec's own")
    began = time.monotonic()
    limits = Limits(target_loss=-math.inf, grid_s=math.inf, hang_s=settings.hang_s or 300.0)
    job = launcher.start(spec, run_dir)
    try:
        end = watch(job, run_dir, limits, cap_s=lambda: math.inf, prune=lambda step, loss: False)
    except BaseException:
        job.stop()
        raise
    wall_s = time.monotonic() - began - end.waited_s
    run = open_run(run_dir)
    if end.how == "hung":
        raise RunFailed(f"the baseline in {run_dir}: {end.why}")
    result = run.result()
    rows, environment = run.dir.validation(), run.dir.environment() or {}
    target, reached = _target(spec, rows)
    steps = [b["time_s"] - a["time_s"] for a, b in zip(run.dir.metrics(), run.dir.metrics()[1:], strict=False)]
    share, memory = memory_share(settings.memory), settings.memory
    frozen = Frozen(
        target_loss=target,
        first_loss=rows[0]["val_loss"],
        time_cap_s=2 * reached["time_s"],
        grid_s=2 * reached["time_s"] / _GRID,
        evaluate_every=spec.evaluate_every,
        hang_s=settings.hang_s or max(30.0, 20 * max(steps, default=0.0)),
        memory_bytes=memory if share is None else int(share * machine_memory(result["device_kind"])),
        partition=list(run.spec.partition),
        baseline_s=reached["time_s"],
        overhead_s=max(wall_s - result["wall_time_s"], 0.0),
        devices=spec.world_size,
        device_kind=result["device_kind"],
        machine=fingerprint(environment),
        versions={name: environment.get(name) for name in ("paci_lab", "torch", "python", "git")},
    )
    grid = Grid(frozen.grid_s)
    curve = dict(pair for row in rows for pair in grid.add(row["time_s"], row["val_loss"]))
    used = device_memory(result["peak_memory_bytes"], environment)
    figures = {
        **result,
        "updates_to_target": reached["update"] + 1,
        "tokens_to_target": reached["tokens"],
        "device_memory_bytes": used,
    }
    constraints = {"target": 0.0} | ({"memory": used / frozen.memory_bytes - 1} if frozen.memory_bytes else {})
    done = dataclasses.replace(
        trial,
        status="reached",
        value=reached["time_s"],
        constraints=constraints,
        figures=figures,
        training_s=result["wall_time_s"],
        wall_s=wall_s,
        curve=curve,
    )
    done.save(run_dir, settings=settings.to_dict(), frozen=dataclasses.asdict(frozen))
    return frozen


def _target(spec: TrainSpec, rows: list[dict]) -> tuple[float, dict]:
    """The target, and the first evaluation that reached it."""
    best = min(rows, key=lambda row: row["val_loss"])
    if spec.target_loss is not None:
        hit = next((row for row in rows if row["val_loss"] <= spec.target_loss), None)
        if hit is None:
            raise InputError(
                "target_loss",
                spec.target_loss,
                f"a loss that the flush baseline reaches: its best was "
                f"{best['val_loss']:.4f} after {best['time_s']:.1f} s",
                "raise it, or give the base spec a longer stream",
            )
        return spec.target_loss, hit
    early = [row for row in rows if row["tokens"] <= TARGET_AT * rows[-1]["tokens"]]
    if len(early) < 2:
        raise InputError(
            "evaluate_every",
            spec.evaluate_every,
            "at least two evaluations in the first three quarters of the stream",
            "evaluate more often, or train longer",
        )
    hit = min(early, key=lambda row: row["val_loss"])
    if hit is early[0]:
        raise InputError(
            "base spec",
            f"{spec.schedule}, learning rate {spec.learning_rate:g}",
            "one that learns: the validation loss of its flush run was never below that of its first evaluation",
            "lower the learning rate, or train longer",
        )
    return hit["val_loss"], hit


def _set_aside(run_dir: Path) -> None:
    """Make room where an earlier baseline was interrupted."""
    if not run_dir.exists():
        return
    number = 1
    while (aside := run_dir.with_name(f"baseline.lost-{number}")).exists():
        number += 1
    os.rename(run_dir, aside)
