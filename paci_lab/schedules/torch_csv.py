"""Schedules in the CSV form of `torch.distributed.pipelining`: a line per rank, a cell per operation, "0F0,1F0,…"."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import re
from collections.abc import Iterator
from pathlib import Path

from paci_lab.errors import InputError
from paci_lab.schedules.op import Op
from paci_lab.schedules.schedule import Schedule, most_held
from paci_lab.schedules.validate import dry_run, inputs_of

__all__ = ["TorchCsv", "from_csv", "to_csv"]

_COMPUTE = re.compile(r"(\d+)([FBIW])(\d+)")
_TOGETHER = re.compile(r"\((.*)\)OVERLAP_F_B")
# What torch adds for messages, sharded weights and data parallelism. Messages follow from the order of the operations,
# and the others have no place in a pipeline of single processes.
_LEFT_OUT = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchCsv(Schedule):
    """One window as a file says it, repeated; every stage makes its update after its last backward of the window.

    Args:
        file: where it comes from.
        lines: the operations of every rank in one window.
    """

    file: str
    lines: tuple[tuple[Op, ...], ...]

    name = "csv"
    summary = "read from a CSV file of torch.distributed.pipelining (flush)"
    flushes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        stages, window = _sizes(self.lines)
        if self.stages != stages:
            raise InputError("stages", self.stages, f"{stages}, as {self.file} has", f"use stages {stages}")
        if self.window != window:
            raise InputError("window", self.window, f"{window}, as {self.file} has", f"use window {window}")
        if self.microbatches % window:
            raise InputError(
                "microbatches", self.microbatches, f"a multiple of {window}, the window of {self.file}", "give updates"
            )

    @property
    def ranks(self) -> int:
        return len(self.lines)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted({op.stage for op in self.lines[rank]}))

    def rank_of(self, stage: int) -> int:
        return next((rank for rank, line in enumerate(self.lines) if any(op.stage == stage for op in line)), -1)

    def ops(self, rank: int) -> Iterator[Op]:
        line = self.lines[rank]
        last = {op.stage: number for number, op in enumerate(line) if op.kind in "BW"}
        for update in range(self.updates):
            for number, (stage, kind, microbatch) in enumerate(line):
                yield Op(stage, kind, microbatch + update * self.window)
                if last.get(stage) == number:
                    yield Op(stage, "U", update)

    def in_flight(self, stage: int) -> int:
        return _held(self.lines, self.stages, self.window, stage)

    def excerpt(self) -> Schedule:
        return self.shortened(3 * self.window)

    def ideal_bubble_fraction(self) -> float:
        """With a backward of two forwards and halves of one, as in every stream of whole windows."""
        return _idle_share(self.lines, self.stages, self.updates)


@functools.lru_cache
def _held(lines: tuple[tuple[Op, ...], ...], stages: int, window: int, stage: int) -> int:
    one = TorchCsv(stages=stages, window=window, microbatches=window, file="", lines=lines)
    return most_held(one, stage)


def _sizes(lines: tuple[tuple[Op, ...], ...]) -> tuple[int, int]:
    ops = [op for line in lines for op in line]
    return 1 + max(op.stage for op in ops), 1 + max(op.microbatch for op in ops)


def _idle_share(lines: tuple[tuple[Op, ...], ...], stages: int, updates: int) -> float:
    took = {"F": 1, "B": 2, "I": 1, "W": 1}
    clock, work = [0] * len(lines), 0
    for _ in range(updates):
        over: dict[tuple[int, str, int], int] = {}
        left = [list(reversed(line)) for line in lines]
        while any(left):
            before = sum(map(len, left))
            for rank, line in enumerate(left):
                while line and ((needed := inputs_of(line[-1], stages)[1]) is None or needed in over):
                    op = line.pop()
                    clock[rank] = max(clock[rank], over.get(needed, 0)) + took[op.kind]
                    work += took[op.kind]
                    over[op.stage, "I" if op.kind == "B" else op.kind, op.microbatch] = clock[rank]
            if sum(map(len, left)) == before:
                return 1.0  # a deadlock, which validate refuses with its grid
    return 1 - work / (max(clock) * len(lines))


def from_csv(path: str | Path, *, updates: int = 1) -> TorchCsv:
    """The schedule that a file describes, over `updates` windows.

    Raises InputError, naming line and column (both from 1, columns counted in cells), for a cell that is no operation.
    """
    lines = _read(str(path), Path(path).expanduser())
    stages, window = _sizes(lines)
    return TorchCsv(stages=stages, window=window, microbatches=updates * window, file=str(path), lines=lines)


def _read(name: str, path: Path) -> tuple[tuple[Op, ...], ...]:
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("schedule file", name, "a readable CSV file", f"check it ({error})") from None
    lines = tuple(
        tuple(op for column, cell in enumerate(row, 1) for op in _cell(name, number, column, cell.strip()))
        for number, row in enumerate(rows, 1)
        if row
    )
    if not any(lines):
        raise InputError("schedule file", name, "a line of operations per rank, as in 0F0,0F1,0B0,0B1", "fill the file")
    stages, _ = _sizes(lines)
    held = {op.stage for line in lines for op in line}
    if absent := [stage for stage in range(stages) if stage not in held]:
        raise InputError(
            "schedule file", name, f"operations of every stage up to {stages - 1}", f"add stage {absent[0]}"
        )
    return lines


def _cell(name: str, line: int, column: int, text: str) -> Iterator[Op]:
    if not text or _LEFT_OUT.fullmatch(text):
        return
    together = _TOGETHER.fullmatch(text)
    for part in together[1].split(";") if together else [text]:
        match = _COMPUTE.fullmatch(part.strip())
        if match is None:
            raise InputError(
                f"{name} line {line} column {column}",
                repr(text),
                "an operation of torch.distributed.pipelining: stage, F, B, I or W, micro-batch, as in 2F0",
                "correct the cell, or leave it empty for an idle slot",
            )
        yield Op(int(match[1]), match[2], int(match[3]))


def to_csv(schedule: Schedule) -> str:
    """One window of a flush schedule as torch reads it ("compute_only"), an empty cell where a rank idles.

    torch makes the update itself, between two calls of `step`. Raises InputError for what it cannot express: a schedule
    that does not drain before an update.
    """
    if not schedule.flushes:
        raise InputError(
            "schedule",
            schedule.name,
            "a flush schedule: torch makes its update outside of the schedule, when the pipeline is empty",
            "export 1f1b, gpipe, interleaved, zb-h1, zb-h2 or zb-v",
        )
    one = schedule.shortened(schedule.window)
    slots = [[op if op is not None and op.kind != "U" else None for op in slot] for slot in dry_run(one)]
    slots = [slot for slot in slots if any(slot)]
    rows = [[str(slot[rank] or "") for slot in slots] for rank in range(one.ranks)]
    return "".join(",".join(row).rstrip(",") + "\n" for row in rows)
