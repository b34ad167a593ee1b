"""What the lessons need of memory: `python -m benchmarks.lesson_memory [00 04 …] [--json FILE]`.

Every lesson is run from top to bottom, trainings included, one after the other. Counted is the proportional set size of
its kernel and of all processes that it starts, together: memory that they share counts once. It is read twice a second,
so a peak that is shorter may be missed. JupyterLab itself and the browser are not in it. Linux only.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_line
from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.lab import execute, lesson_sources

_MARK = "PACI_LAB_MEASURED"  # inherited by whatever a lesson starts, however it is started
_EVERY_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the lessons and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lesson_memory", description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", metavar="NUMBER", help="such as 04 (default: all)")
    add_json_argument(parser)
    chosen = parser.parse_args(arguments)
    figures = []
    for source in lesson_sources():
        if not chosen.lessons or source.stem[:2] in chosen.lessons:
            figures.append(measure(source))
            console().print(f"{source.stem}: {figures[-1]['peak_bytes'] / 2**20:.0f} MiB", style="dim")
    rows = [
        [row["lesson"], f"{row['peak_bytes'] / 2**20:,.0f} MiB", str(row["processes"]), f"{row['seconds']:.0f} s"]
        for row in figures
    ]
    machine = machine_line()
    print_table(f"Memory of the lessons on {machine}", ["lesson", "peak", "processes then", "took"], rows)
    write_figures(chosen.json, {"machine": machine, "figures": figures})
    return 0


def measure(source: Path) -> dict[str, Any]:
    """One lesson: its peak in bytes, how many processes there were then, and how long it took in seconds."""
    mark, failed = uuid.uuid4().hex, []

    def run() -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                environment = {_MARK: mark, "PACI_LAB_TRAIN": "1"}
                execute(source, Path(folder), environment=environment, cell_timeout_s=1200)
        except Exception as error:  # it belongs to the thread that waits
            failed.append(error)

    began = time.monotonic()
    lesson = threading.Thread(target=run)
    lesson.start()
    peak, processes = 0, 0
    while lesson.is_alive():
        sizes = [_proportional_bytes(process) for process in _marked(mark)]
        if sum(sizes) > peak:
            peak, processes = sum(sizes), len(sizes)
        lesson.join(_EVERY_S)
    if failed:
        raise failed[0]
    seconds = time.monotonic() - began
    return {"lesson": source.stem, "peak_bytes": peak, "processes": processes, "seconds": seconds}


def _marked(mark: str) -> list[Path]:
    """The /proc folders of the processes that have `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append(process)
        except OSError:  # it ended while we looked, or is somebody else's
            continue
    return found


def _proportional_bytes(process: Path) -> int:
    try:
        kib = re.search(r"^Pss:\s+(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(kib[1]) * 1024 if kib else 0


if __name__ == "__main__":
    raise SystemExit(main())
