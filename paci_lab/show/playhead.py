"""Where a reader of a run stands in it: at its growing end, playing from somewhere at some speed, or still."""

from __future__ import annotations

import threading

__all__ = ["Playhead"]


class Playhead:
    """A position in a run that grows, moved by wall-clock time. Safe to use from any thread; times in nanoseconds.

    Attributes:
        mode: "live" (at the end), "play" (moving at `speed`) or "pause".
        speed: nanoseconds of the run per nanosecond of the wall clock while playing.
    """

    def __init__(self, *, mode: str = "live", speed: float = 1.0, position_ns: int = 0) -> None:
        self.mode, self.speed = mode, speed
        self._position, self._since = float(position_ns), 0
        self._started = False
        self._lock = threading.Lock()

    def position(self, now_ns: int, end_ns: int) -> int:
        """The position at the wall-clock time `now_ns`, in a run that has come as far as `end_ns`."""
        with self._lock:
            if self.mode == "live":
                self._position = end_ns
            elif self.mode == "play" and self._started:
                self._position = min(self._position + (now_ns - self._since) * self.speed, end_ns)
            self._since, self._started = now_ns, True
            return round(min(self._position, end_ns))

    def seek(self, position_ns: int) -> None:
        """Go to a moment of the run and stand still there."""
        with self._lock:
            self.mode, self._position = "pause", float(position_ns)

    def pause(self) -> None:
        """Stand still where the reader is."""
        with self._lock:
            self.mode = "pause"

    def play(self, speed: float | None = None) -> None:
        """Go on from here, at another speed when one is given."""
        with self._lock:
            self.mode, self._started = "play", False
            self.speed = speed if speed is not None else self.speed

    def go_live(self) -> None:
        """Jump to the end and stay with it."""
        with self._lock:
            self.mode = "live"
