"""How PACI and a flush scale with the number of stages: `python -m benchmarks.scaling [--quick] [--json FILE]`.

Weak scaling: every stage holds one block, whatever their number, and each is a process of its own on paced devices. A
paced stage does its real work, here about a millisecond, and sleeps to 50 ms a forward and 100 ms a backward. Sixteen
ranks then ask two cores for about a tenth of their time, so what is lost is lost to messages, waking up and the
engine, not to a lack of cores. PACI and the flush run in turns, the order turned round every time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine import figure, finish, guard, print_figures
from benchmarks.machine import machine_line
from paci_lab.commands.common import add_json_argument, console, write_figures
from paci_lab.schedules import PACI, OneFOneB
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec

STAGES = (2, 4, 8, 16)
SIMULATED = (16, 64, 256, 1024)
WINDOW = 8
COSTS = Costs(forward_ms=50, backward_ms=100)


def main(arguments: list[str] | None = None) -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, shorter runs, up to 256 stages simulated")
    add_json_argument(parser)
    chosen = parser.parse_args(arguments)
    figures = guard()
    with tempfile.TemporaryDirectory() as name:
        for stages in STAGES:
            figures += paced(Path(name), stages, rounds=1 if chosen.quick else 3, updates=4 if chosen.quick else 6)
            console().print(f"{stages} paced stages: done", style="dim")
    for stages in SIMULATED[:3] if chosen.quick else SIMULATED:
        figures += simulated(stages)
    machine = machine_line()
    print_figures(f"Scaling on {machine}", figures)
    write_figures(chosen.json, {"machine": machine, "quick": chosen.quick, "figures": figures})
    return 0


def spec_of(stages: int) -> TrainSpec:
    """One block a stage; the embedding is with the first, the head with the last."""
    partition = [2, *[1] * (stages - 2), 2]
    return TrainSpec(
        model=f"gpt:blocks={stages},width=16,heads=1,context=16",
        partition=partition,
        microbatch_size=1,
        stages=stages,
        window=WINDOW,
        device="cpu",
        pace_forward_ms=COSTS.forward_ms,
        pace_backward_ms=COSTS.backward_ms,
        validation_batches=1,
        evaluate="after",
    )


def paced(folder: Path, stages: int, *, rounds: int, updates: int) -> list[dict[str, Any]]:
    """PACI between fill and drain, and the whole of a flush run against its ideal."""
    values: dict[str, list[float]] = {"paci": [], "1f1b": []}
    per_second: dict[str, list[float]] = {"paci": [], "1f1b": []}
    order: Sequence[str] = ("paci", "1f1b")
    for number in range(rounds):
        for schedule in order if number % 2 == 0 else order[::-1]:
            # Long enough for a steady part: stage 0 admits as many micro-batches as there are stages before it.
            length = updates + stages // WINDOW if schedule == "paci" else updates // 2
            spec = spec_of(stages).replace(schedule=schedule, updates=length)
            trace = finish(spec, folder / f"{schedule}-{stages}-{number}").trace()
            part = trace.steady_utilization() if schedule == "paci" else trace.utilization()
            values[schedule].append(float(part.mean()))
            per_second[schedule].append(values[schedule][-1] * 1e3 / (COSTS.forward_ms + COSTS.backward_ms))
    ideal = 1 - OneFOneB(stages=stages, microbatches=WINDOW, window=WINDOW).ideal_bubble_fraction()
    speed = [a / b for a, b in zip(per_second["paci"], per_second["1f1b"], strict=True)]
    aim = "at least 0.95" if stages == 16 else ""
    return [
        figure(f"{stages} paced stages: PACI utilisation, steady", values["paci"], "ratio", aim),
        figure(f"{stages} paced stages: flush utilisation, m={WINDOW}", values["1f1b"], "ratio", f"ideal {ideal:.3f}"),
        figure(f"{stages} paced stages: PACI throughput / flush", speed, "ratio", f"theory {1 / ideal:.3f}"),
    ]


def simulated(stages: int) -> list[dict[str, Any]]:
    """PACI of so many stages, with a message of 1 ms, and what the simulation takes."""
    schedule = PACI(stages=stages, microbatches=stages + 32 * WINDOW, window=WINDOW)
    costs = Costs(forward_ms=COSTS.forward_ms, backward_ms=COSTS.backward_ms, latency_ms=1.0)
    begin = time.perf_counter()
    found = float(simulate(schedule, costs).steady_utilization().mean())
    seconds = time.perf_counter() - begin
    work = COSTS.forward_ms + COSTS.backward_ms
    expected = work / (work + 2 * costs.latency_ms * (stages - 1) / stages)
    what = f"simulated, {stages:,} stages x {schedule.microbatches:,} micro-batches"
    return [
        figure(f"{what}: PACI utilisation, steady", [found], "ratio", f"formula {expected:.3f}"),
        figure(f"{what}: time taken", [seconds], "s", ""),
    ]


if __name__ == "__main__":
    sys.exit(main())
