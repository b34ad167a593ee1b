"""`paci-lab demo`: flush against PACI on this machine, in a few minutes, with a report at the end."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.commands.compare import COLUMNS, comparison_rows
from paci_lab.commands.train import follow
from paci_lab.errors import InputError
from paci_lab.runtime.launch import open_run
from paci_lab.spec import TrainSpec

if TYPE_CHECKING:
    from paci_lab.compare import Comparison

HELP = "the main job: flush against PACI on this machine, measured, with a report (about five minutes)"
EXAMPLE = "paci-lab demo"

PAIRS = 3
"""Rounds of part (a): two real-compute stages, one schedule after the other."""

REAL = TrainSpec(
    schedule="1f1b",
    stages=2,
    window=2,
    microbatches=40,
    model="nano",
    microbatch_size=8,
    partition=[5, 5],
    device="cpu",
    evaluate="after",
    validation_batches=1,
)
"""Two stages that compute all the time, on two cores: no sleeping, so throughput is what the cores give."""

PACED = TrainSpec(
    schedule="1f1b",
    stages=8,
    window=8,
    microbatches=1360,
    model="pico",
    microbatch_size=2,
    pace_forward_ms=8.0,
    pace_backward_ms=16.0,
    device="cpu",
    optimizer="nadam",
    learning_rate=1e-3,
    learning_rate_schedule="constant",
    warmup=80 / 1360,
    weight_decay=0.0,
    target_loss=3.0,
    evaluate_every=32,
)
"""Eight paced stages. All contenders start from the same weights, see the same batches and stop at the same target."""

LEARNING_RATES = {"1f1b-8": 1.4e-3, "1f1b-16": 1.4e-3, "paci-4": 1e-3, "paci-8": 1e-3}
"""For each the best of two or three rates from 7e-4 to 2e-3, by replay with this seed: flush gets the same care."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run-dir",
        default="runs/demo",
        metavar="DIR",
        help="folder for the runs and the report; one of an earlier demo is replaced (default runs/demo)",
    )
    add_json_argument(parser)


def contenders() -> dict[str, TrainSpec]:
    """Part (b): flush and PACI with two windows each under NAdam, and a pair under AdamW."""
    specs = {}
    for name, rate in LEARNING_RATES.items():
        schedule, window = name.split("-")
        specs[name] = PACED.replace(schedule=schedule, window=int(window), learning_rate=rate)
    for schedule in ("1f1b", "paci"):
        specs[f"{schedule}-8-adamw"] = PACED.replace(schedule=schedule, optimizer="adamw")
    return specs


def run(arguments: argparse.Namespace) -> int:
    from paci_lab.compare import compare

    began = time.monotonic()
    screen = console()
    folder = _clear(Path(arguments.run_dir))

    screen.print(f"\n[bold](a) Two stages that compute for real[/bold], flush against PACI in turns, {PAIRS} times")
    real = compare(
        {"1f1b-2": REAL, "paci-2": REAL.replace(schedule="paci")}, rounds=PAIRS, folder=folder / "real", follow=_follow
    )
    gain = real.speedup("paci-2", "1f1b-2", "wall_time_s")
    screen.print(
        f"PACI trains the same micro-batches {gain} as fast as flush with m = 2 (theory without latency: 1.50×)."
    )

    specs = contenders()
    screen.print(
        f"\n[bold](b) Eight paced stages[/bold]: real work, then sleep until a forward has taken "
        f"{PACED.pace_forward_ms:g} ms and a backward {PACED.pace_backward_ms:g} ms; "
        f"to a validation loss of {PACED.target_loss}"
    )
    paced = compare(specs, rounds=1, folder=folder, follow=_follow)
    nadam = {name: spec for name, spec in specs.items() if spec.optimizer == "nadam"}
    adamw = {name: spec for name, spec in specs.items() if spec.optimizer == "adamw"}
    rows, best = comparison_rows(paced, nadam)
    adam_rows, adam_best = comparison_rows(paced, adamw)
    theory = {
        name: theoretical_speedup(spec, nadam[best] if spec.optimizer == "nadam" else adamw[adam_best])
        for name, spec in specs.items()
    }
    lines = [[*row, f"{theory[row[0]]:.2f}×"] for row in (*rows, *adam_rows)]
    print_table(
        "measured on paced devices, one run each, NAdam and then AdamW",
        [*COLUMNS, "against\nbest flush", "theory:\nthroughput"],
        lines,
        notes=[
            "against best flush: how many times sooner at the target than the best flush with the same optimizer",
            "theory: ratio of throughputs alone, without latency, as if every update were worth the same",
        ],
    )
    headline = _headline(paced, nadam, best)
    screen.print(headline, style="bold")
    report = _report(folder, real, paced, specs, lines, headline, gain)
    screen.print(f"Report: {report}   ({time.monotonic() - began:.0f} s in all)")
    write_figures(
        arguments.json,
        {
            "real": {"speedup": vars(gain), "results": dict(real.results)},
            "paced": {"best_flush": best, "theory": theory, "results": dict(paced.results)},
        },
    )
    return 0


