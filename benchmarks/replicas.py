"""What replicas cost and whether they are exact: `python -m benchmarks.replicas [--rounds N] [--json FILE]`.

2 replicas of 2 stages that compute all the time, against one process that adds up the same gradients in the same order
(exact or not), and against one pipeline alone (what a stage's update waits for). Runs are interleaved; figures are
medians with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import figure, show
from benchmarks.machine import machine_line
from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.exact_replay import replay
from paci_lab.runtime.launch import launch
from paci_lab.spec import TrainSpec

BASE = TrainSpec(
    model="nano",
    stages=2,
    window=4,
    updates=6,
    microbatch_size=4,
    partition=[5, 5],
    optimizer="adamw",
    device="cpu",
    validation_batches=1,
    evaluate="after",
)

VARIANTS = {
    "1f1b, 2 x 2": BASE.replace(schedule="1f1b", replicas=2),
    "paci, 2 x 2": BASE.replace(schedule="paci", replicas=2),
    "paci, 2 x 2, optimizer sharded": BASE.replace(schedule="paci", replicas=2, shard_optimizer=True),
}


def main(arguments: list[str] | None = None) -> int:
    """Run everything and print one table; exit code 1 when a run is not exact."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (default 3)")
    add_json_argument(parser)
    chosen = parser.parse_args(arguments)
    rows, figures, wrong = [], [], []
    exact = {name: replay(spec) for name, spec in VARIANTS.items()}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.rounds):
            for name, spec in list(VARIANTS.items())[:: 1 if number % 2 == 0 else -1]:
                run = launch(spec, Path(folder) / f"{len(results[name])}-{name.replace(', ', '-').replace(' ', '')}")
                result = run.wait(600)
                parameters, expected = run.dir.parameters(), exact[name].parameters
                same = run.dir.losses() == exact[name].losses and all(
                    torch.equal(parameters[key], tensor) for key, tensor in expected.items()
                )
                if not same:
                    wrong.append(f"{name}, run {number}")
                update = run.trace().of_kind("U")
                result["update_ms"] = float((update.end_ns - update.start_ns).mean()) / 1e6
                wait_ns = run.trace().waiting_ns("wait-U").sum()
                result["wait_ms"] = float(wait_ns) / 1e6 / result["updates"] / result["stages"]
                results[name].append(result)
    for name, found in results.items():
        lines = [
            figure("waiting for replicas, share of the run", _all(found, "replica_wait"), "ratio", ""),
            figure("waiting for replicas, per stage and update", [r["wait_ms"] for r in found], "ms", ""),
            figure("the update itself", [r["update_ms"] for r in found], "ms", ""),
            figure("optimizer state per rank", [b / 2**20 for b in _all(found, "optimizer_bytes")], "MiB", ""),
            figure("throughput", [r["tokens_per_second"] for r in found], "tokens/s", ""),
        ]
        figures += [{**line, "run": name} for line in lines]
        exactly = "NO" if any(name in text for text in wrong) else "yes"
        rows += [
            [
                name if first else "",
                exactly if first else "",
                line["what"],
                show(line["median"], line["unit"]),
                f"{show(line['least'], line['unit'])} to {show(line['most'], line['unit'])}",
            ]
            for line, first in zip(lines, [True] + [False] * len(lines), strict=False)
        ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    notes = ["exact: losses and weights of the real ranks are those of one process, to the last bit"]
    if cores < 4:
        notes.append(f"4 ranks share {cores} cores here, so most of the waiting is for the core, not for the network")
    print_table(f"Replicas on {machine_line()}", ["", "exact", "", "median", "spread"], rows, notes=notes, left=3)
    write_figures(chosen.json, {"machine": machine_line(), "rounds": chosen.rounds, "wrong": wrong, "figures": figures})
    for text in wrong:
        console().print(f"not exact: {text}")
    return 1 if wrong else 0


def _all(results: Sequence[dict[str, Any]], field: str) -> list[float]:
    """The entries of every stage of every run."""
    return [value for result in results for value in result[field]]


if __name__ == "__main__":
    sys.exit(main())
