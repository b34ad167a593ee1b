"""`paci-lab schedules`: every schedule in one table."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.errors import InputError
from paci_lab.schedule_table import COLUMNS, as_markdown, cells, schedule_table

HELP = "compare all schedules in one simulated table"
EXAMPLE = "paci-lab schedules --stages 8 --window 16"

DEFAULTS = {"stages": 4, "window": 8, "updates": 16}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, help in (
        ("stages", "ranks; interleaved and zb-v hold several stages on each"),
        ("window", "micro-batches per update"),
        ("updates", "windows to simulate"),
    ):
        parser.add_argument(f"--{name}", type=int, default=DEFAULTS[name], help=f"{help} (default {DEFAULTS[name]})")
    parser.add_argument("--markdown", metavar="FILE", help="write the page docs/schedules.md")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    sizes = {"ranks": arguments.stages, "window": arguments.window, "updates": arguments.updates}
    for name in ("stages", "window", "updates"):
        value = getattr(arguments, name)
        if value < 1:
            raise InputError(f"--{name}", value, "a whole number from 1", f"try --{name} {DEFAULTS[name]}")
    rows = schedule_table(**sizes)
    print_table(
        f"simulated: {arguments.stages} ranks, window {arguments.window}, {arguments.updates} updates",
        COLUMNS,
        map(cells, rows),
        notes=["a backward takes two forwards, messages take nothing; copies, activations and delay: most on any rank"],
    )
    if arguments.markdown:
        flags = "".join(f" --{name} {getattr(arguments, name)}" for name in DEFAULTS)
        try:
            Path(arguments.markdown).write_text(
                as_markdown(rows, command=f"paci-lab schedules{flags} --markdown docs/schedules.md", **sizes),
                encoding="utf-8",
            )
        except OSError as error:
            raise InputError(
                "--markdown", arguments.markdown, "a file that can be written", f"choose another ({error})"
            ) from None
        console().print(f"page: {arguments.markdown}")
    write_figures(arguments.json, [dataclasses.asdict(row) for row in rows])
    return 0
