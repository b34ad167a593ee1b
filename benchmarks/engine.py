"""What the engine costs and gives on this machine: `python -m benchmarks.engine [--quick] [--json FILE]`.

Everything that is compared is measured in interleaved rounds, the order turned round every time, and reported as the
median with the smallest and the largest. Aims are printed beside the figures and decide nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import machine_line
from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.models import build_model
from paci_lab.partition import balanced_partition, measure_layer_costs
from paci_lab.runtime.guard import guarded_step
from paci_lab.runtime.launch import Run, launch
from paci_lab.runtime.recorder import Recorder
from paci_lab.runtime.rundir import RunDir
from paci_lab.schedules import PACI
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec

PACED = TrainSpec(
    model="gpt:blocks=8,width=16,heads=1,context=16",
    microbatch_size=1,
    stages=8,
    window=8,
    device="cpu",
    pace_forward_ms=25,
    pace_backward_ms=50,
    validation_batches=1,
    evaluate="after",
)
"""Real work of about a millisecond, so that eight devices fit on two cores."""

COMPUTE = TrainSpec(
    model="nano",
    stages=2,
    window=2,
    device="cpu",
    optimizer="adamw",
    optimizer_implementation="fused",
    learning_rate_schedule="constant",
    warmup=0.0,
    validation_batches=1,
    evaluate="after",
)
"""Both cores compute all the time; the micro-batch is sized below. The update is cheap: it is in no formula."""

STAGE_S = 0.04
WARM_UP = 2  # updates left out of every measured time
VARIANTS = ("paci", "paci, no trace", "flush", "torch 1F1B")


def main(arguments: list[str] | None = None) -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter runs: under 3 minutes")
    add_json_argument(parser)
    chosen = parser.parse_args(arguments)
    rounds = 2 if chosen.quick else 5
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Calls that take microseconds come first, before the long runs heat the machine.
        for measure in (
            simulator,
            guard,
            trace_event,
            lambda: paced_stages(folder, 1 if chosen.quick else 3, chosen.quick),
            lambda: computing_stages(folder, rounds, chosen.quick),
        ):
            figures += measure()
            console().print(f"{figures[-1]['what']}: done", style="dim")
    machine = machine_line()
    print_figures(f"The engine on {machine}", figures)
    write_figures(chosen.json, {"machine": machine, "quick": chosen.quick, "figures": figures})
    return 0


def figure(what: str, values: Sequence[float], unit: str, aim: str) -> dict[str, Any]:
    """One line of the table."""
    return {
        "what": what,
        "unit": unit,
        "aim": aim,
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "count": len(values),
    }


def show(value: float, unit: str) -> str:
    return f"{value:.3f}" if unit == "ratio" else f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def print_figures(title: str, figures: Sequence[dict[str, Any]]) -> None:
    """The table of what `figure` gave."""
    rows = [
        [
            f["what"],
            show(f["median"], f["unit"]),
            f"{show(f['least'], f['unit'])} to {show(f['most'], f['unit'])}",
            str(f["count"]),
            f["aim"],
        ]
        for f in figures
    ]
    print_table(title, ["", "median", "spread", "of", "aim"], rows)


# -- calls in this process ------------------------------


def timed(call: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of every call but the first."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def simulator() -> list[dict[str, Any]]:
    large, small = PACI(stages=64, microbatches=1024, window=8), PACI(stages=8, microbatches=64, window=8)
    return [
        figure("simulate 64 stages x 1,024 micro-batches", timed(lambda: simulate(large), 5), "s", "at most 1 s"),
        figure(
            "simulate 8 stages x 64 micro-batches",
            [1e3 * s for s in timed(lambda: simulate(small), 50)],
            "ms",
            "at most 10 ms",
        ),
    ]


def trace_event() -> list[dict[str, Any]]:
    """What one event costs a rank, with its share of the writing: the trace's cost, free of the noise of two runs."""
    count = 5000
    with tempfile.TemporaryDirectory() as name:
        run = RunDir(Path(name))
        run.create(PACED, {})
        recorder = Recorder(run, 0, trace=True)

        def record() -> None:
            for number in range(count):
                recorder.event(0, "F", number, number * 1000, number * 1000 + 999, 1, 1)
                if number % 10 == 0:  # as often as a rank with an operation every 10 ms writes them out
                    recorder.flush()

        seconds = timed(record, 20)
    return [figure("trace: one event", [1e6 * s / count for s in seconds], "µs", "1 % of 20 ms: 200 µs")]


