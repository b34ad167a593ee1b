"""`paci-lab simulate`: a schedule on a clock instead of on hardware."""

from __future__ import annotations

import argparse

from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.errors import InputError
from paci_lab.schedules import Schedule, build_schedule, drained, from_csv, schedule_classes, validate
from paci_lab.simulate import Costs, simulate

HELP = "simulate a schedule and print its bubble, utilisation, version gaps and memory"
EXAMPLE = "paci-lab simulate --schedule paci --stages 8 --window 8 --updates 8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--schedule", default="paci", help=" | ".join(schedule_classes()) + " | my_file.py:MySchedule (default paci)"
    )
    parser.add_argument(
        "--csv",
        metavar="FILE",
        help="a schedule of torch.distributed.pipelining, which says its stages and window itself",
    )
    for flag, default, help in (
        ("--stages", 8, "pipeline stages"),
        ("--window", 8, "micro-batches per update"),
        ("--updates", 8, "windows to simulate"),
        ("--slack", 0, "PACI: forwards that stage 0 admits beyond its N unresolved ones"),
        ("--chunks", 0, "interleaved: stages on every rank; 0 for the schedule's own"),
        ("--checkpoint-every", 0, "updates after which the pipeline is drained for a checkpoint; 0 for never"),
        ("--seed", 0, "of the jitter"),
    ):
        parser.add_argument(flag, type=int, default=default, help=f"{help} (default {default})")
    for flag, default, help in (
        ("--forward", 1.0, "milliseconds of a forward"),
        ("--backward", 2.0, "milliseconds of a backward"),
        ("--update", 0.0, "milliseconds of an update"),
        ("--latency", 0.0, "milliseconds a message takes, one way"),
        ("--jitter", 0.0, "relative spread of durations"),
    ):
        parser.add_argument(flag, type=float, default=default, help=f"{help} (default {default})")
    parser.add_argument(
        "--straggler",
        metavar="STAGE:FACTOR",
        action="append",
        default=[],
        type=_straggler,
        help="one stage slower by a factor; may be repeated",
    )
    parser.add_argument("--html", metavar="FILE", help="draw the Gantt chart into a page")
    parser.add_argument("--perfetto", metavar="FILE", help="write a trace for Perfetto")
    add_json_argument(parser)


def _straggler(text: str) -> tuple[int, float]:
    stage, _, factor = text.partition(":")
    try:
        return int(stage), float(factor)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not STAGE:FACTOR, as in 3:1.5") from None


def run(arguments: argparse.Namespace) -> int:
    if arguments.updates < 1:
        raise InputError("--updates", arguments.updates, "a whole number from 1", "try --updates 8")
    if arguments.csv:
        schedule: Schedule = from_csv(arguments.csv, updates=arguments.updates)
    else:
        schedule = build_schedule(
            arguments.schedule,
            stages=arguments.stages,
            window=arguments.window,
            microbatches=arguments.window * arguments.updates,
            slack=arguments.slack,
            chunks=arguments.chunks,
        )
    schedule = drained(schedule, every=arguments.checkpoint_every or None)
    validate(schedule)
    trace = simulate(
        schedule,
        Costs(
            forward_ms=arguments.forward,
            backward_ms=arguments.backward,
            update_ms=arguments.update,
            latency_ms=arguments.latency,
            jitter=arguments.jitter,
            stragglers=dict(arguments.straggler),
            seed=arguments.seed,
        ),
    )
    stages = range(schedule.stages)
    figures = {
        "source": "simulated",
        "schedule": schedule.name,
        "stages": schedule.stages,
        "ranks": schedule.ranks,
        "window": schedule.window,
        "updates": schedule.updates,
        "makespan_ms": trace.makespan_ns / 1e6,
        "bubble_fraction": trace.bubble_fraction(),
        "ideal_bubble_fraction": schedule.ideal_bubble_fraction(),
        "utilization": trace.utilization().tolist(),
        "steady_utilization": trace.steady_utilization().tolist(),
        "in_flight_peak": trace.in_flight_peak(),
        "version_gap_max": trace.version_gap_max(),
        "version_gap_mean": trace.version_gap_mean(),
        "version_gap_bound": [schedule.gap_bound(stage) for stage in stages],
    }
    print_table(
        f"simulated: {schedule.name}, {schedule.stages} stages, window {schedule.window}, {schedule.updates} updates",
        ["stage", "utilisation", "in the steady part", "in flight", "gap max", "gap mean", "gap bound"],
        [
            (
                str(s),
                f"{figures['utilization'][s]:.3f}",
                f"{figures['steady_utilization'][s]:.3f}",
                str(figures["in_flight_peak"][s]),
                str(figures["version_gap_max"][s]),
                f"{figures['version_gap_mean'][s]:.3f}",
                str(figures["version_gap_bound"][s]),
            )
            for s in stages
        ],
        notes=[
            f"makespan {figures['makespan_ms']:.3f} ms, bubble {figures['bubble_fraction']:.4f} of all stages' time "
            f"({figures['ideal_bubble_fraction']:.4f} with equal stages and no latency)"
        ],
    )
    if arguments.html:
        from paci_lab.commands.charts import write_gantt_page

        write_gantt_page(arguments.html, [(f"{schedule.name}, window {schedule.window}", trace)])
        console().print(f"chart: {arguments.html}")
    if arguments.perfetto:
        trace.save_chrome(arguments.perfetto)
        console().print(f"Perfetto trace: {arguments.perfetto}")
    write_figures(arguments.json, figures)
    return 0
