"""Every schedule with real ranks on paced devices: the measured half of `paci-lab schedules`, and its record."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paci_lab.errors import InputError
from paci_lab.machine import cpu_model
from paci_lab.runtime.launch import Run, launch
from paci_lab.schedules import schedule_classes
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace

__all__ = ["Measured", "Record", "figures_of", "held_on_ranks", "measure_schedules", "paced_spec"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What real ranks showed, medians over the rounds for what is timed.

    Args:
        makespan_ms: from the begin of the first operation to the end of the last.
        over_simulated: that as a multiple of the simulated one.
        bubble: idle share of all ranks' time in between.
        against_flush: throughput as a multiple of 1F1B-flush's in the same round; None when that was not run.
        activations: most micro-batches of a whole rank held on a rank at once.
        weight_copies: most copies of its weights on a stage, the live one included, from the sizes of what is kept.
        kept_bytes: most bytes of weights kept beside the live ones on a rank.
        overruns: operations that took longer than stated, in all rounds; of `operations`.
    """

    makespan_ms: float
    over_simulated: float
    bubble: float
    against_flush: float | None
    activations: float
    weight_copies: float
    kept_bytes: int
    overruns: int
    operations: int


@dataclasses.dataclass(frozen=True)
class Record:
    """Figures by schedule, with the machine and the conditions that they belong to; a file of JSON."""

    machine: str
    conditions: dict[str, Any]
    schedules: dict[str, Measured]

    def save(self, path: str | Path) -> None:
        """Raises InputError when the file cannot be written."""
        try:
            Path(path).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError("--measured", path, "a file that can be written", f"choose another ({error})") from None

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Raises InputError for a file that is no record."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
            schedules = {name: Measured(**figures) for name, figures in values["schedules"].items()}
            return cls(str(values["machine"]), dict(values["conditions"]), schedules)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "--measured", path, "a file written by --measure", f"measure first: add --measure ({error})"
            ) from None


def paced_spec(schedule: str, *, ranks: int, window: int, updates: int, forward_ms: float) -> TrainSpec:
    """A run on `ranks` devices that take `forward_ms` for a forward of a whole rank and twice that for a backward.

    The real work is about a millisecond an operation, and the same model is cut into as many stages as there are.
    """
    chunks = schedule_classes()[schedule].chunks
    return TrainSpec(
        schedule=schedule,
        stages=ranks * chunks,
        window=window,
        updates=updates,
        model=f"gpt:blocks={max(2 * ranks - 2, 1)},width=16,heads=1,context=16",
        microbatch_size=1,
        optimizer="sgd",
        device="cpu",
        pace_forward_ms=forward_ms / chunks,
        pace_backward_ms=2 * forward_ms / chunks,
        validation_batches=1,
        evaluate="after",
    )


def measure_schedules(
    names: Sequence[str],
    *,
    ranks: int,
    window: int,
    updates: int,
    forward_ms: float,
    rounds: int,
    done: Callable[[str, int], None] = lambda name, round_: None,
) -> Record:
    """Run every schedule of `names` once per round, the next round in the opposite order. `done` is told of each.

    Raises InputError for sizes that a schedule cannot have, and RunFailed for a run that does not end well.
    """
    specs = {
        name: paced_spec(name, ranks=ranks, window=window, updates=updates, forward_ms=forward_ms) for name in names
    }
    found: dict[str, list[Measured]] = {name: [] for name in specs}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = f"{cpu_model()}, {cores} cores, load {os.getloadavg()[0]:.1f} at the start"
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(rounds):
            for name in list(specs) if round_ % 2 == 0 else reversed(specs):
                run = launch(specs[name], Path(folder) / f"{name}-{round_}")
                try:
                    run.wait()
                finally:
                    run.stop()
                found[name].append(figures_of(run))
                done(name, round_)
    return Record(
        machine=machine,
        conditions={
            "ranks": ranks,
            "window": window,
            "updates": updates,
            "forward_ms": forward_ms,
            "backward_ms": 2 * forward_ms,
            "rounds": rounds,
        },
        schedules={name: _median(runs, found.get("1f1b", ())) for name, runs in found.items()},
    )


def _median(runs: Sequence[Measured], flushes: Sequence[Measured]) -> Measured:
    timed = {
        name: statistics.median(getattr(run, name) for run in runs)
        for name in ("makespan_ms", "over_simulated", "bubble")
    }
    ratios = [flush.makespan_ms / run.makespan_ms for flush, run in zip(flushes, runs, strict=False)]
    most = {name: max(getattr(run, name) for run in runs) for name in ("activations", "weight_copies", "kept_bytes")}
    counted = {name: sum(getattr(run, name) for run in runs) for name in ("overruns", "operations")}
    return Measured(**timed, **most, **counted, against_flush=statistics.median(ratios) if ratios else None)


def costs_of(spec: TrainSpec) -> Costs:
    """What the simulator is told of a paced run: its stated durations and nothing else."""
    return Costs(forward_ms=spec.pace_forward_ms, backward_ms=spec.pace_backward_ms)


def figures_of(run: Run) -> Measured:
    """One run's figures, read off its directory."""
    spec, result, trace = run.spec, run.result(), run.trace()
    schedule = spec.build_schedule()
    kept = [0] * schedule.ranks
    for name, tensor in run.dir.parameters().items():
        layer = int(name.split(".")[1])
        stage = int(np.searchsorted(np.cumsum(spec.partition), layer, side="right"))
        size = tensor.numel() * tensor.element_size()
        kept[schedule.rank_of(stage)] += round((result["weight_copies"][stage] - 1) * size)
    return Measured(
        makespan_ms=trace.makespan_ns / 1e6,
        bubble=trace.bubble_fraction(),
        over_simulated=trace.makespan_ns / simulate(schedule, costs_of(spec)).makespan_ns,
        against_flush=None,
        activations=max(held_on_ranks(trace, schedule.ranks)) * schedule.ranks / schedule.stages,
        weight_copies=max(result["weight_copies"]),
        kept_bytes=max(kept),
        overruns=sum(result["pace_overruns"]),
        operations=len(trace.of_kind("F", "B", "I", "W")),
    )


def held_on_ranks(trace: Trace, ranks: int) -> list[int]:
    """Most activations of its stages on every rank at once: a forward adds one, a backward or its W takes it away."""
    most, held = [0] * ranks, [0] * ranks
    for event in sorted(trace, key=lambda event: event.start_ns):
        held[event.rank] += (event.op == "F") - (event.op in ("B", "W"))
        most[event.rank] = max(most[event.rank], held[event.rank])
    return most
