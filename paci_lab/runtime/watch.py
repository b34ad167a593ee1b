"""Ranks that are alive and do not go on: stopped, or hanging in an operation.

Every rank says in its `.now` file which operation it is at, and whether it waits there for a message or is saving. A
rank that waits is not to blame, however long it takes: the one that stands still in its own work is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paci_lab.runtime.failure import failure_of
from paci_lab.runtime.recorder import read_now, read_said
from paci_lab.runtime.rundir import RunDir
from paci_lab.schedules import Schedule

__all__ = ["HANG_TIMEOUT_S", "Watch"]

HANG_TIMEOUT_S = 60.0
"""Shortest time in one operation after which a rank counts as hanging: one may have to fetch more data now and then."""

_FIRST_S = 600.0
"""The same while a rank starts, makes its first updates (compilers, downloads) or saves: that may take longer."""

_FACTOR = 50.0  # on the longest operation so far
_LOOK_S = 0.25
_MOST_S = 1.0  # between two looks; where more has passed the machine slept, or had no time for anybody


class Watch:
    """Looks at the ranks of a run now and then.

    Args:
        run, schedule: what they run.
        ranks: how many there are, of all replicas.
        timeout_s: `HANG_TIMEOUT_S` or another one; 0 never ends anything.

    Attributes:
        hung: the rank that was found to hang, or None.
    """

    def __init__(self, run: RunDir, schedule: Schedule, ranks: int, *, timeout_s: float = HANG_TIMEOUT_S) -> None:
        self.run_dir, self.schedule, self.timeout_s = run, schedule, timeout_s
        self.said = [""] * ranks
        self.still = [0.0] * ranks  # seconds since it last said something new
        self.settled = [False] * ranks  # it has made its first update
        self.longest = 0.0
        self.looked = time.monotonic()
        self.hung: int | None = None

    def look(self, ranks: Sequence[Any]) -> dict[str, Any] | None:
        """What `failure.json` should say when a rank hangs; None as long as none does.

        Args:
            ranks: they have a `pid` (None on another host, where nothing can be seen) and can be polled.
        """
        now = time.monotonic()
        if not self.timeout_s or now - self.looked < _LOOK_S:
            return None
        passed, self.looked = min(now - self.looked, _MOST_S), now
        seen = [r for r, rank in enumerate(ranks) if rank.pid is not None and rank.poll() is None]
        for rank in seen:
            self._read(rank, passed)
        working = [r for r in seen if self._doing(r) != "waiting" and self.still[r] > self._limit(r)]
        stopped = [r for r in seen if self.still[r] > self.timeout_s and _is_stopped(ranks[r].pid)]
        waiting = len(seen) == len(ranks) and all(
            self._doing(r) == "waiting" and self.still[r] > self._limit(r) for r in seen
        )
        if not (suspects := stopped or working or (seen if waiting else [])):
            return None
        self.hung = max(suspects, key=lambda r: self.still[r])
        why = "it is stopped" if stopped else "it hangs or is stopped" if working else "its message never came"
        return self._failure(self.hung, why)

    def _read(self, rank: int, passed: float) -> None:
        said = read_said(self.run_dir.now_file(rank))
        if said == self.said[rank]:
            self.still[rank] += passed
            return
        if self._doing(rank) == "" and self.said[rank]:
            self.longest = max(self.longest, self.still[rank])
        self.said[rank], self.still[rank] = said, 0.0
        op = read_now(self.run_dir.now_file(rank))
        if op is not None and op.kind != "F":
            update = op.microbatch if op.kind == "U" else self.schedule.window_of(op.microbatch)
            self.settled[rank] = self.settled[rank] or update > self.schedule.first_update

    def _doing(self, rank: int) -> str:
        return self.said[rank].partition(" ")[2]

    def _limit(self, rank: int) -> float:
        if self._doing(rank) == "saving" or not self.settled[rank]:
            return max(_FIRST_S, self.timeout_s)
        return max(self.timeout_s, _FACTOR * self.longest)

    def _failure(self, rank: int, why: str) -> dict[str, Any]:
        heartbeat = [
            f"rank {r} {said or 'starts'}, unchanged for {still:.1f} s"
            for r, (said, still) in enumerate(zip(self.said, self.still, strict=True))
        ]
        print("heartbeat:", "; ".join(heartbeat), flush=True)
        op, still = read_now(self.run_dir.now_file(rank)), self.still[rank]
        failure = failure_of(
            self.run_dir,
            self.schedule,
            len(self.said),
            rank,
            op,
            lambda what: f"has not gone on for {still:.0f} s in {what}: {why}",
        )
        return failure | {"heartbeat": heartbeat}


def _is_stopped(pid: int) -> bool:
    """Whether the system says that a process was stopped by a signal; False where it does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
