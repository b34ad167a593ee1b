"""The schedule-design game: place operations on a board, have them judged, and run them on real ranks."""

from __future__ import annotations

from paci_lab.game.assist import show_solution, take_step
from paci_lab.game.board import Board, Refusal
from paci_lab.game.levels import Level, Measures, level_named, levels
from paci_lab.game.run import board_spec, compared, predicted
from paci_lab.game.score import Score, score
from paci_lab.game.share import board_of, schedule_name, text_of

__all__ = [
    "Board",
    "Level",
    "Measures",
    "Refusal",
    "Score",
    "board_of",
    "board_spec",
    "compared",
    "level_named",
    "levels",
    "play",
    "predicted",
    "schedule_name",
    "score",
    "show_solution",
    "take_step",
    "text_of",
]


def play(level: str | None = None, *, folder: str = "."):
    """Open the game in a notebook; see `paci_lab.game.view.play`."""
    from paci_lab.game import view  # widgets, which a rank that imports a schedule from here need not have

    return view.play(level, folder=folder)
