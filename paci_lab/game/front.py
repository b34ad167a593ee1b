"""The board in the page: it shows what this widget holds, and says what the player does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets
import traitlets

from paci_lab.game.board import Board
from paci_lab.language import _, direction, language
from paci_lab.schedules import Op
from paci_lab.show.bars import CYCLE
from paci_lab.show.chart import InPage
from paci_lab.show.notebook import listen_while_busy
from paci_lab.show.palette import BACKWARD, FORWARD, ink_on

__all__ = ["BoardFront"]


class _BoardInPage(InPage):
    _esm = Path(__file__).with_name("board.js")
    _css = Path(__file__).with_name("board.css")


class BoardFront(ipywidgets.Widget):
    """Attributes:
    in_page: what draws the board.
    board: what is drawn, as `drawn` makes it. words: the sentences that do not change.
    """

    board = traitlets.Dict().tag(sync=True)
    words = traitlets.Dict().tag(sync=True)

    def __init__(self, heard: Callable[[Mapping[str, Any]], None]) -> None:
        """`heard` is called with what the player does: a table with "do", and what that is done to."""
        super().__init__(words=_words())
        self.in_page = _BoardInPage(of=self.model_id)
        self._lock = threading.Lock()

        def on_message(_widget: object, content: Any, _buffers: object) -> None:
            with self._lock:  # a running cell and the page may both want something
                if isinstance(content, dict):
                    heard(content)
            listen_while_busy(self)

        self.on_msg(on_message)

    def show(
        self, board: Board, said: str, *, refused: str = "", hinted: str = "", legal: list[Op] | None, won: bool
    ) -> None:
        """Draw `board` and say a sentence.

        `refused` and `hinted` name operations to be marked; `legal` is what can be placed now, None to not show that.
        """
        number = self.board.get("number", 0) + 1
        marks = {"number": number, "said": said, "refused": refused, "hinted": hinted, "won": won}
        self.board = drawn(board, legal) | marks
        listen_while_busy(self)


def drawn(board: Board, legal: list[Op] | None) -> dict[str, Any]:
    """A board as plain values: for every rank what lies there with its times, and what can still be placed."""
    level, times = board.level, {}
    for event in board.trace.of_kind(*board.level.kinds):
        times[Op(event.stage, event.op, event.microbatch)] = (event.start_ns / 1e6, event.end_ns / 1e6)
    ranks = []
    for rank, line in enumerate(board.lines):
        free = times[line[-1]][1] if line else 0
        end = _("End of rank {rank}, free from {time:g}. {count} operations placed.")
        ranks.append(
            {
                "name": _("rank {rank}").format(rank=rank),
                "free": free,
                "end": end.format(rank=rank, time=free, count=len(line)),
                "ops": [_look(op) | _times(op, *times[op]) for op in line],
                "chips_label": _("To place on rank {rank}:").format(rank=rank),
                "chips": [
                    _look(op) | {"label": _named(op, legal), "legal": None if legal is None else op in legal}
                    for op in board.left(rank)
                ],
            }
        )
    par, now = level.par.makespan, board.measures.makespan
    return {
        "ranks": ranks,
        "span": max(par + 3, now + 2),
        "par": par,
        "par_text": _("par {makespan:g}").format(makespan=par),
        "undo": board.can_undo,
        "redo": board.can_redo,
    }


def _look(op: Op) -> dict[str, Any]:
    fill = (FORWARD if op.kind == "F" else BACKWARD)[op.microbatch % CYCLE]
    return {"op": str(op), "kind": op.kind, "text": f"{op.kind}{op.microbatch}", "fill": fill, "ink": ink_on(fill)}


def _times(op: Op, start: float, end: float) -> dict[str, Any]:
    if op.kind == "U":
        said = _("{name}, at {time:g}").format(name=_named(op), time=start)
    else:
        said = _("{name}, from {start:g} to {end:g}").format(name=_named(op), start=start, end=end)
    return {"from": start, "to": end, "label": said}


def _named(op: Op, legal: list[Op] | None = None) -> str:
    names = {
        "F": _("{op}: forward of micro-batch {number}"),
        "B": _("{op}: backward of micro-batch {number}"),
        "I": _("{op}: input gradient of micro-batch {number}"),
        "W": _("{op}: weight gradient of micro-batch {number}"),
        "U": _("{op}: update {number}"),
    }
    said = names[op.kind].format(op=op, number=op.microbatch)
    if legal is None:
        return said
    return (_("{name}, legal now") if op in legal else _("{name}, not legal now")).format(name=said)


def _words() -> dict[str, str]:
    return {
        "direction": direction(),
        "lang": language().replace("_", "-"),
        "tools": _("Moves and help"),
        "grid": _("The board: a row for every rank, time to the right"),
        "undo": _("Undo"),
        "redo": _("Redo"),
        "remove": _("Take off"),
        "clear": _("Clear"),
        "help": _("Help:"),
        "idea": _("Idea"),
        "legal": _("What is legal?"),
        "hint": _("Hint"),
        "step": _("One step"),
        "solution": _("Solution"),
        "keys": _("In what is said here, 1B0 is the B0 of rank 1: stage 1's backward of micro-batch 0.")
        + " "
        + _(
            "Mouse: click or drag an operation onto the board; drag it off to take it back. Keyboard: arrows move the "
            "cursor, F B I W U place the next of their kind, a number before the letter chooses the micro-batch "
            "(2 F is F2), Backspace takes off, Ctrl+Z undoes."
        ),
    }
