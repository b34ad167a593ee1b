"""What several commands share: flags made from the spec's fields, tables, and figures as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from paci_lab.errors import InputError
from paci_lab.spec import TrainSpec

__all__ = ["add_json_argument", "add_spec_arguments", "console", "print_table", "spec_from", "write_figures"]


def console() -> Console:
    """Where people read: standard error, so that `--json -` has standard output to itself."""
    screen = Console(stderr=True, highlight=False)
    if not screen.is_terminal:
        screen.width = 140  # a log file has no width, and rich would assume a narrow one and break the tables
    return screen


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """`--json FILE`, `-` for standard output."""
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for standard output")


def write_figures(destination: str | None, figures: Any) -> None:
    """Write `figures` where `--json` says, if it says so."""
    if destination is None:
        return
    text = json.dumps(figures, indent=1) + "\n"
    if destination == "-":
        sys.stdout.write(text)
        return
    try:
        Path(destination).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            "--json", destination, "a file that can be written, or -", f"choose another ({error})"
        ) from None


def add_spec_arguments(parser: argparse.ArgumentParser, *, without: Sequence[str] = (), file: bool = True) -> None:
    """A spec file (as the positional argument, when `file`) and one flag per field of `TrainSpec`."""
    if file:
        parser.add_argument("spec", nargs="?", metavar="SPEC.toml", help="a spec file; flags win over it")
    group = parser.add_argument_group("the run")
    for field in dataclasses.fields(TrainSpec):
        if field.name not in without:
            flag = "--" + field.name.replace("_", "-")
            given = field.default if field.default is not dataclasses.MISSING else None
            shown = "" if given is None else f" (default {given})"
            group.add_argument(
                flag, dest=f"spec_{field.name}", metavar="X", type=_value, help=field.metadata["help"] + shown
            )


def spec_from(arguments: argparse.Namespace, base: TrainSpec | None = None, **fixed: Any) -> TrainSpec:
    """The spec that file and flags describe; `fixed` are defaults of the command below both.

    Args:
        base: in the place of a file where none is given: what flags change.
    """
    given = TrainSpec.load(arguments.spec) if arguments.spec else base
    values = given.to_dict() if given else {}
    flags = {
        name.removeprefix("spec_"): value
        for name, value in vars(arguments).items()
        if name.startswith("spec_") and value is not None
    }
    if {"updates", "microbatches"} & set(flags) and not {"updates", "microbatches"} <= set(flags):
        values.pop("updates", None)  # a length on the command line replaces the file's, in whichever unit it is
        values.pop("microbatches", None)
    if given is not None and given is base and flags.get("stages", base.stages) != base.stages:
        values.pop("partition", None)  # that of another number of stages
    return TrainSpec.from_dict({**fixed, **values, **flags})


def _value(text: str) -> Any:
    """A number, true, false, list or table as TOML writes it; a bare word as itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    notes: Sequence[str] = (),
    left: int = 1,
    padding: int = 1,
) -> None:
    """A table on the console; the first `left` columns are text, the rest figures; `padding` is in characters."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, padding),
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*row)
    screen = console()
    screen.print(table)
    for note in notes:
        screen.print(f"[dim]{note}[/dim]")
