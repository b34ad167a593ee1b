"""`paci-lab schedules`: every schedule in one table, simulated and measured."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.errors import InputError
from paci_lab.schedule_table import Row, as_markdown, cells, columns, conditions_of, schedule_table

if TYPE_CHECKING:
    from paci_lab.schedule_runs import Record

HELP = "compare all schedules in one table, simulated and on request measured"
EXAMPLE = "paci-lab schedules --stages 8 --window 16"

DEFAULTS = {"stages": 4, "window": 8, "updates": 16}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, help in (
        ("stages", "ranks; interleaved and zb-v hold several stages on each"),
        ("window", "micro-batches per update"),
        ("updates", "windows of the stream"),
    ):
        parser.add_argument(f"--{name}", type=int, default=DEFAULTS[name], help=f"{help} (default {DEFAULTS[name]})")
    parser.add_argument(
        "--measure", action="store_true", help="run each on real, paced ranks as well, seconds to half a minute each"
    )
    parser.add_argument(
        "--measured", metavar="FILE", help="show the measured figures of FILE; with --measure, write them there"
    )
    parser.add_argument(
        "--forward-ms", type=float, default=20.0, help="--measure: a rank's forward; backward twice that (default 20)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="--measure: how often each runs, in turns (default 1)")
    parser.add_argument("--markdown", metavar="FILE", help="write the page docs/schedules.md")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    sizes = {"ranks": arguments.stages, "window": arguments.window, "updates": arguments.updates}
    for name in ("stages", "window", "updates"):
        value = getattr(arguments, name)
        if value < 1:
            raise InputError(f"--{name}", value, "a whole number from 1", f"try --{name} {DEFAULTS[name]}")
    if arguments.measure and not (arguments.rounds >= 1 and 0 < arguments.forward_ms <= 1e6):
        wrong = "rounds" if arguments.rounds < 1 else "forward-ms"
        value = getattr(arguments, wrong.replace("-", "_"))
        raise InputError(f"--{wrong}", value, "a number above 0", "leave it out")
    rows = schedule_table(**sizes)
    record = _record(arguments, rows, sizes)
    heads, texts = columns(record is not None), [cells(row, record) for row in rows]
    notes = ["simulated: a backward takes two forwards, messages none; copies, activations, delay: most on any rank"]
    if record:  # no room for the words of the last column
        heads, texts = heads[:-1], [text[:-1] for text in texts]
        notes += [conditions_of(record), *(f"{row.schedule}: {row.refusal}" for row in rows if row.refusal)]
    kind = "simulated and measured" if record else "simulated"
    title = f"{kind}: {arguments.stages} ranks, window {arguments.window}, {arguments.updates} updates"
    print_table(title, heads, texts, notes=notes)
    if arguments.markdown:
        flags = "".join(f" --{name} {getattr(arguments, name)}" for name in DEFAULTS)
        flags += f" --measured docs/{Path(arguments.measured).name}" if arguments.measured else ""
        try:
            Path(arguments.markdown).write_text(
                as_markdown(rows, record, command=f"paci-lab schedules{flags} --markdown docs/schedules.md", **sizes),
                encoding="utf-8",
            )
        except OSError as error:
            raise InputError(
                "--markdown", arguments.markdown, "a file that can be written", f"choose another ({error})"
            ) from None
        console().print(f"page: {arguments.markdown}")
    write_figures(arguments.json, [_figures(row, record) for row in rows])
    return 0


def _figures(row: Row, record: Record | None) -> dict:
    found = record.schedules.get(row.schedule) if record else None
    return dataclasses.asdict(row) | ({"measured": dataclasses.asdict(found)} if found else {})


def _words(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sizes.items())


def _record(arguments: argparse.Namespace, rows: Sequence[Row], sizes: dict[str, int]) -> Record | None:
    """Measured now, or read; None when neither was asked for."""
    if not arguments.measure and arguments.measured is None:
        return None
    from paci_lab.schedule_runs import Record, measure_schedules  # needs torch, seconds that --help should not cost

    if not arguments.measure:
        record = Record.load(arguments.measured)
        taken = {name: record.conditions.get(name) for name in sizes}
        if taken != sizes:
            raise InputError(
                "--measured",
                arguments.measured,
                f"figures of {_words(sizes)}; these are of {_words(taken)}",
                "give the same sizes, or measure these with --measure",
            )
        return record
    if arguments.measured and not Path(arguments.measured).resolve().parent.is_dir():  # said before minutes of runs
        raise InputError("--measured", arguments.measured, "a file in a folder that exists", "make the folder first")
    record = measure_schedules(
        [row.schedule for row in rows if not row.refusal],
        **sizes,
        forward_ms=arguments.forward_ms,
        rounds=arguments.rounds,
        done=lambda name, round_: console().print(f"round {round_ + 1}: {name}", style="dim"),
    )
    if arguments.measured:
        record.save(arguments.measured)
    return record
