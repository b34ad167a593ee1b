"""A trial: what was asked, what became of it, and how it is judged. It lives as `trial.json` in its run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paci_lab import InputError, open_run
from paci_lab.reading import check_row, read_json
from tuning.watch import Ended

__all__ = ["Frozen", "Trial", "device_memory", "frozen_from", "judge", "memory_so_far", "read_trials"]

FILE = "trial.json"

_TAIL_BYTES = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frozen:
    """What a baseline run on this machine has settled before the search; it never changes again.

    Attributes:
        target_loss: validation loss to be reached.
        first_loss: the baseline's first validation loss, against which a miss is graded.
        time_cap_s: training time after which any trial is stopped.
        grid_s: step of the grid of training time on which trials are compared.
        evaluate_every: micro-batches between evaluations, for the base spec's micro-batch size.
        hang_s: longest silence of a trial.
        memory_bytes: most that one device may use, or None.
        baseline_s: the baseline's time to target.
        overhead_s: what a trial takes beyond its training: start-up, warm-up, evaluation at the end.
        partition: layers per stage of the baseline: found once, since two measurements could cut the model differently.
        devices: how many a trial occupies.
        device_kind: "cpu", "cpu-paced" or "cuda".
        machine, versions: where this holds.
    """

    target_loss: float
    first_loss: float
    time_cap_s: float
    grid_s: float
    evaluate_every: int
    hang_s: float
    memory_bytes: int | None
    partition: list
    baseline_s: float
    overhead_s: float
    devices: int
    device_kind: str
    machine: dict
    versions: dict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial and its outcome.

    Attributes:
        side: "paci" or "flush"; `number` counts per side, and per phase in a confirmation.
        phase: "baseline", "search", "shared" (seeds that the best three share) or "final" (fresh seeds of the
            last two).
        params: the point. `seed` is an index: the run's seed is the base spec's plus it.
        reason: why it was tried, where theory said so.
        status: "running"; "reached"; "missed", "capped" or "pruned" (ended, or stopped, before the target); "hung";
            "oom"; "failed"; "lost" when its controller died.
        value: what the sampler minimises: seconds to target, or a graded penalty above any time that counts.
        constraints: above 0 where the trial must not be recommended, by "target" and "memory".
        training_s, wall_s: seconds of training, and of wall-clock time with start-up.
        curve: validation loss by step of the grid.
        figures: of the run, as in `result.json`, as far as it got.
    """

    side: str
    number: int
    phase: str
    params: dict
    seed: int
    reason: str = ""
    status: str = "running"
    why: str = ""
    value: float | None = None
    constraints: dict = dataclasses.field(default_factory=dict)
    training_s: float = 0.0
    wall_s: float = 0.0
    curve: dict = dataclasses.field(default_factory=dict)
    figures: dict = dataclasses.field(default_factory=dict)
    path: str = ""

    @property
    def feasible(self) -> bool:
        """True when it may be recommended."""
        return self.status == "reached" and all(v <= 0 for v in self.constraints.values())

    @property
    def time_s(self) -> float | None:
        """Time to target; None where it was missed."""
        return self.value if self.status == "reached" else None

    @property
    def memory_bytes(self) -> float:
        """Peak of the fullest device, as far as it got; 0 where nothing is known."""
        return self.figures.get("device_memory_bytes") or 0.0

    def save(self, run_dir: Path, **extra: Any) -> None:
        """Write it into its run directory, in one step."""
        values = {"schema": 1, **dataclasses.asdict(self), **extra}
        values.pop("path")
        part = run_dir / (FILE + ".part")
        part.write_text(json.dumps(values) + "\n", encoding="utf-8")
        os.replace(part, run_dir / FILE)


def read_trials(folder: Path) -> list[Trial]:
    """Every trial of the study in `folder`, from its run directories, oldest first."""
    found = []
    names = {field.name for field in dataclasses.fields(Trial)}
    for path in (
        folder / "baseline" / FILE,
        *sorted((folder / "trials").glob(f"*/{FILE}")),
        *sorted((folder / "confirm").glob(f"*/{FILE}")),
    ):
        try:
            if (values := read_json(path.parent, path)) is None:
                continue
            found.append(_trial({key: value for key, value in values.items() if key in names}, path.parent))
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError("trial", path, "a readable trial.json", f"remove its run directory ({error})") from None
    return found


def _trial(values: dict[str, Any], folder: Path) -> Trial:
    """A trial from plain values; ValueError, TypeError or AttributeError when they are of another kind."""
    values["curve"] = {int(step): loss for step, loss in values.get("curve", {}).items()}
    trial = Trial(**values, path=str(folder))
    for name in ("params", "constraints", "figures"):
        check_row(getattr(trial, name), {}, f"{FILE}: {name}")
    for name in ("side", "phase", "status", "why", "reason"):
        if not isinstance(getattr(trial, name), str):
            raise TypeError(f"{name} is not a text")
    if trial.side not in ("paci", "flush") or "window" not in trial.params:
        raise ValueError(f"no trial of side {trial.side!r} has the parameters {trial.params}")
    times = ("training_s", "wall_s", *(["value"] if trial.value is not None else []))
    check_row(values, dict.fromkeys(times, "number"), FILE)
    check_row(trial.params, {"window": "count"}, f"{FILE}: params")
    for name in ("curve", "constraints"):
        check_row(getattr(trial, name), dict.fromkeys(getattr(trial, name), "number"), f"{FILE}: {name}")
    for name, value in trial.figures.items():
        if (
            value is not None
            and name in (*_FIGURES, "peak_memory_bytes", "device_memory_bytes")
            and name != "optimizer"
        ):
            check_row(trial.figures, {name: "numbers" if isinstance(value, list) else "number"}, f"{FILE}: figures")
    return trial


