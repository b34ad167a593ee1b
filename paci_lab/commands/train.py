"""`paci-lab train`: one run."""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from paci_lab.commands.common import (
    add_json_argument,
    add_spec_arguments,
    console,
    print_table,
    spec_from,
    write_figures,
)
from paci_lab.commands.remarks import remarks, versions_text
from paci_lab.errors import InputError
from paci_lab.runtime.launch import Run, launch
from paci_lab.runtime.rundir import LineTail
from paci_lab.runtime.watch import HANG_TIMEOUT_S
from paci_lab.spec import TrainSpec

__all__ = ["add_resume_arguments", "follow", "gap_text", "origin_text", "result_table"]

HELP = "train a model through a pipeline and write a run directory"
EXAMPLE = "paci-lab train --schedule paci --stages 2 --window 8 --updates 50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    parser.add_argument(
        "--run-dir", metavar="DIR", help="a new or empty folder (default: runs/<schedule>-<stages>x<window>-<time>)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print partition, memory per stage, gaps and predicted throughput; start nothing, open no data",
    )
    group = parser.add_argument_group("how it is started")
    group.add_argument(
        "--launcher",
        choices=("local", "torchrun"),
        default="local",
        help="torchrun, for several nodes or where a cluster expects it; its command is printed (default local)",
    )
    group.add_argument("--nodes", type=int, metavar="N", help="torchrun: nodes that take part, with as many ranks each")
    group.add_argument(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="torchrun: where several nodes meet; the others run the command that is printed for them",
    )
    group = parser.add_argument_group("going on")
    add_resume_arguments(group)
    group.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often the run goes on from its newest checkpoint when a rank dies or hangs (default 0)",
    )
    add_json_argument(parser)


def add_resume_arguments(parser: argparse._ArgumentGroup) -> None:
    """Flags about checkpoints and failures that are no part of the spec: they change no number of the run."""
    parser.add_argument(
        "--resume",
        metavar="PATH",
        help="go on from this checkpoint, or the newest one of this run directory, with its spec; flags change it",
    )
    parser.add_argument(
        "--hang-timeout",
        type=float,
        default=HANG_TIMEOUT_S,
        metavar="SECONDS",
        help="end a rank that stands still in one operation for so long, ten minutes at the start; 0 for never "
        f"(default {HANG_TIMEOUT_S:g})",
    )


def _start(arguments: argparse.Namespace, spec: TrainSpec) -> Run:
    options = {
        "resume": arguments.resume,
        "max_restarts": arguments.max_restarts,
        "hang_timeout_s": arguments.hang_timeout,
    }
    if arguments.launcher == "torchrun":
        from paci_lab.runtime.torchrun import launch_torchrun

        return launch_torchrun(
            spec,
            arguments.run_dir,
            nodes=1 if arguments.nodes is None else arguments.nodes,
            rdzv_endpoint=arguments.rdzv_endpoint,
            **options,
            say=lambda text: console().print(text, markup=False, soft_wrap=True),
        )
    for flag in ("nodes", "rdzv_endpoint"):
        if (value := getattr(arguments, flag)) is not None:
            raise InputError(
                f"--{flag.replace('_', '-')}", value, "nothing with --launcher local", "add --launcher torchrun"
            )
    return launch(spec, arguments.run_dir, **options)


def run(arguments: argparse.Namespace) -> int:
    from paci_lab.commands.dry import print_dry_run  # needs torch, seconds that --help should not cost
    from paci_lab.runtime.checkpoint import open_checkpoint
    from paci_lab.runtime.resume import adopt

    screen = console()
    begin, skipped = open_checkpoint(arguments.resume) if arguments.resume else (None, [])
    for reason in skipped:
        screen.print(f"passed over: {reason}", markup=False)
    spec = spec_from(arguments, begin.spec if begin else None)
    if begin:
        spec = adopt(spec, begin)
        if spec.learning_rate_schedule == "cosine" and spec.total_microbatches != begin.spec.total_microbatches:
            screen.print("The learning rate follows the new length: a cosine over another number of tokens.")
    if arguments.dry_run:
        write_figures(arguments.json, print_dry_run(spec))
        return 0
    screen.print("starting the ranks …", style="dim")
    started = _start(arguments, spec)
    result = follow(started)
    print_table(
        f"{started.path}", ["", "measured on paced devices" if spec.paced else "measured"], result_table(result)
    )
    if result["reached"] is False:
        screen.print(
            f"The target of {result['target_loss']} was not reached: the best validation loss was "
            f"{result['best_val_loss']:.4f}, {result['best_val_loss'] - result['target_loss']:.4f} above it. "
            "Train longer with --updates, or raise --target-loss."
        )
    for remark in remarks(result):
        screen.print(remark, style="yellow", markup=False)
    screen.print(f"See it: paci-lab show {started.path}", style="dim")
    write_figures(arguments.json, result)
    return 0