def guard() -> list[dict[str, Any]]:
    parameters = [torch.nn.Parameter(torch.zeros(16)) for _ in range(400)]
    seconds = timed(lambda: guarded_step(lambda: None, parameters), 200)
    return [figure("version guard per update, 400 tensors", [1e6 * s for s in seconds], "µs", "about 70 µs")]


# -- 8 paced stages ------------------------------


def finish(spec: TrainSpec, path: Path) -> Run:
    run = launch(spec, path)
    run.wait(300)
    return run


def paced_stages(folder: Path, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """PACI's utilisation between fill and drain, and a flush against the simulator."""
    updates = 6 if quick else 12
    costs = Costs(forward_ms=PACED.pace_forward_ms, backward_ms=PACED.pace_backward_ms)
    utilization, makespan = [], []
    for number in range(rounds):
        paci = finish(PACED.replace(schedule="paci", updates=updates), folder / f"paced-paci-{number}").trace()
        utilization.append(float(paci.steady_utilization().mean()))
        flush = finish(PACED.replace(schedule="1f1b", updates=updates // 2), folder / f"paced-flush-{number}")
        makespan.append(flush.trace().makespan_ns / simulate(flush.spec.build_schedule(), costs).makespan_ns)
    return [
        figure("8 paced stages, 25/50 ms: PACI utilisation, steady", utilization, "ratio", "at least 0.97"),
        figure("8 paced stages, m=8: flush makespan / simulated", makespan, "ratio", "at most 1.03"),
    ]


# -- 2 computing stages ------------------------------


def computing_stages(folder: Path, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """PACI against flush against torch's own flush, and what an operation and its trace cost the engine."""
    spec = sized(COMPUTE).replace(updates=12 if quick else 26)
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}  # of an update, one median per run
    own_time: list[float] = []
    stage_ms: list[float] = []
    for number in range(rounds):
        losses = {}
        for variant in VARIANTS if number % 2 == 0 else VARIANTS[::-1]:
            path = folder / f"{variant.replace(' ', '-')}-{number}"
            schedule = "1f1b" if variant in ("flush", "torch 1F1B") else "paci"
            engine = "torch" if variant == "torch 1F1B" else "paci-lab"
            run = finish(spec.replace(schedule=schedule, engine=engine, trace="no" not in variant), path)
            ends, losses[variant] = [row["time_s"] for row in run.dir.metrics()], run.dir.losses()
            if variant == "paci":
                own_time += gaps_us(run)
                work = run.trace().of_kind("F", "B")
                stage_ms.append(float((work.end_ns - work.start_ns).sum()) / 1e6 / 2 / spec.total_microbatches)
            seconds[variant].append(float(np.median(np.diff(ends[WARM_UP - 1 :]))))
        # They must train the same thing, or the comparison means nothing.
        np.testing.assert_allclose(losses["torch 1F1B"], losses["flush"], rtol=1e-3)

    def ratio(slow: str, fast: str) -> list[float]:
        return [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]

    size = f"{spec.model}, {spec.microbatch_size} sequences"
    return [
        figure(f"2 computing stages ({size}): F+B per micro-batch", stage_ms, "ms", "about 40 ms"),
        figure("PACI throughput / flush, m=2", ratio("flush", "paci"), "ratio", "at least 1.35 (theory 1.5)"),
        figure("flush throughput / torch Schedule1F1B", ratio("torch 1F1B", "flush"), "ratio", "at least 1"),
        figure("engine's own time per operation", own_time, "µs", "median at most 300 µs"),
        figure("throughput without trace / with", ratio("paci", "paci, no trace"), "ratio", "at most 1.01"),
    ]


def sized(spec: TrainSpec, stage_s: float = STAGE_S) -> TrainSpec:
    """`spec` with the partition and the micro-batch size that make a stage work for about `stage_s` seconds."""
    model = build_model(spec.model)
    size = 1
    for _ in range(3):  # a larger micro-batch takes less per sequence, so it is measured at its own size
        costs = measure_layer_costs(model, size)
        size = max(1, round(size * stage_s / (sum(costs) / spec.stages)))
    return spec.replace(partition=balanced_partition(costs, spec.stages), microbatch_size=size)


def gaps_us(run: Run) -> list[float]:
    """Microseconds between an event of a rank and its next one: neither work nor waiting, so the engine's own."""
    gaps: list[float] = []
    trace = run.trace()
    for stage in range(trace.stages):
        here = trace.stage == stage
        gaps += ((trace.start_ns[here][1:] - trace.end_ns[here][:-1]) / 1e3).tolist()
    return gaps


if __name__ == "__main__":
    sys.exit(main())
