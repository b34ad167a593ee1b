"""`paci-lab claims`: the paper's headline table, measured again."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.commands.train import follow
from paci_lab.errors import InputError

HELP = "measure the paper's headline table again: 8 paced stages, two batches, three optimizers"
EXAMPLE = "paci-lab claims --run-dir runs/claims"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="a tiny version, about a minute: that it works, no more")
    effort.add_argument("--full", action="store_true", help="longer training and three rounds: more than an hour")
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="folder for run directories, replays, claims.json and claims.md; replays that are there already are used "
        "(default: runs/claims-<time>)",
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    # These need torch, seconds that --help should not cost.
    from paci_lab.claims.judged import differences, judge, throughput_table
    from paci_lab.claims.measured import clocks, curves
    from paci_lab.claims.plan import SIZES, replayed_specs
    from paci_lab.claims.tables import markdown, tables
    from paci_lab.machine import cpu_model
    from paci_lab.runtime.rundir import write_json

    name = "quick" if arguments.quick else "full" if arguments.full else "default"
    size = SIZES[name]
    folder = Path(arguments.run_dir or f"runs/claims-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--run-dir", folder, "a folder that can be written", f"choose another ({error})") from None
    timed = folder / f"timed-{time.strftime('%Y%m%d-%H%M%S')}"  # times are never taken over from an earlier command
    screen = console()
    screen.print(f"Timing {size.rounds} round(s) of nine paced runs, then replaying the losses, into {folder} …")
    found_clocks = clocks(size, timed, follow=lambda run, label: follow(run, label=label))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("exact replays", total=sum(1 for _ in replayed_specs(size)))
        found_curves = curves(size, folder / "replayed", said=lambda _: progress.advance(task))
    figures = {
        "size": name,
        "seeds": size.seeds,
        "rounds": size.rounds,
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "plan": dataclasses.asdict(size),
        **judge(size, found_clocks, found_curves),
        "throughput": throughput_table(),
    }
    figures["differences"] = differences(figures, size)
    write_json(folder / "claims.json", figures)
    (folder / "claims.md").write_text(markdown(figures), encoding="utf-8")
    for title, headings, rows in tables(figures):
        print_table(title, headings, rows, left=3)
    for sentence in figures["differences"]:
        screen.print(f"- {sentence}", markup=False, soft_wrap=True)
    screen.print(f"figures: {folder}/claims.json, page: {folder}/claims.md", style="dim")
    write_figures(arguments.json, figures)
    return 0
