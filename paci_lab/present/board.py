"""Beside the charts of a race: the losses of both sides, the countdown of each, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from paci_lab.present.charts import LossChart
from paci_lab.present.race import Racer
from paci_lab.present.words import card_html, text_html, verdict

__all__ = ["Board"]

_LOSS_S = 1.0  # between two changes of the losses while a race goes on
_NO_LOSSES: dict[str, tuple[list, list]] = {"train_loss": ([], []), "val_loss": ([], [])}


class Board:
    """What is known of the sides of a race.

    Attributes:
        beside, below: its widgets. said: the verdict so far.
    """

    def __init__(self, theme: str) -> None:
        self.losses = LossChart(theme)
        self.cards = [widgets.HTML(), widgets.HTML()]
        self.beside = widgets.VBox([self.losses.figure.in_page, *self.cards])
        self.below = widgets.HTML()
        self.beside.add_class("paci-lab-side")
        self.below.add_class("paci-lab-verdict")
        self.clear(shown=False)

    def clear(self, *, shown: bool) -> None:
        """Forget the last race; take no room in a scene that is none."""
        self.said, self._drawn, self._drawn_at = "", None, 0.0
        self.below.value = text_html("")
        self.beside.layout.display = "" if shown else "none"

    def tell(
        self,
        racers: Sequence[Racer],
        at_ns: Sequence[int],
        until_s: Sequence[float],
        gaps: Sequence[Sequence[int]],
        *,
        begun: bool,
        theme: str,
        room: tuple[float, float],
    ) -> None:
        """Bring everything up to date.

        Args:
            at_ns: training time of each side. until_s: losses up to here count. gaps: version gap by stage of each.
            begun: whether there can be a verdict. room: width and height of the page's body, in pixels.
        """
        seconds = [ns / 1e9 for ns in at_ns]
        for side, (racer, card) in enumerate(zip(racers, self.cards, strict=True)):
            card.value = card_html(racer, side, seconds[side], until_s[side], gaps[side])
        said = verdict(racers, seconds, until_s) if begun else ""
        if said != self.said:
            self.said, self.below.value = said, text_html(said)
        found = [
            racer.feed.losses(until) if racer.feed else _NO_LOSSES for racer, until in zip(racers, until_s, strict=True)
        ]
        drawn: tuple[Any, ...] = (theme, room, [len(losses["val_loss"][0]) for losses in found])
        training = [len(losses["train_loss"][0]) for losses in found]
        now = time.monotonic()
        if drawn != self._drawn or (training != self._training and now - self._drawn_at > _LOSS_S):
            self.losses.fit(room[1] - 2 * _card_px(room[0]))
            self.losses.retheme(theme)
            self.losses.draw(found, racers[0].target)
            self._drawn, self._training, self._drawn_at = drawn, training, now


def _card_px(width_px: float) -> float:
    """Height of a card with no line broken, as present.css sizes its type from the width of the window."""
    return 1.3 * (3 * max(16.0, 0.0113 * width_px) + max(24.0, 0.0205 * width_px)) + 32
