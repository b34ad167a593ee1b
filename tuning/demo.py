"""The short study at the end of `make demo`: which window on this machine, in under three minutes."""

from __future__ import annotations

import shutil
from pathlib import Path

from paci_lab import InputError, TrainSpec
from tuning.locks import alive
from tuning.settings import Settings
from tuning.space import Space

__all__ = ["SETTINGS", "fresh"]

SETTINGS = Settings(
    base=TrainSpec(
        stages=4,
        window=4,
        microbatches=440,
        target_loss=3.05,
        model="femto",
        microbatch_size=2,
        partition=[1, 2, 2, 1],
        pace_forward_ms=4.0,
        pace_backward_ms=8.0,
        device="cpu",
        optimizer="nadam",
        learning_rate=2e-3,
        learning_rate_schedule="constant",
        warmup=0.05,
        weight_decay=0.0,
        evaluate_every=6,
    ),
    space=Space(windows=(1, 2, 4, 8), flush_windows=(1, 2, 4), learning_rate_rule="constant"),
    budget_s=165.0,
    seeds=1,
    confirm_seeds=4,
)
"""Seven points, once each, then four pairs with fresh seeds, the fewest that can settle anything. A trial
trains for a few seconds, and starting its processes takes as long again."""


def fresh(folder: Path) -> Path:
    """`folder`, emptied if an earlier demo left its study there; any other one is left to be refused."""
    try:
        ours = Settings.load(folder / "study.toml") == SETTINGS
    except InputError:
        return folder
    if ours and (here := alive(folder)):
        raise InputError("--study", folder, "a folder that nobody works on", f"stop {sorted(here)[0]} first")
    if ours:
        shutil.rmtree(folder)
    return folder