def follow(run: Run, *, label: str = "") -> dict[str, Any]:
    """Show a progress bar with loss, tokens per second and time left until `run` has ended; return its result."""
    spec = run.spec
    tail, tokens_before = LineTail(run.dir.metrics_file), (run.dir.resumed() or {"tokens": 0})["tokens"]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} updates"),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=console(), transient=True) as progress:
            task = progress.add_task(
                label or f"{spec.schedule}, {spec.stages} stages", total=spec.build_schedule().updates, said=""
            )
            said: dict[str, Any] = {}
            while True:
                running = run.running  # asked before reading, so that nothing written at the end is missed
                for row in tail.rows():
                    said |= row
                if said:
                    text = f"loss {said['train_loss']:.3f}" + (
                        f", val {said['val_loss']:.3f}" if "val_loss" in said else ""
                    )
                    rate = (said["tokens"] - tokens_before) / max(said["time_s"], 1e-9)
                    progress.update(task, completed=said["update"] + 1, said=f"{text}  {rate:,.0f} tokens/s")
                if not running:
                    break
                time.sleep(0.2)
    except KeyboardInterrupt:
        run.stop()
        console().print(f"Stopped. What the run wrote is in {run.path}.")
        raise
    return run.wait()


def result_table(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of one result for people."""

    def per_stage(values: list | None, form: str) -> str:
        return "not traced" if values is None else "  ".join(format(v, form) for v in values)

    lines = [
        (
            "schedule",
            f"{result['schedule']} by {result['engine']}, {result['stages']} stages, window {result['window']}"
            + (f", {result['replicas']} replicas (below: replica 0)" if result["replicas"] > 1 else ""),
        ),
        ("devices", f"{result['device_kind']} over {result['backend']}"),
        ("updates", f"{result['updates']}  ({result['tokens']:,} tokens)"),
        ("time", f"{result['wall_time_s']:.2f} s  ({result['tokens_per_second']:,.0f} tokens/s)"),
        *_went_on(result),
        ("loss: train, validation", f"{_loss(result['final_train_loss'])}, {_loss(result['final_val_loss'])}"),
        ("utilisation per stage", per_stage(result["utilization"], ".2f")),
        (
            "bubble",
            "not traced"
            if result["bubble_fraction"] is None
            else f"{result['bubble_fraction']:.1%} of all stages' time",
        ),
        ("version gap, max per stage", per_stage(result["version_gap_max"], "d")),
        ("in flight, peak per stage", per_stage(result["in_flight_peak"], "d")),
        ("precision", result["precision_label"]),
        ("copies of the weights", per_stage(result["weight_copies"], ".3g")),
        ("weights in a backward", versions_text(result["version_used"])),
        ("peak memory per rank", "  ".join(f"{b / 2**20:,.0f} MiB" for b in result["peak_memory_bytes"])),
    ]
    if result["replicas"] > 1:
        lines.append(("waiting for replicas", per_stage(result["replica_wait"], ".1%")))
    if result["clipped_updates"] is not None:
        rule = f"to norm {result['clip_norm']:g}, rule {result['clip']}"
        lines.append(("clipped updates per stage", f"{per_stage(result['clipped_updates'], 'd')}  ({rule})"))
    if result["reached"]:
        lines.append(
            (
                "target reached",
                f"{result['target_loss']} after {result['time_to_target_s']:.2f} s, "
                f"{result['updates_to_target']} updates",
            )
        )
    if any(result["pace_overruns"]):
        lines.append(("paces overrun", f"{sum(result['pace_overruns'])} operations took longer than stated"))
    return lines


def _went_on(result: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if result["resumed_from"]:
        lines.append(("resumed from", origin_text(result["resumed_from"])))
    if result["restarts"]:
        lines.append(("restarts after a failure", f"{result['restarts']}, their time included"))
    return lines


def origin_text(origin: dict[str, Any]) -> str:
    """Where a run was resumed from, for people."""
    there = f"{origin['schedule']}, {origin['stages']} stages, window {origin['window']}"
    return f"{origin['checkpoint']} ({origin['microbatches']:,} micro-batches of {there}, {origin['time_s']:.1f} s)"


def _loss(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def gap_text(result: dict[str, Any]) -> str:
    """Largest and mean version gap over the stages."""
    if result["version_gap_max"] is None:
        return "?"
    return f"{max(result['version_gap_max'])} ({max(result['version_gap_mean']):.2f})"
