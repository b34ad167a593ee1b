"""A dry run: what a study would try, what theory expects, and what it would cost. Nothing is started or written."""

from __future__ import annotations

import dataclasses
from typing import Any

from paci_lab import TrainSpec
from tuning.baseline import TARGET_AT, baseline_spec
from tuning.launchers import open_launcher
from tuning.settings import Settings
from tuning.side import SIDES, Side
from tuning.theory import predict
from tuning.trial import Frozen

__all__ = ["plan", "stage_memory_bytes"]

START_S = 6.0
"""Guess of a trial's start-up before any has been seen: processes, imports, warm-up."""


def plan(settings: Settings, *, frozen: Frozen | None = None) -> dict[str, Any]:
    """What a study with these settings would do.

    Args:
        frozen: of a study whose baseline has run: its measured time replaces the guess.

    Keys:
        sides: per side "points" (their number, None with a range), "enumerated", and "windows", one dict each with
            window, reason, memory_bytes, throughput and the fields of `Prediction`.
        baseline_s, trial_s: of the baseline to its target, and the longest a first trial takes; None when only a
            baseline can tell.
        trials: how many fit into the budget at that price beside the confirmation.
        confirmation, confirmation_s: runs that room is kept for, and how much.
    """
    open_launcher(settings.launcher, settings.launcher_options)
    sides = {name: settings.space.side(name, settings.base) for name in SIDES}
    flush = predict(baseline_spec(settings.base))
    baseline_s = frozen.baseline_s if frozen else None if flush.stream_s is None else flush.stream_s * TARGET_AT
    start_s = frozen.overhead_s if frozen else START_S
    cost = None if baseline_s is None else baseline_s + start_s
    confirmation = settings.confirmation_runs
    room = fits = None
    if cost is not None:
        stream = 0.0 if frozen else flush.stream_s + start_s
        room = min(confirmation * cost, settings.budget_s / 2)
        fits = max(int((settings.budget_s - stream - room) // cost), 0)
    return {
        "budget_s": settings.budget_s,
        "target": settings.base.target_loss,
        "baseline_s": baseline_s,
        "trial_s": cost,
        "trials": fits,
        "confirmation": confirmation,
        "confirmation_s": room,
        "devices": settings.base.world_size,
        "sides": {
            name: {
                "points": int(side.size) if side.size < float("inf") else None,
                "enumerated": side.enumerable,
                "windows": _windows(side),
            }
            for name, side in sides.items()
        },
    }


def _windows(side: Side) -> list[dict[str, Any]]:
    rows = []
    for point, reason in sorted(side.first(), key=lambda item: item[0]["window"]):
        spec = side.spec(point, 0)
        found = dataclasses.asdict(predict(spec))
        endless = 0.0 if not spec.build_schedule().flushes else found["bubble"]
        rows.append(
            {
                "window": spec.window,
                "reason": reason,
                **found,
                "throughput": 1 - endless,
                "memory_bytes": stage_memory_bytes(spec),
            }
        )
    return rows


def stage_memory_bytes(spec: TrainSpec) -> list[int]:
    """Predicted bytes per stage: weights, gradients, optimizer state, and the activations of what is in flight.

    What a process needs beside (torch itself, some 200 MB, or a GPU's context) is not in it.
    """
    from paci_lab.dry_run import dry_run  # needs torch, which a controller does without

    return [needs.bytes for needs in dry_run(spec).stages]
