"""Every schedule with real ranks against its simulation: `python -m benchmarks.schedules [--quick] [--json FILE]`.

Paced ranks, so that the schedule decides and not the cores; schedules and torch's own run in interleaved rounds, the
order turned round every time. An operation that took longer than stated says that the machine was busy: their share
is in the table, because a schedule without slack passes every delay on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine import figure, finish, print_figures
from benchmarks.machine import machine_line
from paci_lab.commands.common import add_json_argument, console, write_figures
from paci_lab.schedule_runs import figures_of, paced_spec
from paci_lab.schedules import schedule_classes, weight_copies

RANKS, WINDOW, FORWARD_MS = 4, 8, 40.0
WARM_UP = 2  # updates left out of the time of an update
PEERS = {"torch 1F1B": "1f1b", "torch interleaved": "interleaved"}
AIMS = {"zb-h1": "at most 1.03", "paci": "at most 1.03"}


def main(arguments: list[str] | None = None) -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedules", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of short runs: about 2 minutes")
    parser.add_argument("--rounds", type=int, help="rounds (default 3, with --quick 1)")
    add_json_argument(parser)
    chosen = parser.parse_args(arguments)
    machine = machine_line()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(
            Path(folder), rounds=chosen.rounds or (1 if chosen.quick else 3), updates=4 if chosen.quick else 12
        )
    paces = f"{RANKS} paced ranks, {FORWARD_MS:g}/{2 * FORWARD_MS:g} ms, window {WINDOW}"
    print_figures(f"Schedules, {paces}, on {machine}", figures)
    write_figures(chosen.json, {"machine": machine, "quick": chosen.quick, "figures": figures})
    return 0


def measure(folder: Path, *, rounds: int, updates: int) -> list[dict[str, Any]]:
    """Figures of all rounds: makespans against simulation, PACI's throughput, torch's schedules, copies, overruns."""
    constant = {"learning_rate_schedule": "constant", "warmup": 0.0}
    sizes = {"ranks": RANKS, "window": WINDOW, "updates": updates, "forward_ms": FORWARD_MS}
    specs = {name: paced_spec(name, **sizes).replace(**constant) for name in schedule_classes()}
    makespan: dict[str, list[float]] = {name: [] for name in specs}
    update_s: dict[str, list[float]] = {name: [] for name in [*specs, *PEERS]}
    overruns: list[float] = []
    copies_as_formula = []
    for number in range(rounds):
        losses: dict[str, list[float]] = {}
        order = [*specs, *PEERS]
        for name in order if number % 2 == 0 else order[::-1]:
            path = folder / f"{name.replace(' ', '-')}-{number}"
            run = finish(specs[PEERS[name]].replace(engine="torch") if name in PEERS else specs[name], path)
            ends, losses[name] = [row["time_s"] for row in run.dir.metrics()], run.dir.losses()
            if name not in PEERS:
                found = figures_of(run)
                makespan[name].append(found.over_simulated)
                overruns.append(found.overruns / found.operations)
                schedule = run.spec.build_schedule()
                formula = [weight_copies(schedule, stage) for stage in range(schedule.stages)]
                copies_as_formula.append(float(run.result()["weight_copies"] == formula))
            update_s[name].append(float(np.median(np.diff(ends[WARM_UP - 1 :]))))
            console().print(f"round {number + 1}: {name}", style="dim")
        # They must train the same thing, or the comparison means nothing.
        for name, ours in PEERS.items():
            np.testing.assert_allclose(losses[name], losses[ours], rtol=1e-3)
    limit = WINDOW * 3 * FORWARD_MS / 1e3
    return [
        *(figure(f"{name}: makespan / simulated", v, "ratio", AIMS.get(name, "")) for name, v in makespan.items()),
        figure("PACI: throughput / no-bubble limit", [limit / s for s in update_s["paci"]], "ratio", "at least 0.97"),
        *(
            figure(
                f"{ours}: throughput / {name}",
                [theirs / own for theirs, own in zip(update_s[name], update_s[ours], strict=True)],
                "ratio",
                "at least 1",
            )
            for name, ours in PEERS.items()
        ),
        figure("runs with as many copies of the weights as the formula", copies_as_formula, "ratio", "1"),
        figure("operations that took longer than stated, per run", overruns, "ratio", "0"),
    ]


if __name__ == "__main__":
    sys.exit(main())
