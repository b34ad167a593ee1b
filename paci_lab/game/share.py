"""A board as a short text, which is also the name of its schedule.

`game1_pair_FFBBU_FFBBU_44e0b54b` is the version, the level, the operations of every rank, and a checksum. A kind
without a number is the next of its kind: "FFB" is F0, F1, B0, and "F1FB" is F1, F0, B0.

Every command and spec that takes a schedule's name takes `paci_lab.game.share:` and the text, so the spec of a run
holds the whole board. `paci-lab export` writes a board without asynchronous updates as torch's CSV.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import zlib
from collections import Counter

from paci_lab.errors import InputError
from paci_lab.game.board import Board
from paci_lab.game.levels import Level, level_named, levels
from paci_lab.game.placed import Lines, Placed
from paci_lab.language import _
from paci_lab.schedules import Op, ScheduleError

__all__ = ["board_of", "schedule_name", "text_of"]

_VERSION = "game1"
_LONGEST = 4000
_STEP = re.compile(r"([FBIWU])(\d{0,6})")


def text_of(board: Board) -> str:
    """The board as a text; the same board gives the same text."""
    body = "_".join([_VERSION, board.level.id, *map(_line_text, board.lines)])
    return f"{body}_{_checksum(body)}"


def board_of(text: str, level: Level | None = None) -> Board:
    """The board that a text describes; of `level`, where one is given.

    Raises InputError with a sentence for a text that is none, is damaged, is of another level or breaks a rule.
    """
    text = text.strip()
    if len(text) > _LONGEST or not text.startswith(_VERSION + "_"):
        raise _wrong(text, _("It does not begin with {version}.").format(version=_VERSION + "_"))
    body, _underscore, checksum = text.rpartition("_")
    if checksum != _checksum(body):
        raise _wrong(text, _("It was cut short or changed on its way: its checksum does not fit."))
    _version, name, *lines = body.split("_")
    if name not in {known.id for known in levels()}:
        raise _wrong(text, _("It is of a level that this version does not have: {level}.").format(level=name))
    found = level_named(name)
    if level is not None and found != level:
        sentence = _("It is of the level “{its}”, and “{open}” is open: choose that level first.")
        raise _wrong(text, sentence.format(its=found.title, open=level.title))
    if len(lines) != found.stages:
        raise _wrong(
            text, _("It has {count} ranks, and its level {stages}.").format(count=len(lines), stages=found.stages)
        )
    try:
        return Board(found, tuple(_line(text, found, rank, line) for rank, line in enumerate(lines)))
    except ScheduleError as error:
        sentence = _("It breaks a rule at {op} ({code}: {reason}).")
        raise _wrong(text, sentence.format(op=error.op, code=error.code, reason=error.reason.said(_))) from None


def schedule_name(board: Board) -> str:
    """The name by which commands and specs know the schedule on a board."""
    return f"{__name__}:{text_of(board)}"


@functools.cache
def __getattr__(name: str) -> type[Placed]:
    """The schedule that a shared text describes, as a class like those of a user's own file."""
    if not name.startswith(_VERSION + "_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    board = board_of(name)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Shared(Placed):
        level: Level = board.level
        lines: Lines = board.lines

        name = f"game-{board.level.id}"

        def __post_init__(self) -> None:
            super().__post_init__()
            for field in ("stages", "window"):
                asked, its = getattr(self, field), getattr(self.level, field)
                if asked != its:
                    allowed = f"{its}, as the board of level {self.level.id!r} has"
                    raise InputError(field, asked, allowed, f"use {field} {its}")

    return Shared


def _line_text(line: tuple[Op, ...]) -> str:
    text, done = "", set()
    for op in line:
        text += op.kind if op.microbatch == _next(done, op.kind) else f"{op.kind}{op.microbatch}"
        done.add((op.kind, op.microbatch))
    return text


def _line(text: str, level: Level, rank: int, line: str) -> tuple[Op, ...]:
    if _STEP.sub("", line):
        raise _wrong(text, _("Rank {rank} has something that is no operation.").format(rank=rank))
    ops, done, known = [], set(), set(level.ops(rank))
    for kind, number in _STEP.findall(line):
        op = Op(rank, kind, int(number) if number else _next(done, kind))
        if op not in known:
            raise _wrong(text, _("Its level has no operation {op}.").format(op=op))
        done.add((kind, op.microbatch))
        ops.append(op)
    return tuple(ops)


def _next(done: set[tuple[str, int]], kind: str) -> int:
    count = Counter(kind for kind, _number in done)[kind]
    return next(number for number in range(count + 1) if (kind, number) not in done)


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _wrong(text: str, sentence: str) -> InputError:
    shown = text if len(text) <= 60 else text[:57] + "…"
    return InputError(_("shared text"), shown, _("a text that the game has given"), sentence)
