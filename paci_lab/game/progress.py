"""What a player has reached, in one small file of their own folder, so that a reload or a new kernel loses nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError
from paci_lab.game.assist import Help
from paci_lab.game.board import Board
from paci_lab.game.levels import Level
from paci_lab.game.share import board_of, text_of
from paci_lab.language import _
from paci_lab.reading import read_json
from paci_lab.runtime.rundir import write_json

__all__ = ["FILE", "Progress"]

FILE = "paci-game.json"

_SCHEMA = 1


class Progress:
    """Boards, help and solved levels of one player.

    A file that cannot be read is put aside, never overwritten; one that cannot be written costs the memory, not the
    game.

    Attributes:
        path: the file. last: id of the level that was open last, "" for none. note: what is wrong with it, or "".
    """

    def __init__(self, folder: str | Path = ".") -> None:
        self.path = Path(folder) / FILE
        self.note = ""
        self._levels: dict[str, dict[str, Any]] = {}
        self.last = ""
        try:
            self._read()
        except ValueError:
            self._put_aside()

    def _read(self) -> None:
        """Take over what the file says; ValueError when it is none of ours."""
        try:
            values = read_json(self.path.parent, self.path) or {"schema": _SCHEMA}
            read = {id: _checked(row) for id, row in values.get("levels", {}).items()}
            if values["schema"] != _SCHEMA:
                raise ValueError(f"schema {values['schema']}")
            self._levels, self.last = read, str(values.get("last", ""))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a file of the game: {error}") from None

    def _put_aside(self) -> None:
        aside = self.path.with_suffix(".broken.json")
        try:
            os.replace(self.path, aside)
            sentence = _("{file} could not be read. It is kept as {aside}, and the game begins anew.")
        except OSError:
            sentence = _("{file} can be neither read nor put aside: what you do will not be remembered.")
        self.note = sentence.format(file=self.path, aside=aside.name)

    def board(self, level: Level) -> Board:
        """The board as it was left; an empty one where there is none, or where its rules have changed since."""
        text = self._levels.get(level.id, {}).get("board", "")
        try:
            return board_of(text, level) if text else Board(level)
        except InputError as error:
            self.note = str(error)
            return Board(level)

    def help(self, level: Level) -> Help:
        """What help was taken."""
        return Help(**self._levels.get(level.id, {}).get("help", {}))

    def solved(self, level: Level) -> bool:
        return self._levels.get(level.id, {}).get("solved", False)

    def keep(self, board: Board, help: Help, *, solved: bool) -> None:
        """Write down how a level stands; once solved, it stays so."""
        id = board.level.id
        with contextlib.suppress(ValueError):  # the same player may have other levels open in another window
            self._read()
        solved = solved or self.solved(board.level)
        self._levels[id] = {"board": text_of(board), "help": dataclasses.asdict(help), "solved": solved}
        self.last = id
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"schema": _SCHEMA, "last": self.last, "levels": self._levels})
            self.note = ""
        except OSError as error:
            sentence = _("{file} cannot be written ({error}): what you do will not be remembered.")
            self.note = sentence.format(file=self.path, error=error.strerror)


def _checked(row: Any) -> dict[str, Any]:
    """A level's row of the file, which anything may have written; ValueError or TypeError when it is none."""
    help = Help(**row["help"])
    kinds = {field.name: type(field.default) for field in dataclasses.fields(Help)}
    right = all(type(getattr(help, name)) is kind for name, kind in kinds.items())
    if not (right and isinstance(row["board"], str) and isinstance(row["solved"], bool)):
        raise ValueError("a row of a level has a value that it cannot have")
    return {"board": row["board"], "help": dataclasses.asdict(help), "solved": row["solved"]}
