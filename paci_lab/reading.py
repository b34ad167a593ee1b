"""Reading what somebody else may have written: a run directory from a colleague, or from the internet.

Nothing in it is code, and nothing that it names is imported or followed out of it. What is not as a run writes it is
refused with `InputError`, which names the file.
"""

from __future__ import annotations

import json
import math
import numbers
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError

__all__ = ["METRICS", "MOST", "MOST_BYTES", "check_row", "file_inside", "parse_json", "read_json", "read_toml"]

MOST_BYTES = 64 << 20
"""A file of settings or figures that is larger is none."""

MOST = 2**62
"""No count or time of a run is larger; it fits into 64 bits with room for sums of two."""

METRICS = {
    **dict.fromkeys(("tokens", "update"), "count"),
    **dict.fromkeys(("time_s", "train_loss", "val_loss", "learning_rate"), "number"),
    "grad_norm": "number or null",
}
"""Fields of a line of `metrics.jsonl`."""


def file_inside(folder: Path, path: Path, *, most_bytes: float = math.inf) -> Path | None:
    """`path` if it is a file in `folder`, None when there is nothing.

    Raises InputError for a device, a pipe or a folder in its place, for a link that leads out of `folder`, and for a
    file of more than `most_bytes`.
    """
    try:
        if not (path.exists() or path.is_symlink()):
            return None
        inside = path.resolve().is_relative_to(folder.resolve())
        if not (inside and path.is_file()):
            what = "something else" if inside else "a link out of it"
            raise InputError(str(path), what, "a plain file of its folder", "remove it, or copy the run again")
        if (size := path.stat().st_size) > most_bytes:
            raise InputError(str(path), f"{size} bytes", f"at most {most_bytes} bytes", "remove it")
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(path), "its place", "a file that can be read", f"check it ({error})") from None
    return path


def parse_json(text: str | bytes) -> Any:
    """What JSON `text` says; ValueError for anything that is wrong with it, also when it is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_json(folder: Path, path: Path) -> dict[str, Any] | None:
    """The JSON object in a file of `folder`; None when there is no file."""
    if file_inside(folder, path, most_bytes=MOST_BYTES) is None:
        return None
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(str(path), "its content", "a JSON object", f"remove the file ({error})") from None
    if not isinstance(value, dict):
        raise InputError(str(path), type(value).__name__, "a JSON object", "remove the file")
    return value


def read_toml(path: Path, *, what: str) -> dict[str, Any]:
    """The TOML table in a file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else error
        raise InputError(what, path, "a readable TOML file", f"check it ({why})") from None


def check_row(row: Any, kinds: Mapping[str, str], where: str) -> dict[str, Any]:
    """`row` if it is an object whose fields, those of them that are there, are of their `kinds`: "count", "number",
    "number or null", "numbers" or "switch". Raises InputError, naming the field."""
    if not isinstance(row, dict):
        raise InputError(where, type(row).__name__, "a JSON object", "remove the line")
    for name, kind in kinds.items():
        if name in row and not _KINDS[kind](row[name]):
            raise InputError(f"{where}: {name}", str(row[name])[:80], f"a {kind}", "remove the line")
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and (value != value or abs(value) < 1e300)


_KINDS = {
    "count": lambda v: isinstance(v, int) and not isinstance(v, bool) and 0 <= v < MOST,
    "number": lambda v: _is_number(v) or v in (math.inf, -math.inf),
    "number or null": lambda v: v is None or _KINDS["number"](v),  # none of a gradient that was not finite
    "numbers": lambda v: isinstance(v, list) and all(map(_KINDS["number"], v)),
    "switch": lambda v: isinstance(v, bool),
}
