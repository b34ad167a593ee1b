"""What a rank writes while it runs: its trace, its updates, and the operation it is at."""

from __future__ import annotations

import json
import mmap
import time
from pathlib import Path
from typing import Any

from paci_lab.runtime.rundir import RunDir
from paci_lab.schedules import Op

__all__ = ["Recorder", "read_now", "read_said"]

_FLUSH_NS = 100_000_000
_NOW_BYTES = 32


class Recorder:
    """Appends lines to the files of one rank and writes them out ten times a second, so that others see them live.

    Args:
        run: the run directory.
        rank: whose files.
        trace: write trace events at all.
    """

    def __init__(self, run: RunDir, rank: int, *, trace: bool) -> None:
        self.rank, self.tracing = rank, trace
        self._trace = open(run.trace_file(rank), "ab", buffering=0)
        self._updates = open(run.updates_file(rank), "ab", buffering=0)
        path = run.now_file(rank)
        path.write_bytes(b" " * _NOW_BYTES)
        with open(path, "r+b") as file:
            # A memory map outlives a killed process: whoever looks afterwards reads the operation it died in.
            self._now = mmap.mmap(file.fileno(), _NOW_BYTES)
        self._op = ""
        self._lines: list[str] = []
        self._flushed = time.monotonic_ns()

    def now(self, op: Op) -> None:
        """Say which operation begins."""
        self._op = str(op)
        self.doing("")

    def doing(self, what: str) -> None:
        """Say what this rank does in its operation: "waiting" for a message, "saving", or "" for the work itself."""
        self._now[:] = f"{self._op} {what}".encode().ljust(_NOW_BYTES)

    def event(
        self, stage: int, op: str, microbatch: int, start_ns: int, end_ns: int, version: int, update: int
    ) -> None:
        """Record one trace event; times in nanoseconds since training began."""
        if not self.tracing:
            return
        self._lines.append(
            f'{{"stage":{stage},"rank":{self.rank},"op":"{op}","microbatch":{microbatch},"start_ns":{start_ns},'
            f'"end_ns":{end_ns},"version":{version},"update":{update}}}\n'
        )
        now = time.monotonic_ns()
        if now - self._flushed > _FLUSH_NS:
            self._flushed = now
            self.flush()

    def update(self, row: dict[str, Any]) -> None:
        """Record one update of a stage."""
        self._updates.write((json.dumps(row) + "\n").encode())

    def flush(self) -> None:
        """Write what has gathered."""
        if self._lines:
            self._trace.write("".join(self._lines).encode())
            self._lines.clear()

    def close(self) -> None:
        """Write what has gathered and close the files: only then does another host see all of them."""
        self.flush()
        self._trace.close()
        self._updates.close()


def read_now(path: Path) -> Op | None:
    """The operation a rank is at, or was at when it ended; None before its first."""
    try:
        return Op.parse(read_said(path).partition(" ")[0])
    except ValueError:
        return None


def read_said(path: Path) -> str:
    """The operation and what the rank does in it, as "2F17 waiting"; empty before the first."""
    try:
        return path.read_bytes().decode(errors="replace").rstrip()
    except OSError:
        return ""
