"""`paci-lab compare`: several schedules on the same work."""

from __future__ import annotations

import argparse
import dataclasses
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paci_lab.commands.common import (
    add_json_argument,
    add_spec_arguments,
    console,
    print_table,
    spec_from,
    write_figures,
)
from paci_lab.commands.train import follow, gap_text
from paci_lab.errors import InputError
from paci_lab.peers import ALONE, PEERS
from paci_lab.schedules import Schedule, build_schedule, has_option, schedule_classes
from paci_lab.spec import TrainSpec

if TYPE_CHECKING:
    from paci_lab.compare import Comparison

__all__ = ["comparison_rows", "parse_contender", "parse_contenders"]

HELP = "run several schedules and peers on the same work, in turns, and print one table"
EXAMPLE = "paci-lab compare 1f1b:8 torch-1f1b:8 accumulation:8 paci:8 --stages 2 --microbatches 80 --rounds 3"

_CONTENDER = re.compile(r"(.+?):([0-9]+)(?::([0-9]+))?")

COLUMNS = (
    "",
    "to\ntarget",
    "per\nupdate",
    "updates",
    "tokens\nper s",
    "working",
    "gap max\n(mean)",
    "in\nflight",
    "weight\ncopies",
    "peak\nMiB",
    "val\nloss",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "contenders",
        nargs="+",
        metavar="SCHEDULE:WINDOW[:SLACK]",
        help=f"of {', '.join(schedule_classes())}, of my_file.py:MySchedule, or a peer: {', '.join(PEERS)}",
    )
    parser.add_argument("--spec", metavar="SPEC.toml", help="what they all train; flags win over it")
    add_spec_arguments(parser, without=("schedule", "engine", "window", "slack", "updates"), file=False)
    parser.add_argument("--rounds", type=int, default=3, help="how often each runs, with a seed per round (default 3)")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="folder for the run directories (default: runs/compare-<time>)"
    )
    add_json_argument(parser)


def parse_contender(text: str, base: TrainSpec) -> tuple[str, TrainSpec]:
    """("paci-8", its spec) of "paci:8"."""
    if base.engine != "paci-lab":
        raise InputError("engine", base.engine, "paci-lab in what all contenders train", "name a peer as a contender")
    match = _CONTENDER.fullmatch(text)
    if match is None:
        raise InputError(
            "contender", text, "SCHEDULE:WINDOW or SCHEDULE:WINDOW:SLACK", "write it as in paci:8 or paci:8:2"
        )
    schedule, window, slack = match[1], int(match[2]), int(match[3] or 0)
    # The name becomes a folder's, so the path of somebody's own file is left out of it.
    name = Path(text).name.replace(":", "-")
    engine, schedule = PEERS.get(schedule, ("paci-lab", schedule))
    if engine in ALONE:
        return name, _on_one_device(base.replace(window=window, slack=slack, chunks=0), engine)
    base = base.replace(engine=engine)
    spec = base.replace(schedule="1f1b", window=window, chunks=0)  # the same micro-batches, whatever chunks may be
    cls = schedule_classes().get(schedule)
    if cls is None or cls.chunks == 1:
        return name, spec.replace(schedule=schedule, slack=slack)
    # The same ranks hold several stages each, and a paced stage has its share of the rank's time.
    asked = base.chunks if has_option(schedule, "chunks") else 0
    chunks = asked or cls.chunks
    sizes = {"stages": base.stages * chunks, "window": window, "slack": slack, "chunks": asked}
    built = build_schedule(schedule, microbatches=spec.total_microbatches, **sizes)
    paces = {field: _shared(getattr(base, field), built) for field in ("pace_forward_ms", "pace_backward_ms")}
    # A cut into so many stages says nothing about twice as many.
    return name, spec.replace(schedule=schedule, partition="auto", **sizes, **paces)


def parse_contenders(texts: Sequence[str], base: TrainSpec) -> tuple[dict[str, TrainSpec], dict[str, str]]:
    """Specs by name, and for each peer that cannot be given this work why; what is wrong with ours is raised."""
    specs, refused = {}, {}
    for text in texts:
        try:
            name, spec = parse_contender(text, base)
            specs[name] = spec
        except InputError as error:
            if text.partition(":")[0] not in PEERS:
                raise
            refused[text.replace(":", "-")] = str(error)
    return specs, refused


def _shared(pace: float | list[float], schedule: Schedule) -> float | list[float]:
    """Durations of the ranks as durations of the stages that they hold."""
    share = schedule.ranks / schedule.stages
    if not isinstance(pace, list):
        return pace * share
    return [pace[schedule.rank_of(stage)] * share for stage in range(schedule.stages)]


