"""Peers to compare with: the same work done by something other than this project's engine, one file each.

A peer is a run like any other: its ranks are started, watched, evaluated and ended by the same agent, and they write
the same run directory. They share the model, the data, the optimizer's update, the warm-up and the clock; only what
lies between two updates is theirs. `TrainSpec.engine` names the peer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from paci_lab.errors import InputError

if TYPE_CHECKING:
    from paci_lab.runtime.worker import Worker
    from paci_lab.spec import TrainSpec

__all__ = ["ALONE", "PEERS", "check_engine", "rank_class"]

PEERS = {
    "torch-gpipe": ("torch", "gpipe"),
    "torch-1f1b": ("torch", "1f1b"),
    "torch-interleaved": ("torch", "interleaved"),
    "torch-zb": ("torch", "zb-h1"),
    "torch-zbv": ("torch", "zb-v"),
    "accumulation": ("accumulation", "1f1b"),
    "single": ("single", "1f1b"),
}
"""Contender -> (engine, the schedule of this project that says which rank holds which stage)."""

ALONE = ("accumulation", "single")
"""Engines of one process, which has all layers."""

_PLAIN = {"replicas": 1, "checkpoint_every": 0, "precision": "fp32", "recompute": False, "clip_norm": None}
"""What no peer does otherwise here."""

_RANKS = {
    "torch": ("torch_schedules", "TorchRank"),
    "accumulation": ("accumulation", "AccumulationRank"),
    "single": ("single", "SingleRank"),
}


def rank_class(engine: str) -> type[Worker] | None:
    """The class of a peer's ranks; None for this project's engine."""
    if engine == "paci-lab":
        return None
    module, name = _RANKS[engine]
    return getattr(importlib.import_module(f"paci_lab.peers.{module}"), name)


def check_engine(spec: TrainSpec) -> None:
    """Refuse with an InputError what the spec's engine cannot do, or cannot do honestly."""
    if spec.engine == "paci-lab":
        return
    for name, plain in _PLAIN.items():
        if getattr(spec, name) != plain:
            raise InputError(name, getattr(spec, name), f"{plain} with engine {spec.engine}", f"leave {name} out")
    if spec.engine == "torch":
        known = [schedule for engine, schedule in PEERS.values() if engine == "torch"]
        if spec.schedule not in known:
            raise InputError("schedule", spec.schedule, f"{' | '.join(known)} with engine torch", "choose one of these")
        if spec.total_microbatches % spec.window:
            raise InputError(
                "microbatches",
                spec.total_microbatches,
                f"a multiple of window {spec.window} with engine torch, whose schedules are made for one number",
                "round it up",
            )
    else:
        if spec.schedule != "1f1b":
            raise InputError("schedule", spec.schedule, f"1f1b with engine {spec.engine}", "use 1f1b")
        if spec.stages != 1:
            raise InputError("stages", spec.stages, f"1 with engine {spec.engine}", "use --stages 1")
        if spec.engine == "single" and spec.paced:
            raise InputError(
                "pace",
                spec.pace_forward_ms,
                "0 with engine single: a pace is of one micro-batch, and says nothing of a whole batch at once",
                "compare with accumulation, or without paces",
            )
