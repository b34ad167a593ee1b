"""Help, in steps: the idea, what is legal, the next operation, having it placed, the whole solution."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

from paci_lab.game.board import Board
from paci_lab.game.levels import Level
from paci_lab.game.placed import placed
from paci_lab.language import _, ngettext
from paci_lab.schedules import Op
from paci_lab.simulate import simulate

__all__ = ["Help", "Step", "next_step", "show_solution", "take_step"]


@dataclasses.dataclass
class Help:
    """What help was taken on a level: it is said beside the score, and not forgotten when the board is cleared."""

    idea: bool = False
    legal: bool = False
    hints: int = 0
    steps: int = 0
    solution: bool = False

    def words(self) -> str:
        """One sentence."""
        used = []
        if self.idea:
            used.append(_("the idea"))
        if self.legal:
            used.append(_("what is legal"))
        if self.hints:
            used.append(ngettext("{count} hint", "{count} hints", self.hints).format(count=self.hints))
        if self.steps:
            steps = ngettext("{count} step made for you", "{count} steps made for you", self.steps)
            used.append(steps.format(count=self.steps))
        if self.solution:
            used.append(_("the solution"))
        return _("Help used: {list}.").format(list=", ".join(used)) if used else _("Without help.")


class Step(NamedTuple):
    """The next step towards the solution: to place `op`, or first to take it back.

    Args:
        instead: what the solution has where the board leaves it, when `op` is to be taken back.
        rank: where that is.
    """

    op: Op
    back: bool = False
    instead: Op | None = None
    rank: int = 0

    def __str__(self) -> str:
        if not self.back:
            return _("Next in the solution: {op}.").format(op=self.op)
        if self.instead is None:
            there = _("Rank {rank} has more than the solution has.").format(rank=self.rank)
        else:
            there = _("The solution goes on with {op} on rank {rank}, where you have another operation.").format(
                op=self.instead, rank=self.rank
            )
        return there + " " + _("To follow it, first take back {op}.").format(op=self.op)


def next_step(board: Board) -> Step | None:
    """What leads on to the solution; None when that lies there.

    Where the board is not the beginning of the solution, the operation that starts last goes first: nothing needs it.
    """
    solution = board.level.solution()
    for rank, (line, wanted) in enumerate(zip(board.lines, solution, strict=True)):
        for number, op in enumerate(line):
            if number == len(wanted) or op != wanted[number]:
                instead = wanted[number] if number < len(wanted) else None
                return Step(_last(board), back=True, instead=instead, rank=rank)
    starts = _starts(board.level, solution)
    left = [wanted[len(line)] for line, wanted in zip(board.lines, solution, strict=True) if len(line) < len(wanted)]
    return Step(min(left, key=lambda op: (starts[op], op.stage))) if left else None


def take_step(board: Board) -> Step | None:
    """Make the next step towards the solution and return it; None when the solution lies there."""
    step = next_step(board)
    if step is not None:
        refusal = board.remove(step.op) if step.back else board.place(step.op)
        assert refusal is None, f"a step of the solution was refused: {refusal}"
    return step


def show_solution(board: Board) -> None:
    """Lay the solution out, as one move."""
    board.put(board.level.solution())


def _last(board: Board) -> Op:
    starts = _starts(board.level, board.lines)
    return max((line[-1] for line in board.lines if line), key=lambda op: (starts[op], op.kind == "U"))


@functools.lru_cache(maxsize=8)
def _starts(level: Level, lines: tuple[tuple[Op, ...], ...]) -> dict[Op, int]:
    trace = simulate(placed(level, lines), level.costs).of_kind(*level.kinds)
    return {Op(event.stage, event.op, event.microbatch): event.start_ns for event in trace}
