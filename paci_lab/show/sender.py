"""Pictures go to a browser no faster than it draws them: pictures sent faster would queue up and lag behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from paci_lab.show.front import Front

__all__ = ["PERIOD_S", "Sender", "rest_s"]

PERIOD_S = 0.15  # between two drawings: five a second with room for a page that is late
_REST = 1.0  # at least as long a rest as the drawing took, so that a busy machine is not slowed by being watched
_SHARE = 0.02  # of the cores' time, at most, where the ranks compute on the same cores
_PATIENCE_S = 1.0  # how long to wait for the browser to have drawn the last picture before another is sent


class Sender:
    """Sends pictures to one `Front`, each once the browser has drawn the one before.

    Args:
        drawn: called when it has drawn the last one.

    Attributes:
        frames: pictures sent so far.
    """

    def __init__(self, front: Front, drawn: Callable[[], None]) -> None:
        self._front, self._drawn = front, drawn
        self.frames = 0
        self._in_browser, self._sent_at = threading.Event(), 0.0
        self._in_browser.set()
        # The browser's word that it has drawn. The figure's own answers cannot be relied on in plotly 7.1.
        front.observe(lambda change: self._answered(change["new"]), "seen")

    @property
    def ready(self) -> bool:
        """False while the browser still draws.

        Its word may not come at all (no browser, an older kernel that is busy), so it is not waited for without end.
        """
        return self._in_browser.is_set() or time.monotonic() - self._sent_at > _PATIENCE_S

    def send(self, bars: dict[str, Any]) -> None:
        """Show `bars`, as `moving_picture` makes them; none for a picture that plotly draws."""
        self._in_browser.clear()
        self._sent_at = time.monotonic()
        self.frames += 1
        self._front.picture = {**bars, "number": self.frames}

    def _answered(self, number: int) -> None:
        if number >= self.frames:
            self._in_browser.set()
            self._drawn()


def rest_s(spent_s: float, worked_s: float) -> float:
    """How long a thread that draws is to rest after a drawing.

    Args:
        spent_s: what the drawing took. worked_s: of that the processor's time, where ranks compute on the same cores.
    """
    return max(PERIOD_S - spent_s, _REST * spent_s, worked_s / (_SHARE * (os.cpu_count() or 1)))
