"""What checkpoints and restarts cost on this machine: `python -m benchmarks.checkpoint [--quick] [--json FILE]`.

The stall is the time in which a stage saves its part and does nothing else. The drain is what emptying the pipeline for
it costs: on paced devices, against the same run without checkpoints in turns, beside what the simulator says. A restart
is timed from kill -9 of a rank to the end of the first update that was not there before.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.engine import figure, print_figures
from benchmarks.machine import machine_line
from paci_lab.commands.common import add_json_argument, console, write_figures
from paci_lab.models import build_model
from paci_lab.runtime.launch import Run, launch
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec

COMPUTE = TrainSpec(
    model="gpt:blocks=4,width=256,heads=4,context=64",
    microbatch_size=2,
    stages=2,
    partition=[3, 3],
    window=4,
    device="cpu",
    checkpoint_every=10,
    validation_batches=1,
    evaluate="after",
)
"""Some three million weights; with NAdam's two moments a checkpoint holds three numbers for each."""

PACED = TrainSpec(
    model="gpt:blocks=4,width=16,heads=1,context=16",
    microbatch_size=1,
    stages=4,
    window=8,
    device="cpu",
    checkpoint_every=5,
    pace_forward_ms=10,
    pace_backward_ms=20,
    validation_batches=1,
    evaluate="after",
)


def main(arguments: list[str] | None = None) -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter runs")
    add_json_argument(parser)
    chosen = parser.parse_args(arguments)
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for measure in (stall, drain, restart):
            figures += measure(Path(name), 1 if chosen.quick else 3)
            console().print(f"{figures[-1]['what']}: done", style="dim")
    machine = machine_line()
    print_figures(f"Checkpoints and restarts on {machine}", figures)
    write_figures(chosen.json, {"machine": machine, "quick": chosen.quick, "figures": figures})
    return 0


def ended(spec: TrainSpec, path: Path) -> Run:
    run = launch(spec, path)
    run.wait()
    return run


def stall(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Seconds that a stage saves, per checkpoint and as a share of the run, on stages that compute."""
    seconds, shares = [], []
    for number in range(rounds):
        run = ended(COMPUTE.replace(updates=30), folder / f"stall-{number}")
        events = list(run.trace().of_kind("checkpoint"))
        took = [(event.end_ns - event.start_ns) / 1e9 for event in events]
        seconds += took
        shares.append(100 * sum(took) / COMPUTE.stages / run.result()["wall_time_s"])
    model = build_model(COMPUTE.model)
    weights = sum(model.parameters_per_layer()) / 1e6
    size = sum(f.stat().st_size for f in (run.path / "checkpoints").glob("*29/*")) / 2**20
    what = f"{weights:.1f} million weights, {size:.0f} MiB, 2 stages"
    return [
        figure(f"checkpoint stall of a stage ({what})", seconds, "s", ""),
        figure("the same as a share of a run with one every 10 updates", shares, "%", ""),
    ]


def drain(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Per cent by which a run drained every 5 updates is longer, simulated and measured without the stall."""
    spec, costs = PACED.replace(updates=20), Costs(forward_ms=10, backward_ms=20)
    whole = simulate(spec.replace(checkpoint_every=0).build_schedule(), costs).makespan_ns
    said = 100 * (simulate(spec.build_schedule(), costs).makespan_ns / whole - 1)
    longer = []
    for number in range(rounds):
        spans = {}
        for every in (0, 5) if number % 2 else (5, 0):
            run = ended(spec.replace(checkpoint_every=every), folder / f"drain-{number}-{every}")
            trace = run.trace()
            saving = sum(e.end_ns - e.start_ns for e in trace.of_kind("checkpoint") if e.stage == 0)
            spans[every] = trace.makespan_ns - saving
        longer.append(100 * (spans[5] / spans[0] - 1))
    return [
        figure("drain every 5 updates of 8 on 4 stages, simulated", [said], "%", ""),
        figure("the same, measured on paced devices", longer, "%", "as simulated"),
    ]


def restart(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Seconds from kill -9 of a rank to the first update that is new."""
    seconds = []
    for number in range(rounds):
        run = launch(COMPUTE.replace(updates=100_000), folder / f"restart-{number}", max_restarts=1)
        try:
            while not (run.path / "checkpoints" / "update-000009").exists():
                time.sleep(0.01)
            before = {row["update"] for row in run.dir.metrics()}
            os.kill(_pid(run, "rank1"), signal.SIGKILL)
            killed = time.monotonic()
            while not run.dir.restarts() or not {row["update"] for row in run.dir.metrics()} - before:
                assert time.monotonic() - killed < 300, "the run did not go on"
                time.sleep(0.01)
            seconds.append(time.monotonic() - killed)
        finally:
            run.stop()
    what = "kill -9 to the first new update, the work since the checkpoint done again"
    return [figure(what, seconds, "s", "at most 15 s")]


def _pid(run: Run, name: str) -> int:
    """The process whose standard error is that log."""
    log = str((run.path / "log" / f"{name}.log").resolve())
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "fd" / "2") == log:
                return int(folder.name)
        except OSError:
            continue
    raise RuntimeError(f"no process of {run.path} writes {name}.log")


if __name__ == "__main__":
    sys.exit(main())