def frozen_from(values: Any, where: str) -> Frozen:
    """What a baseline settled, from plain values; raises InputError when they are of another kind."""
    times = ("target_loss", "first_loss", "time_cap_s", "grid_s", "hang_s", "baseline_s", "overhead_s")
    check_row(values, {**dict.fromkeys(times, "number"), "evaluate_every": "count", "devices": "count"}, where)
    try:
        frozen = Frozen(**values)
        for kind in (frozen.machine["cpu"], frozen.machine["cpu_cores"], *(frozen.machine["gpus"] or [])):
            if not isinstance(kind, str | int | None):
                raise TypeError("the machine is none")
        dict(frozen.versions)
        return frozen
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(where, "its fields", "those of a baseline", f"run the study again ({error})") from None


_FIGURES = (
    "updates",
    "updates_to_target",
    "tokens_to_target",
    "seconds_per_update",
    "tokens_per_second",
    "version_gap_max",
    "version_gap_mean",
    "bubble_fraction",
    "in_flight_peak",
    "weight_copies",
    "best_val_loss",
    "final_val_loss",
    "pace_overruns",
    "window",
    "microbatch_size",
    "optimizer",
    "learning_rate",
)


def judge(trial: Trial, run_dir: Path, frozen: Frozen, ended: Ended, *, curve: dict, wall_s: float) -> Trial:
    """The outcome of a trial whose run has ended as `watch` says, read off its run directory."""
    run = open_run(run_dir).dir
    result, failure = run.result(), run.failure() or {}
    metrics, losses = run.metrics(), [row["val_loss"] for row in run.validation()]
    peaks = [rows[-1]["peak_memory_bytes"] for rows in map(run.updates, range(run.spec().world_size)) if rows]
    time_s = metrics[-1]["time_s"] if metrics else 0.0
    figures: dict[str, Any] = {
        "best_val_loss": min(losses, default=None),
        "updates": len(metrics),
        "seconds_per_update": time_s / len(metrics) if metrics else None,
    }
    if result is not None:
        figures = {name: result.get(name) for name in _FIGURES}
        time_s = result["wall_time_s"]
    figures["peak_memory_bytes"] = peaks
    figures["device_memory_bytes"] = used = device_memory(peaks, run.environment() or {})

    if result is not None and result["reached"]:
        status, why, value, shortfall = "reached", "", result["time_to_target_s"], 0.0
    else:
        best = figures["best_val_loss"]
        status, why, shortfall = ended.how, ended.why, 1.0
        if ended.how == "ended":
            message = failure.get("message", "its processes ended without a result")
            status = "missed" if result is not None else "oom" if _out_of_memory(message) else "failed"
            why = f"best validation loss {best:.4f}, target {frozen.target_loss:.4f}" if result is not None else message
        if status in ("missed", "capped", "pruned") and best is not None:
            shortfall = min(
                max((best - frozen.target_loss) / max(frozen.first_loss - frozen.target_loss, 1e-9), 1e-6), 1.0
            )
        value = frozen.time_cap_s * (1 + shortfall)
    constraints = {"target": shortfall}
    if frozen.memory_bytes is not None:
        constraints["memory"] = used / frozen.memory_bytes - 1
    return dataclasses.replace(
        trial,
        status=status,
        why=why,
        value=value,
        constraints=constraints,
        training_s=time_s,
        wall_s=wall_s,
        curve=curve,
        figures=figures,
        path=str(run_dir),
    )


def device_memory(peaks: Sequence[int], environment: Mapping[str, Any]) -> float:
    """Bytes that the fullest device needs: ranks share the memory of their host, or the GPUs when there are too few."""
    gpus = len(environment.get("gpus") or [])
    if not gpus:
        return sum(peaks)
    return sum(peaks) / gpus if len(peaks) > gpus else max(peaks, default=0)


def memory_so_far(run_dir: Path) -> float:
    """`device_memory` of a run that goes on, by the newest update of every rank; 0 before there is one."""
    peaks = []
    for path in (run_dir / "updates").glob("rank*.jsonl"):
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - _TAIL_BYTES, 0))
            whole = file.read().split(b"\n")[:-1]  # what follows the last line's end is still being written
        if whole:
            with contextlib.suppress(ValueError):  # a line longer than the tail
                peaks.append(json.loads(whole[-1])["peak_memory_bytes"])
    try:
        return device_memory(peaks, json.loads((run_dir / "environment.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):  # a shared file system may show the ranks' files first
        return 0.0


def _out_of_memory(message: str) -> bool:
    message = message.lower()
    return any(word in message for word in ("out of memory", "outofmemory", "memoryerror", "can't allocate"))
