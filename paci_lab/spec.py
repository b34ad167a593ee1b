"""`TrainSpec`: all that decides a run. The same spec gives the same losses and parameters, bit for bit on CPU."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from paci_lab.errors import InputError
from paci_lab.reading import read_toml
from paci_lab.schedules import Schedule, build_schedule, drained, names_a_file

__all__ = ["TrainSpec"]

PerStage = float | list[float]


def _field(default: Any, check: str, help: str) -> Any:
    """A spec field: `check` names an entry of `_CHECKS`, `help` is the sentence of the command line and the docs."""
    metadata = {"check": check, "help": help}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _whole(low: int, high: float = math.inf):
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


def _number(low: float, high: float = math.inf, *, open_low: bool = False):
    return lambda v: (
        isinstance(v, int | float)
        and not isinstance(v, bool)
        and -sys.float_info.max <= v <= sys.float_info.max
        and (v > low if open_low else v >= low)
        and v <= high
    )


def _per_stage(v: object) -> bool:
    pace = _number(0, 1e9)
    return all(map(pace, v)) if isinstance(v, list) and v else pace(v)


def _optional(check):
    return lambda v: v is None or check(v)


def _one_of(*values: str):
    return lambda v: v in values


_MOST = 10**8  # micro-batches in a run: every rank counts their tokens before it starts

# kind of value -> (is it one, the allowed range in words, the fix)
_CHECKS: dict[str, tuple[Any, str, str]] = {
    "count": (_whole(1, 10**6), "a whole number from 1 to 1,000,000", "give at least 1"),
    "stages": (_whole(1, 10**4), "a whole number from 1 to 10,000", "give at least 1"),
    "optional count": (
        _optional(_whole(1, _MOST)),
        f"a whole number from 1 to {_MOST:,}",
        "give at least 1, or leave it out",
    ),
    "count or none": (_whole(0), "a whole number from 0", "use 0 for none"),
    "rate": (_number(0, open_low=True), "a number above 0", "try 0.001"),
    "share": (_number(0, 1), "a number from 0 to 1", "try 0.1"),
    "dropout": (lambda v: _number(0)(v) and v < 1, "a number from 0 to below 1", "try 0.1, or 0 for none"),
    "optional share": (_optional(lambda v: _number(0)(v) and v < 1), "a number from 0 to below 1", "try 0.9"),
    "decay": (_number(0), "a number from 0", "try 0.1, or 0 for none"),
    "milliseconds": (
        _per_stage,
        "milliseconds from 0 to 1e9, one number or a list with one per stage",
        "use 0 to let the stage run at its own speed",
    ),
    "optional norm": (_optional(_number(0, open_low=True)), "a norm above 0", "try 1.0, or leave it out for none"),
    "optional loss": (_optional(_number(0, open_low=True)), "a loss above 0", "leave it out to train to the end"),
    "text": (lambda v: isinstance(v, str) and v != "", "a name", "see --help for the names"),
    "options": (lambda v: isinstance(v, Mapping), "a table of options", "write it as { name = value }"),
    "partition": (
        lambda v: v == "auto" or (isinstance(v, list) and v != [] and all(map(_whole(1), v))),
        "auto, or a list of layers per stage such as [3, 2, 2, 3]",
        "use auto to let paci_lab cut the model",
    ),
    "switch": (lambda v: isinstance(v, bool), "true or false", "use true"),
    "engine": (
        _one_of("paci-lab", "torch", "accumulation", "single"),
        "paci-lab | torch | accumulation | single",
        "use paci-lab, or one of the others to compare with",
    ),
    "device": (_one_of("auto", "cpu", "cuda"), "auto | cpu | cuda", "use auto"),
    "backend": (_one_of("auto", "gloo", "nccl"), "auto | gloo | nccl", "use auto"),
    "lr schedule": (_one_of("cosine", "constant"), "cosine | constant", "use cosine"),
    "implementation": (_one_of("foreach", "forloop", "fused"), "foreach | forloop | fused", "use foreach"),
    "precision": (
        _one_of("fp32", "bf16", "autocast"),
        "fp32 | bf16 | autocast",
        "use bf16, which keeps fp32 masters of its weights",
    ),
    "clip": (
        _one_of("stage", "lagged"),
        "stage | lagged: the exact norm of all stages would need a flush before every update",
        "use lagged",
    ),
    "evaluate": (_one_of("during", "after"), "during | after", "use after when every core computes"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """What to train, on what, cut where, in which order; every field with its meaning is in `paci-lab train --help`.

    A spec names code of the user's own (`schedule`, `data`, `optimizer`) without importing it: `build_schedule`, and
    whatever starts a run, does.

    A stream of `microbatches` micro-batches is cut into windows of `window`; give `updates` instead to get
    `updates * window` micro-batches. A stream that ends inside a window closes it with a shorter last update, whose
    gradient is divided by the tokens of that shorter window. With `replicas` above 1 each of them has that stream, and
    an update's gradient is the mean over the tokens of all replicas' windows.

    Raises `InputError` for a value out of range.
    """

    schedule: str = _field(
        "paci", "text", "order of operations: a name of `paci-lab schedules`, my_file.py:MySchedule, or file.csv"
    )
    engine: str = _field(
        "paci-lab", "engine", "what runs it: paci-lab, or a peer (torch's own pipelining, accumulation, single)"
    )
    stages: int = _field(
        2, "stages", "pipeline stages, one process each (zb-v: a process holds two, interleaved: --chunks of them)"
    )
    window: int = _field(8, "count", "micro-batches per update on a stage (m for a flush schedule, a for PACI)")
    slack: int = _field(
        0, "count or none", "schedules without a flush: forwards that stage 0 admits beyond its N unresolved ones"
    )
    chunks: int = _field(
        0, "count or none", "interleaved, interleaved-paci: stages on every rank (0: the schedule's own, 2)"
    )
    updates: int | None = _field(
        None, "optional count", "windows in the whole run (default 100); or give --microbatches"
    )
    microbatches: int | None = _field(None, "optional count", "micro-batches in the whole run")
    microbatch_size: int = _field(2, "count", "sequences per micro-batch")
    replicas: int = _field(
        1,
        "count",
        "copies of the whole pipeline, each on micro-batches of its own; whatever counts micro-batches (window, "
        "microbatches, evaluate-every) counts those of one replica",
    )
    shard_optimizer: bool = _field(
        False, "switch", "replicas share out the optimizer's state: each keeps 1/replicas of it (ZeRO stage 1)"
    )

    model: str = _field("pico", "text", "model by name, or gpt:blocks=8,width=64,heads=4,context=64")
    context: int | None = _field(None, "optional count", "tokens per sequence (default: the model's)")
    dropout: float = _field(0.0, "dropout", "dropout probability")
    data: str = _field(
        "stdlib", "text", "stdlib (Python's own source), a text or binary file, hf:DATASET, or module:callable"
    )
    partition: str | list[int] = _field(
        "auto", "partition", "layers per stage, or auto: by measured cost, evenly when paced"
    )

    optimizer: str = _field("nadam", "text", "adamw, nadam, muon, sgd, or module:Class")
    learning_rate: float = _field(1e-3, "rate", "peak learning rate")
    momentum: float | None = _field(None, "optional share", "momentum, or first beta (default: the optimizer's)")
    weight_decay: float = _field(0.1, "decay", "weight decay")
    optimizer_options: dict = _field({}, "options", "further keyword arguments of the optimizer")
    optimizer_implementation: str = _field(
        "foreach", "implementation", "how the optimizer steps: foreach, forloop or fused"
    )
    learning_rate_schedule: str = _field("cosine", "lr schedule", "shape over the run's tokens, after the warm-up")
    warmup: float = _field(0.01, "share", "share of the run's tokens in which the learning rate rises linearly")
    final_learning_rate: float = _field(0.1, "share", "end of the cosine, as a share of the peak")

    clip_norm: float | None = _field(
        None, "optional norm", "clip gradients to this norm without synchronising stages (default: no clipping)"
    )
    clip: str = _field(
        "stage", "clip", "how: stage (each by its own norm, to clip_norm / sqrt(stages)) or lagged (by the norm of all)"
    )

    precision: str = _field(
        "fp32", "precision", "fp32, bf16 (with fp32 masters), or autocast (which hides a stash of the weights)"
    )
    recompute: bool = _field(
        False, "switch", "keep only a stage's input between forward and backward, and run its forward again there"
    )
    seed: int = _field(0, "count or none", "seed of weights, batches and dropout")
    device: str = _field("auto", "device", "auto takes GPUs when there are any")
    backend: str = _field("auto", "backend", "auto: nccl with a GPU per rank, gloo otherwise")
    threads: int = _field(1, "count", "CPU threads per rank")
    pace_forward_ms: PerStage = _field(0.0, "milliseconds", "paced devices: a forward takes this long, per micro-batch")
    pace_backward_ms: PerStage = _field(
        0.0, "milliseconds", "paced devices: a backward takes this long, per micro-batch"
    )

    target_loss: float | None = _field(None, "optional loss", "stop when the validation loss is at or below this")
    evaluate_every: int = _field(0, "count or none", "micro-batches between evaluations (0: only the final weights)")
    validation_batches: int = _field(16, "count", "held-out micro-batches per evaluation")
    evaluate: str = _field(
        "during", "evaluate", "when snapshots are evaluated: beside the run at idle priority, or after it"
    )
    checkpoint_every: int = _field(
        0, "count or none", "updates between checkpoints; the pipeline is drained for each, on the clock (0: none)"
    )
    keep_checkpoints: int = _field(2, "count", "newest checkpoints to keep")
    trace: bool = _field(True, "switch", "write the trace")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_one, allowed, fix = _CHECKS[field.metadata["check"]]
            if not is_one(value):
                raise InputError(field.name, value, allowed, fix)
        if self.updates is not None and self.microbatches is not None:
            raise InputError("updates", self.updates, "either updates or microbatches", "leave one of them out")
        if self.total_microbatches * self.replicas > _MOST:
            raise InputError(
                "updates",
                self.updates,
                f"at most {_MOST:,} micro-batches in the run, updates * window * replicas",
                "train in several runs",
            )
        if self.shard_optimizer and self.replicas == 1:
            raise InputError(
                "shard_optimizer", True, "false with one replica, which has nobody to share with", "give replicas = 2"
            )
        if self.clip != "stage" and self.clip_norm is None:
            raise InputError("clip", self.clip, "nothing without clip_norm", "give clip_norm = 1.0, or leave clip out")
        for name in ("pace_forward_ms", "pace_backward_ms"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != self.stages:
                raise InputError(
                    name, value, f"one number or {self.stages} of them (one per stage)", "give one per stage"
                )
        if isinstance(self.partition, list) and len(self.partition) != self.stages:
            raise InputError(
                "partition", self.partition, f"{self.stages} numbers (one per stage)", "give one per stage"
            )
        # A schedule in a user's own file is code: to read a spec, of a finished run perhaps, must not run it.
        if not names_a_file(self.schedule):
            self.build_schedule()

    # -- what follows from it -------------------------------------------------------------------------------------
    @property
    def total_microbatches(self) -> int:
        """Micro-batches in the whole run, of one replica."""
        if self.microbatches is not None:
            return self.microbatches
        return (100 if self.updates is None else self.updates) * self.window

    @property
    def world_size(self) -> int:
        """Processes that train: the ranks of all replicas."""
        return self.replicas * self.build_schedule().ranks

    @property
    def paced(self) -> bool:
        """True when any stage sleeps to a stated duration."""
        return any(max(v) if isinstance(v, list) else v for v in (self.pace_forward_ms, self.pace_backward_ms))

    def pace_ns(self, stage: int) -> dict[str, int]:
        """Stated duration of each operation on `stage`, in nanoseconds; 0 is none. I and W are half a backward each."""
        paces = {"F": self.pace_forward_ms, "B": self.pace_backward_ms}
        stated = {kind: round((v[stage] if isinstance(v, list) else v) * 1e6) for kind, v in paces.items()}
        return stated | {"I": stated["B"] // 2, "W": stated["B"] - stated["B"] // 2}

    def build_schedule(self) -> Schedule:
        """The schedule this run follows, drained for checkpoints where there are any."""
        schedule = build_schedule(
            self.schedule,
            stages=self.stages,
            microbatches=self.total_microbatches,
            window=self.window,
            slack=self.slack,
            chunks=self.chunks,
        )
        return drained(schedule, every=self.checkpoint_every or None)

    def replace(self, **changes: Any) -> TrainSpec:
        """A copy with some fields changed."""
        unknown = set(changes) - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise _unknown(sorted(unknown)[0])
        return dataclasses.replace(self, **changes)

    # -- files ----------------------------------------------------------------------------------------------------
    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "spec") -> TrainSpec:
        """A spec from plain values; an unknown key raises InputError naming the closest ones."""
        if not isinstance(values, Mapping):
            raise InputError(where, values, "a table of the spec's fields", "see paci-lab train --help for them")
        names = {field.name for field in dataclasses.fields(cls)}
        for key in values:
            if key not in names:
                raise _unknown(key, where)
        return cls(**values)

    @classmethod
    def load(cls, path: str | Path) -> TrainSpec:
        """Read a TOML file."""
        return cls.from_dict(read_toml(Path(path), what="spec file"), where=str(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without those that are not set."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}

    def save(self, path: str | Path) -> None:
        """Write a TOML file that `load` reads back to an equal spec."""
        Path(path).write_text(tomli_w.dumps(self.to_dict()), encoding="utf-8")


def _unknown(key: str, where: str = "spec") -> InputError:
    import difflib

    names = [field.name for field in dataclasses.fields(TrainSpec)]
    near = difflib.get_close_matches(key, names, n=3)
    fix = f"did you mean {' or '.join(near)}" if near else "remove it"
    return InputError(f"{where}: key", key, ", ".join(names), fix)