def theoretical_speedup(spec: TrainSpec, over: TrainSpec) -> float:
    """Throughput of `spec` over that of `over` from the bubble formulas, for an endless stream."""

    def work(s: TrainSpec) -> float:
        return 1.0 if not s.build_schedule().flushes else s.window / (s.window + s.stages - 1)

    return work(spec) / work(over)


def _follow(run: Any, name: str) -> dict[str, Any]:
    result = follow(run, label=name)
    reached = f", target after {result['time_to_target_s']:.1f} s" if result["reached"] else ""
    console().print(f"  {name:14} {result['updates']:4} updates in {result['wall_time_s']:.1f} s{reached}", style="dim")
    return result


def _headline(paced: Comparison, specs: dict[str, TrainSpec], best: str | None) -> str:
    pacis = [
        name for name in specs if specs[name].schedule == "paci" and paced.median(name, "time_to_target_s") is not None
    ]
    if best is None or not pacis:
        return "No comparison: a side never reached the target."
    winner = min(pacis, key=lambda name: paced.median(name, "time_to_target_s"))
    ratio = paced.speedup(winner, best, "time_to_target_s")
    seconds = {name: paced.median(name, "time_to_target_s") for name in (winner, best)}
    return (
        f"To the same loss, PACI with window {specs[winner].window} took {seconds[winner]:.1f} s and the best flush, "
        f"m = {specs[best].window}, {seconds[best]:.1f} s: {ratio} as fast."
    )


def _clear(folder: Path) -> Path:
    """An empty `folder`; one that an earlier demo left is emptied, any other is refused."""
    if folder.exists():
        made = ("report.html", "real", "study/study.toml")  # the last by paci-tune demo, which `make demo` ends with
        ours = any((folder / name).exists() for name in made) or not any(folder.iterdir())
        if not ours:
            raise InputError("--run-dir", folder, "a new folder, or one that an earlier demo made", "name another one")
        shutil.rmtree(folder)
    return folder


def _report(
    folder: Path,
    real: Comparison,
    paced: Comparison,
    specs: dict[str, TrainSpec],
    lines: list[list[str]],
    headline: str,
    gain: Any,
) -> Path:
    from paci_lab.commands.charts import describe
    from paci_lab.show.gantt import gantt_pair
    from paci_lab.show.loss import loss_curves
    from paci_lab.show.report import Chart, Column, Section, Table, write_report

    def pair(found: Comparison, above: str, below: str, span_ms: tuple[float, float]) -> Chart:
        traces = [open_run(found.paths[name][0]).trace() for name in (above, below)]
        words = " ".join(describe(name, trace) for name, trace in zip((above, below), traces, strict=True))
        return Chart(gantt_pair(*traces, names=(above, below), between_ms=span_ms), words, words)

    period = PACED.pace_forward_ms + PACED.pace_backward_ms
    loss = loss_curves(
        {name: open_run(paced.paths[name][0]).dir.validation() for name in specs}, target=PACED.target_loss
    )
    told = " ".join(
        f"{name}: target after {paced.median(name, 'time_to_target_s'):.1f} s."
        if paced.median(name, "time_to_target_s") is not None
        else f"{name}: target missed."
        for name in specs
    )
    columns = [Column(heading.replace("\n", " ")) for heading in (*COLUMNS, "against best flush", "theory: throughput")]
    return write_report(
        folder / "report.html",
        title="Flush against PACI, measured on this machine",
        lead=headline,
        sections=[
            Section(
                "Eight paced stages",
                "Every stage does its real work and then sleeps until its forward has taken "
                f"{PACED.pace_forward_ms:g} ms and its backward {PACED.pace_backward_ms:g} ms, so that eight devices "
                "run side by side on a few cores. All contenders start from the same weights and see the same batches.",
                [
                    pair(paced, "1f1b-8", "paci-8", (0.0, 40 * period)),
                    Table(
                        columns,
                        lines,
                        "One run each. The ratio holds a schedule against the best flush with the same optimizer.",
                    ),
                ],
            ),
            Section(
                "Loss",
                "Throughput is not time to the target: an update with delayed gradients can be worth less. NAdam "
                "bears the delay, AdamW less so.",
                [
                    Chart(
                        loss,
                        "Validation loss of weights that every stage had at the same "
                        "update; the dot marks where a run reached the target.",
                        told,
                    )
                ],
            ),
            Section(
                "Two stages that compute for real",
                f"No sleeping here: PACI trains the same micro-batches {gain} as fast as "
                f"flush with m = 2, over {PAIRS} pairs of runs in turns. Theory without latency says 1.50×.",
                [pair(real, "1f1b-2", "paci-2", (0.0, 1500.0))],
            ),
        ],
    )
