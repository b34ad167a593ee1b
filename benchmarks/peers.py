"""PACI against every synchronous peer: `python -m benchmarks.peers [--quick] [--json FILE]`.

On 2 stages that really compute and on 8 paced ones: time to the same validation loss, paired by round and run in turns,
and PACI's throughput against the limit without a bubble. The target is our flush's loss at 70 % of its run, the mean
over the seeds; a seed that does not get there is counted as a miss. Losses are read from snapshots after the run, so
the target stops nobody and one set of runs gives all figures. Aims are printed beside them and decide nothing.

All train at the learning rate that is best for a flush, by exact replay with other seeds (`--search-rates`, which also
says what would be best for PACI).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine import COMPUTE, sized
from benchmarks.machine import machine_line
from paci_lab.claims.judged import share_at
from paci_lab.claims.replays import replay_all
from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.commands.compare import parse_contenders
from paci_lab.compare import compare, paired_ratio
from paci_lab.runtime.rundir import RunDir
from paci_lab.spec import TrainSpec

FLUSH = "1f1b"
PEERS = (FLUSH, "torch-gpipe", "torch-1f1b", "torch-interleaved", "torch-zb", "accumulation")
TARGET_AT = 0.7

PACED = TrainSpec(
    model="gpt:blocks=14,width=32,heads=2,context=32",  # 16 layers, for torch's interleaved has two stages on a rank
    microbatch_size=2,
    stages=8,
    optimizer="nadam",
    momentum=0.95,
    device="cpu",
    pace_forward_ms=40,
    pace_backward_ms=80,
    validation_batches=4,
    evaluate="after",
)

COMPUTING = COMPUTE.replace(
    optimizer="nadam",
    momentum=0.95,
    optimizer_implementation="foreach",
    learning_rate_schedule="cosine",
    warmup=0.05,
    validation_batches=2,
)
CASES = {  # its spec, micro-batches by window, rounds, and PACI's slacks, the first of which is held against the peers
    # At 2 stages the largest gap is 1 in every window, also with the slack of 1 that hides jitter but delays more.
    "computing": (COMPUTING, {2: 320, 4: 320}, 3, (0, 1)),
    # At 8 stages the largest gap is 2 in a window of 4 and 1 in one of 8.
    "paced": (PACED, {4: 160, 8: 320}, 3, (0,)),
}

RATES = {("computing", 2): 5e-4, ("computing", 4): 5e-4, ("paced", 4): 3.2e-2, ("paced", 8): 3.2e-2}
"""Peak learning rates by case and window: of those searched, the one with which a flush is first at the target."""

SEARCHED = {"computing": (2.5e-4, 5e-4, 1e-3, 2e-3), "paced": (8e-3, 1.6e-2, 3.2e-2, 6.4e-2)}
SEARCH_SEEDS = (100, 101, 102)  # none of those that are timed
SEARCH_SIZE = 6  # sequences of a computing micro-batch: what 60 ms of work are on the machine of docs/measurements.md


def main(arguments: list[str] | None = None) -> int:
    """Measure both and print a table each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of shorter runs with fewer peers and windows")
    parser.add_argument("--rounds", type=int, help="how often each runs (default 3)")
    parser.add_argument("--case", choices=CASES, help="only this one (default both)")
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="only these, our flush among them (default all)")
    parser.add_argument(
        "--stage-ms",
        type=float,
        default=60.0,
        help="work of a computing stage per micro-batch: the shorter, the more updates; the longer, the less a message "
        "and jitter weigh (default 60)",
    )
    add_json_argument(parser)
    parser.add_argument(
        "--search-rates",
        action="store_true",
        help="only search the learning rates again, by exact replay (about 20 minutes on two cores)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.search_rates:
        write_figures(chosen.json, {case: search(case) for case in ([chosen.case] if chosen.case else CASES)})
        return 0
    wanted = chosen.peers or ((FLUSH, "torch-1f1b", "accumulation") if chosen.quick else PEERS)
    peers = [peer for peer in PEERS if peer in wanted]
    if FLUSH not in peers:
        parser.error(f"--peers must name {FLUSH}: its loss is the target")
    figures: dict[str, Any] = {"machine": machine_line(), "quick": chosen.quick}
    with tempfile.TemporaryDirectory() as name:
        for case in [chosen.case] if chosen.case else CASES:
            base, microbatches, rounds, slacks = CASES[case]
            base = base if base.paced else sized(base, chosen.stage_ms / 1e3)
            for window in list(microbatches)[-1:] if chosen.quick else microbatches:
                found = against(
                    lasting(base, 6 * window if chosen.quick else microbatches[window], window).replace(
                        learning_rate=RATES[case, window]
                    ),
                    [f"{peer}:{window}" for peer in peers],
                    [f"paci:{window}:{slack}" for slack in slacks],
                    chosen.rounds or (1 if chosen.quick else rounds),
                    Path(name) / f"{base.stages}-{window}",
                )
                what = f"{base.stages} {case} stages, window {window}"
                figures[what] = found
                report(what, found)
                write_figures(chosen.json, figures)  # after each: the whole takes more than an hour
    return 0


def lasting(base: TrainSpec, microbatches: int, window: int) -> TrainSpec:
    """`base` for so many micro-batches, looked at about forty times, at the ends of windows."""
    return base.replace(microbatches=microbatches, evaluate_every=max(microbatches // window // 40, 1) * window)


def search(case: str) -> dict[str, Any]:
    """The learning rate with which a flush and PACI are first at a flush's target, by window, as a table and as data.

    The target is the lowest loss that the flush has at 70 % of its run with any of the rates, the mean over the seeds;
    what counts is the share of the run after which it is reached, the median over the seeds.
    """
    base, microbatches, _rounds, _slacks = CASES[case]
    base = base if base.paced else base.replace(microbatch_size=SEARCH_SIZE)
    keys = [
        (window, schedule, rate, seed)
        for window in microbatches
        for schedule in (FLUSH, "paci")
        for rate in SEARCHED[case]
        for seed in SEARCH_SEEDS
    ]
    specs = {
        f"{window}-{schedule}-{rate:g}-{seed}": lasting(base, microbatches[window], window).replace(
            schedule=schedule, window=window, learning_rate=rate, seed=seed, trace=False
        )
        for window, schedule, rate, seed in keys
    }
    with tempfile.TemporaryDirectory() as folder:
        curves = dict(zip(keys, replay_all(specs, Path(folder)).values(), strict=True))
    figures: dict[str, Any] = {}
    for window in microbatches:
        runs = {
            (schedule, rate): [curves[window, schedule, rate, seed] for seed in SEARCH_SEEDS]
            for schedule in (FLUSH, "paci")
            for rate in SEARCHED[case]
        }
        target = min(
            statistics.mean(curve[round(TARGET_AT * len(curve)) - 1][1] for curve in runs[FLUSH, rate])
            for rate in SEARCHED[case]
        )
        shares = {
            key: statistics.median(share_at(curve, target) or math.inf for curve in found)
            for key, found in runs.items()
        }
        ends = {key: statistics.mean(curve[-1][1] for curve in found) for key, found in runs.items()}
        print_table(
            f"{case}, window {window}: share of the run until the loss is {target:.3f}, and the loss at its end",
            ["", "learning rate", "share", "final loss"],
            [[*map(str, key), f"{shares[key]:.3f}", f"{ends[key]:.3f}"] for key in runs],
        )
        figures[f"window {window}"] = {
            "target": target,
            "rows": [
                {"schedule": schedule, "rate": rate, "share": share if share < math.inf else None, "final": end}
                for ((schedule, rate), share), end in zip(shares.items(), ends.values(), strict=True)
            ],
        }
    return figures


def against(base: TrainSpec, peers: Sequence[str], pacis: Sequence[str], rounds: int, folder: Path) -> dict[str, Any]:
    """PACI and its peers, the first of which is our flush; ratios are those of the first PACI."""
    specs, refused = parse_contenders([*peers, *pacis], base)
    flush, asynchronous = next(iter(specs)), list(specs)[-len(pacis) :]
    ours = asynchronous[0]
    found = compare(specs, rounds=rounds, folder=folder)
    failures = {**refused, **found.failures}
    curves = {name: [RunDir(p).validation() for p in found.paths[name]] for name in specs if name not in failures}
    target = statistics.mean(rows[round(TARGET_AT * len(rows)) - 1]["val_loss"] for rows in curves[flush])
    to_target = {name: [_first_at(rows, target) for rows in runs] for name, runs in curves.items()}
    rows: list[dict[str, Any]] = [{"name": name, "failure": why} for name, why in failures.items()]
    for name in curves:
        pairs = [pair for pair in zip(to_target[name], to_target[ours], strict=True) if None not in pair]
        sooner = paired_ratio(pairs) if len(pairs) == rounds else None
        faster = found.speedup(ours, name, "wall_time_s")
        rows.append(
            {
                "name": name,
                "to_target_s": to_target[name],
                "wall_time_s": found.values(name, "wall_time_s"),
                "tokens_per_second": found.values(name, "tokens_per_second"),
                "peak_memory_bytes": max(map(max, found.values(name, "peak_memory_bytes"))),
                "final_val_loss": found.values(name, "final_val_loss"),
                "paci_sooner": None if sooner is None else [sooner.median, sooner.low, sooner.high],
                "paci_faster": [faster.median, faster.low, faster.high],
            }
        )
    # Share of its steady time in which the busiest stage works: 1 is the limit without a bubble, for no pipeline is
    # faster than its slowest stage.
    of_limit = {name: [max(result["steady_utilization"]) for result in found.results[name]] for name in asynchronous}
    gaps = {name: max(max(result["version_gap_max"]) for result in found.results[name]) for name in of_limit}
    return {
        "target": target,
        "learning_rate": base.learning_rate,
        "rounds": rounds,
        "rows": rows,
        "of_limit": of_limit,
        "version_gap_max": gaps,
    }


def _first_at(rows: list[dict[str, Any]], target: float) -> float | None:
    return next((row["time_s"] for row in rows if row["val_loss"] <= target), None)


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
    print_table(
        f"{title}: to a validation loss of {found['target']:.3f}, {found['rounds']} rounds",
        ["", "to target", "PACI sooner", "tokens per s", "PACI faster", "peak MiB", "final loss"],
        rows,
        notes=[
            "aim: PACI sooner than every pipeline with a flush (above 1); accumulation has one device for all stages",
            *(
                f"{name}: largest gap {found['version_gap_max'][name]}; throughput as a share of the limit without a "
                f"bubble, each round: {', '.join(f'{share:.3f}' for share in shares)} (aim: at least 0.97)"
                for name, shares in found["of_limit"].items()
            ),
        ],
    )


def _ratio(values: list[float] | None) -> str:
    return "–" if values is None else "{:.2f}× [{:.2f}–{:.2f}]".format(*values)


if __name__ == "__main__":
    sys.exit(main())
