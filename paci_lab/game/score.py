"""The score: four measures against par, in numbers and words."""

from __future__ import annotations

import dataclasses

from paci_lab.game.board import Board
from paci_lab.game.levels import Measures
from paci_lab.language import _, ngettext

__all__ = ["Score", "score"]


@dataclasses.dataclass(frozen=True)
class Score:
    """What a board reaches.

    Args:
        yours, par: the measures of the board as far as it goes, and those of the level's solution.
        left: operations still to be placed. complete: `validate` accepts the board as it is.
    """

    yours: Measures
    par: Measures
    left: int
    complete: bool

    @property
    def over(self) -> list[str]:
        """Names of the measures that are over par."""
        return [name for name in _names() if getattr(self.yours, name) > getattr(self.par, name)]

    @property
    def won(self) -> bool:
        """Complete, and no measure over par."""
        return self.complete and not self.over

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(measure, yours, par, in words) for every measure."""
        found = []
        for name, words in _names().items():
            yours, par = getattr(self.yours, name), getattr(self.par, name)
            found.append((words, f"{yours:g}", f"{par:g}", self._against(yours - par)))
        return found

    def words(self) -> str:
        """One sentence: what is missing, or how it went."""
        if self.left:
            missing = ngettext(
                "{count} operation is still to be placed.", "{count} operations are still to be placed.", self.left
            )
            return missing.format(count=self.left)
        if self.won and self.yours != self.par:
            return _("Solved, and better than par.")
        if self.won:
            return _("Solved: par in every measure.")
        names = _names()
        return _("Complete, but over par in: {measures}.").format(measures=", ".join(names[name] for name in self.over))

    def __str__(self) -> str:
        width = max(len(row[0]) for row in self.rows())
        table = (f"{name:{width}}  {yours:>4}  par {par:>4}  {words}" for name, yours, par, words in self.rows())
        return "\n".join([self.words(), *table])

    def _against(self, difference: float) -> str:
        if difference > 0:
            return _("{count:g} over par").format(count=difference)
        if not self.complete:
            return _("so far")
        return _("{count:g} under par").format(count=-difference) if difference else _("par")


def score(board: Board) -> Score:
    """Judge a board, complete or not."""
    left = sum(len(board.left(rank)) for rank in range(board.level.stages))
    return Score(board.measures, board.level.par, left, not left and board.complete)


def _names() -> dict[str, str]:
    return {
        "makespan": _("makespan"),
        "activations": _("activations held"),
        "copies": _("copies of the weights"),
        "gap": _("version gap"),
    }
