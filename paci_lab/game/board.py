"""The board of the game, without any user interface: moves, what the rules say to them, and the times that follow."""

from __future__ import annotations

import functools
from typing import NamedTuple

from paci_lab.errors import InputError
from paci_lab.game.levels import Level, Measures, level_named
from paci_lab.game.placed import Lines, Placed, placed
from paci_lab.language import _
from paci_lab.schedules import Op, Reason, ScheduleError, inputs_of, validate, weight_copies
from paci_lab.schedules.validate import dry_run
from paci_lab.simulate import simulate
from paci_lab.trace import Trace

__all__ = ["Board", "Refusal"]

_MOST_MOVES = 1000  # that can be taken back


class Refusal(NamedTuple):
    """Why a move was not made; the board is as it was.

    Args:
        code, op, reason: as of the `ScheduleError` with which `validate` refuses what would lie there: the rule, the
            operation at which it breaks, and the rule's words.
        asked: the operation that was to be moved. out: it was to be taken off the board.
    """

    code: str
    op: Op
    reason: Reason
    asked: Op
    out: bool = False

    def __str__(self) -> str:
        if self.out:
            sentence = _("{asked} has to stay: {op} could not run without it ({code}: {reason}).")
        elif self.op == self.asked:
            sentence = _("{op} cannot stand there ({code}: {reason}).")
        else:
            sentence = _("{asked} cannot stand there: {op} could not run then ({code}: {reason}).")
        return sentence.format(asked=self.asked, op=self.op, code=self.code, reason=self.reason.said(_))


class Board:
    """The operations placed so far on every rank of a level, each starting as early as its inputs and its rank allow.

    Attributes:
        level: what is played. lines: the operations of every rank, in order.
    """

    def __init__(self, level: Level | str, lines: Lines | None = None) -> None:
        """An empty board, or one with `lines` on it, which raise `ScheduleError` when they break a rule."""
        self.level = level_named(level) if isinstance(level, str) else level
        self.lines: Lines = ((),) * self.level.stages
        self._before: list[Lines] = []
        self._after: list[Lines] = []
        if lines is not None:
            dry_run(placed(self.level, lines), unfinished=True)
            self.lines = lines

    # -- moves ----------------------------------------------------------------------------------------------------
    def place(self, op: Op | str, at: int | None = None) -> Refusal | None:
        """Put `op` on its rank, before the operation number `at` there, or after the last one.

        Returns the refusal when that breaks a rule. Raises InputError for what is no operation of this level.
        """
        op = self._op(op)
        line = list(self.lines[op.stage])
        line.insert(len(line) if at is None else at, op)
        return self._try(op, line)

    def remove(self, op: Op | str) -> Refusal | None:
        """Take `op` off the board. Returns the refusal when others need it; raises InputError when it is not there."""
        op = self._there(op)
        return self._try(op, [other for other in self.lines[op.stage] if other != op], out=True)

    def move(self, op: Op | str, at: int) -> Refusal | None:
        """Take `op` from where it is to before the operation number `at` of its rank, counted as they lie now."""
        op = self._there(op)
        line = list(self.lines[op.stage])
        was = line.index(op)
        line.insert(at, op)
        del line[was + (at <= was)]
        return self._try(op, line)

    def put(self, lines: Lines) -> None:
        """Lay out a whole board as one move; raises `ScheduleError` when it breaks a rule."""
        dry_run(placed(self.level, lines), unfinished=True)
        self._set(lines)

    def undo(self) -> bool:
        """Take the last move back; False when there is none."""
        return self._step(self._before, self._after)

    def redo(self) -> bool:
        """Make the move again that was taken back last; False when there is none."""
        return self._step(self._after, self._before)

    @property
    def can_undo(self) -> bool:
        return bool(self._before)

    @property
    def can_redo(self) -> bool:
        return bool(self._after)

    def _try(self, op: Op, line: list[Op], *, out: bool = False) -> Refusal | None:
        lines = (*self.lines[: op.stage], tuple(line), *self.lines[op.stage + 1 :])
        if refusal := self._refusal(op, lines, out=out):
            return refusal
        self._set(lines)
        return None

    def _refusal(self, op: Op, lines: Lines, *, out: bool = False) -> Refusal | None:
        try:
            dry_run(placed(self.level, lines), unfinished=True)
        except ScheduleError as error:
            return Refusal(error.code, error.op, error.reason, op, out)
        return None

    def _set(self, lines: Lines) -> None:
        if lines != self.lines:
            self._before = [*self._before[1 - _MOST_MOVES :], self.lines]
            self._after.clear()
            self.lines = lines

    def _step(self, taken: list[Lines], given: list[Lines]) -> bool:
        if not taken:
            return False
        given.append(self.lines)
        self.lines = taken.pop()
        return True

    def _op(self, op: Op | str) -> Op:
        try:
            found = Op.parse(op) if isinstance(op, str) else op
        except ValueError:
            found = None
        if found is None or not (0 <= found.stage < self.level.stages and found in self.level.ops(found.stage)):
            example = ", ".join(str(self.level.ops(0)[i]) for i in (0, -1))
            raise InputError("operation", op, f"one of this level, such as {example}", "look at the level's operations")
        return found

    def _there(self, op: Op | str) -> Op:
        op = self._op(op)
        if op not in self.lines[op.stage]:
            raise InputError("operation", op, "one that is on the board", "place it first")
        return op

    # -- what follows ---------------------------------------------------------------------------------------------
    @property
    def schedule(self) -> Placed:
        """What lies on the board, for everything that takes a schedule."""
        return placed(self.level, self.lines)

    @property
    def trace(self) -> Trace:
        """What the simulator makes of it; a time unit of the level is a millisecond."""
        return _trace(self.level, self.lines)

    def left(self, rank: int) -> list[Op]:
        """Operations of `rank` that are not on the board yet."""
        return [op for op in self.level.ops(rank) if op not in self.lines[rank]]

    def legal(self) -> list[Op]:
        """Operations that can be placed now, each after the last one of its rank."""
        made = {(op.stage, "I" if op.kind == "B" else op.kind, op.microbatch) for line in self.lines for op in line}
        found = []
        for rank in range(self.level.stages):
            for op in self.left(rank):
                # Most lack an input, which need not be found out by walking through the whole board.
                if made >= {needed for needed in inputs_of(op, self.level.stages) if needed is not None}:
                    found += [op] if self._refusal(op, self._with(op)) is None else []
        return found

    def _with(self, op: Op) -> Lines:
        return (*self.lines[: op.stage], (*self.lines[op.stage], op), *self.lines[op.stage + 1 :])

    @property
    def complete(self) -> bool:
        """True when `validate` accepts the board as a whole schedule."""
        try:
            validate(self.schedule)
        except ScheduleError:
            return False
        return True

    @property
    def measures(self) -> Measures:
        """What the board is judged by, as far as it goes."""
        schedule, trace, stages = self.schedule, self.trace, range(self.level.stages)
        return Measures(
            makespan=trace.makespan_ns / 1e6,
            activations=max(trace.in_flight_peak()),
            copies=max(weight_copies(schedule, stage) for stage in stages),
            gap=max(trace.version_gap_max()),
        )


@functools.lru_cache(maxsize=8)
def _trace(level: Level, lines: Lines) -> Trace:
    return simulate(placed(level, lines), level.costs)