def run(arguments: argparse.Namespace) -> int:
    if arguments.rounds < 1:
        raise InputError("--rounds", arguments.rounds, "a whole number from 1", "try --rounds 3")
    base = spec_from(arguments, microbatches=80, schedule="1f1b", evaluate="after")
    specs, refused = parse_contenders(arguments.contenders, base)
    from paci_lab.compare import compare  # needs torch, seconds that --help should not cost

    folder = Path(arguments.run_dir or f"runs/compare-{time.strftime('%Y%m%d-%H%M%S')}")
    found = compare(specs, rounds=arguments.rounds, folder=folder, follow=lambda run, name: follow(run, label=name))
    found = dataclasses.replace(found, failures={**refused, **found.failures})
    rows, best = comparison_rows(found, specs)
    unit = "time to target" if base.target_loss is not None else "throughput"
    alone = [name for name, spec in specs.items() if spec.engine in ALONE]
    kind = "measured on paced devices" if base.paced else "measured"
    print_table(
        f"{kind}: {arguments.rounds} rounds in turns, medians",
        [*COLUMNS, f"{unit}\nagainst {best or 'flush'}"],
        rows,
        notes=[
            f"brackets: 95 % bootstrap interval of {arguments.rounds} paired ratios",
            *(["accumulation and single use one device, the others one a stage"] if alone else []),
            f"run directories: {folder}",
        ],
    )
    for name, why in found.failures.items():
        console().print(f"{name} could not run: {why}", markup=False, soft_wrap=True)
    figures = {"rounds": arguments.rounds, "best_flush": best, "results": dict(found.results)}
    write_figures(arguments.json, {**figures, "failures": dict(found.failures)})
    return 0


def comparison_rows(found: Comparison, specs: dict[str, TrainSpec]) -> tuple[list[list[str]], str | None]:
    """A row of text per contender, and the name of the flush schedule the others are held against.

    That is the pipeline with a flush, ours or a peer's, that is first to the target, or that has the highest throughput
    when there is no target or none reaches it.
    """
    ran = [name for name in specs if name not in found.failures]
    flushes = [name for name in ran if specs[name].engine not in ALONE and specs[name].build_schedule().flushes]
    targeted = all(spec.target_loss is not None for spec in specs.values())
    to_target = {name: found.median(name, "time_to_target_s") for name in flushes}
    field = "time_to_target_s" if targeted and any(v is not None for v in to_target.values()) else "wall_time_s"
    timed = {name: found.median(name, field) for name in flushes if found.median(name, field) is not None}
    best = min(timed, key=timed.__getitem__) if timed else None
    rows = []
    for name in dict.fromkeys([*specs, *found.failures]):
        if name in found.failures:
            rows.append([name, "could not run", *["–"] * len(COLUMNS[2:]), "–"])
            continue
        last = found.results[name][-1]
        median, spread = found.median(name, "time_to_target_s"), found.spread(name, "time_to_target_s")
        missed = sum(result["reached"] is False for result in found.results[name])
        ratio = found.speedup(name, best, field) if best else None
        rows.append(
            [
                name,
                "–"
                if not targeted
                else f"{missed} missed"
                if median is None
                else f"{median:.1f} s"
                + (f" [{spread[0]:.1f}–{spread[1]:.1f}]" if len(found.results[name]) > 1 else ""),
                f"{found.median(name, 'seconds_per_update'):.3f} s",
                f"{found.median(name, 'updates_to_target' if median is not None else 'updates'):.0f}",
                f"{found.median(name, 'tokens_per_second'):,.0f}",
                "?" if last["utilization"] is None else f"{sum(last['utilization']) / len(last['utilization']):.0%}",
                gap_text(last),
                "?" if last["in_flight_peak"] is None else str(max(last["in_flight_peak"])),
                f"{max(last['weight_copies']):g}",
                f"{max(last['peak_memory_bytes']) / 2**20:,.0f}",
                f"{found.median(name, 'final_val_loss'):.3f}",
                "1" if name == best else str(ratio) if ratio else "–",
            ]
        )
    return rows, best


def _on_one_device(spec: TrainSpec, engine: str) -> TrainSpec:
    """The same work for a peer that has no stages: one device, which takes the time of all of them."""
    paces = {field: getattr(spec, field) for field in ("pace_forward_ms", "pace_backward_ms")}
    whole = {field: sum(pace) if isinstance(pace, list) else pace * spec.stages for field, pace in paces.items()}
    return spec.replace(engine=engine, schedule="1f1b", stages=1, partition="auto", **whole)
