"""When an operation began and ended: on the host's clock, or on the GPU's without making the host wait for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import torch

__all__ = ["GpuTimer", "HostTimer", "make_timer"]

Done = Callable[[int, int], None]
"""Called with start and end in nanoseconds since training began."""

_WAKE_NS = 50_000


class HostTimer:
    """For operations that are over when their call returns (CPU); a paced one sleeps to its stated duration."""

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.overruns = 0

    def start(self) -> int:
        return time.monotonic_ns()

    def stop(self, started: int, pace_ns: int) -> tuple[int, int]:
        """End an operation that began at `started`, after `pace_ns` at the earliest (0: at once)."""
        if pace_ns:
            left = started + pace_ns - time.monotonic_ns()
            if left <= 0:
                self.overruns += 1
            elif left > _WAKE_NS:
                time.sleep((left - _WAKE_NS) / 1e9)
            while time.monotonic_ns() < started + pace_ns:
                pass  # waking up takes about as long as this; longer, and waking ranks would wait for spinning ones
        return started, time.monotonic_ns()

    def report(self, operation: tuple[int, int], done: Done) -> None:
        """Call `done` with the times of an operation that was stopped."""
        start, end = operation
        done(start - self.begin_ns, end - self.begin_ns)

    def settle(self, *, wait: bool = False) -> None:
        """Nothing is outstanding on a host clock."""


class GpuTimer:
    """For operations that run on a stream after their call has returned.

    Events are read when they have passed, never waited for, until the end. Each time is the one before plus the
    distance to it, for distances are short and keep their precision.
    """

    overruns = 0  # a GPU is not paced

    def __init__(self, begin_ns: int) -> None:
        torch.cuda.synchronize()
        self._last = torch.cuda.Event(enable_timing=True)
        self._last.record()
        self._last.synchronize()
        self._last_ns = float(time.monotonic_ns() - begin_ns)
        self._open: deque[tuple[torch.cuda.Event, torch.cuda.Event, Done]] = deque()

    def start(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def stop(self, started: torch.cuda.Event, pace_ns: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        return started, self.start()

    def report(self, operation: tuple[torch.cuda.Event, torch.cuda.Event], done: Done) -> None:
        """Call `done` with the times of an operation that was stopped, once they are known."""
        self._open.append((*operation, done))
        self.settle()

    def settle(self, *, wait: bool = False) -> None:
        """Report the operations that are over; with `wait`, all of them."""
        while self._open:
            started, ended, done = self._open[0]
            if wait:
                ended.synchronize()
            elif not ended.query():
                return
            self._open.popleft()
            start = self._advance(started)
            done(start, self._advance(ended))

    def _advance(self, event: torch.cuda.Event) -> int:
        self._last_ns += self._last.elapsed_time(event) * 1e6
        self._last = event
        return round(self._last_ns)


def make_timer(device: torch.device, begin_ns: int) -> HostTimer | GpuTimer:
    """The timer for operations on `device`."""
    return GpuTimer(begin_ns) if device.type == "cuda" else HostTimer(begin_ns)
