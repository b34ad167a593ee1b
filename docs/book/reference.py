"""The pages of the book that are made from the code: fields of a spec, public names, and every command's --help."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
from collections.abc import Callable
from pathlib import Path

import paci_lab
import tuning
from paci_lab import cli
from tuning import cli as tuner
from tuning.commands import COMMANDS as TUNER_COMMANDS

__all__ = ["write_reference"]


def write_reference(folder: Path) -> None:
    """Write the pages into the new folder `folder`."""
    folder.mkdir()
    (folder / "spec.md").write_text(_spec(), encoding="utf-8")
    (folder / "python.rst").write_text(_python(), encoding="utf-8")
    (folder / "commands.md").write_text(_commands(), encoding="utf-8")


def _spec() -> str:
    rows = [
        f"| `{field.name}` | {_default(field)} | {_cell(field.metadata['help'])} |"
        for field in dataclasses.fields(paci_lab.TrainSpec)
    ]
    return "\n".join(
        [
            "# The fields of a spec",
            "",
            "Every field of `TrainSpec`, of a spec file (TOML), and, with dashes, of `paci-lab train`.",
            "",
            "| field | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _default(field: dataclasses.Field) -> str:
    value = {} if field.default is dataclasses.MISSING else field.default
    return "" if value is None else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", r"\<").replace("*", r"\*").replace("_", r"\_")


def _python() -> str:
    lines = ["Python", "======", ""]
    for module in (paci_lab, tuning):
        lines += [f"import {module.__name__}", "-" * 40, ""]
        for name in module.__all__:
            kind = "class" if inspect.isclass(getattr(module, name)) else "function"
            lines += [f".. auto{kind}:: {module.__name__}.{name}", *(["   :members:"] if kind == "class" else []), ""]
    return "\n".join(lines)


def _commands() -> str:
    parts = ["# Commands", ""]
    for program, main, names in (
        ("paci-lab", cli.main, cli.COMMANDS),
        ("paci-tune", tuner.main, tuple(TUNER_COMMANDS)),
    ):
        parts += [f"## {program}", "", "```text", _help(main, []), "```", ""]
        for name in names:
            parts += [f"### {program} {name}", "", "```text", _help(main, [name]), "```", ""]
    return "\n".join(parts)


def _help(main: Callable[[list[str]], int], command: list[str]) -> str:
    """What --help prints, 100 characters wide."""
    said, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*command, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return said.getvalue().rstrip()
