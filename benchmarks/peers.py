"""PACI against every synchronous peer: `python -m benchmarks.peers [--quick] [--json FILE]`.

On 2 stages that really compute and on 8 paced ones: time to the same validation loss, paired by round and run in turns,
and PACI's throughput against the limit without a bubble. The target is the flush's loss at 70 % of its run, the mean
over the seeds, found in runs of their own; a seed that does not get there is counted as a miss. Aims are printed beside
the figures and decide nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.engine import COMPUTE, sized
from benchmarks.machine import machine_line
from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.commands.compare import parse_contenders
from paci_lab.compare import Comparison, compare
from paci_lab.runtime.rundir import RunDir
from paci_lab.spec import TrainSpec

PEERS = ("1f1b", "torch-gpipe", "torch-1f1b", "torch-interleaved", "torch-zb", "accumulation")
TARGET_AT = 0.7

PACED = TrainSpec(
    model="gpt:blocks=14,width=32,heads=2,context=32",  # 16 layers, for torch's interleaved has two stages on a rank
    microbatch_size=2,
    stages=8,
    optimizer="nadam",
    momentum=0.95,
    device="cpu",
    pace_forward_ms=20,
    pace_backward_ms=40,
    validation_batches=4,
    evaluate="after",
)

COMPUTING = COMPUTE.replace(optimizer="nadam", momentum=0.95, optimizer_implementation="foreach", validation_batches=4)


def main(arguments: list[str] | None = None) -> int:
    """Measure both and print a table each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of shorter runs with fewer peers")
    add_json_argument(parser)
    chosen = parser.parse_args(arguments)
    rounds = 1 if chosen.quick else 3
    peers = ("1f1b", "torch-1f1b", "accumulation") if chosen.quick else PEERS
    figures: dict[str, Any] = {"machine": machine_line(), "quick": chosen.quick}
    updates = 6 if chosen.quick else 40
    with tempfile.TemporaryDirectory() as name:
        # At 8 stages a window of 4 has a largest gap of 2, at 2 stages every window has one of 1.
        for what, base, windows in (
            ("2 computing stages", sized(COMPUTING), (2, 4)),
            ("8 paced stages", PACED, (4, 8)),
        ):
            for window in windows[-1:] if chosen.quick else windows:
                folder = Path(name) / f"{base.stages}-{window}"
                count = updates * window
                found = against(base.replace(microbatches=count, evaluate_every=window), window, peers, rounds, folder)
                figures[f"{what}, window {window}"] = found
                report(f"{what}, window {window}", found)
    write_figures(chosen.json, figures)
    return 0


def against(base: TrainSpec, window: int, peers: tuple[str, ...], rounds: int, folder: Path) -> dict[str, Any]:
    """PACI and its peers with one window."""
    specs, refused = parse_contenders([f"{name}:{window}" for name in (*peers, "paci")], base)
    flush = f"1f1b-{window}"
    curves = compare({flush: specs[flush]}, rounds=rounds, folder=folder / "target")
    aims = [_loss_at(path, TARGET_AT) for path in curves.paths[flush]]
    target = statistics.mean(aims)
    found = compare(
        {name: spec.replace(target_loss=target) for name, spec in specs.items()}, rounds=rounds, folder=folder / "runs"
    )
    untargeted = compare(specs, rounds=rounds, folder=folder / "whole")
    paci = f"paci-{window}"
    failures = {**refused, **found.failures, **untargeted.failures}
    rows: list[dict[str, Any]] = [{"name": name, "failure": why} for name, why in failures.items()]
    for name in specs:
        if name in failures:
            continue
        sooner, faster = found.speedup(paci, name, "time_to_target_s"), untargeted.speedup(paci, name, "wall_time_s")
        rows.append(
            {
                "name": name,
                "to_target_s": found.values(name, "time_to_target_s"),
                "tokens_per_second": untargeted.values(name, "tokens_per_second"),
                "peak_memory_bytes": max(map(max, untargeted.values(name, "peak_memory_bytes"))),
                "final_val_loss": untargeted.values(name, "final_val_loss"),
                "paci_sooner": None if sooner is None else [sooner.median, sooner.low, sooner.high],
                "paci_faster": [faster.median, faster.low, faster.high],
            }
        )
    return {"target": target, "rounds": rounds, "rows": rows, "of_limit": _of_limit(untargeted, paci)}


def _loss_at(path: Path, share: float) -> float:
    rows = RunDir(path).validation()
    return rows[round(share * len(rows)) - 1]["val_loss"]


def _of_limit(found: Comparison, paci: str) -> list[float]:
    """Share of its steady time in which the busiest stage works: 1 is the limit without a bubble, for no pipeline is
    faster than its slowest stage."""
    return [max(result["steady_utilization"]) for result in found.results[paci]]


def report(title: str, found: dict[str, Any]) -> None:
    """Print one table."""
    rows = []
    for row in found["rows"]:
        if "failure" in row:
            rows.append([row["name"], "could not run", "–", "–", "–", "–", "–"])
            console().print(f"{row['name']} could not run: {row['failure']}", markup=False, soft_wrap=True)
            continue
        times = row["to_target_s"]
        rows.append(
            [
                row["name"],
                f"{times.count(None)} missed" if None in times else f"{statistics.median(times):.2f} s",
                _ratio(row["paci_sooner"]),
                f"{statistics.median(row['tokens_per_second']):,.0f}",
                _ratio(row["paci_faster"]),
                f"{row['peak_memory_bytes'] / 2**20:,.0f}",
                f"{statistics.median(row['final_val_loss']):.3f}",
            ]
        )
    limit = ", ".join(f"{share:.3f}" for share in found["of_limit"])
    print_table(
        f"{title}: to a validation loss of {found['target']:.3f}, {found['rounds']} rounds",
        ["", "to target", "PACI sooner", "tokens per s", "PACI faster", "peak MiB", "final loss"],
        rows,
        notes=[
            "aim: PACI sooner than every pipeline with a flush (above 1); accumulation has one device for all stages",
            f"PACI's throughput as a share of the limit without a bubble, each round: {limit} (aim: at least 0.97)",
        ],
    )


def _ratio(values: list[float] | None) -> str:
    return "–" if values is None else "{:.2f}× [{:.2f}–{:.2f}]".format(*values)


if __name__ == "__main__":
    sys.exit(main())
