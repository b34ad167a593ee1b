"""The clocks of several hosts: how far each is from rank 0's, and how sure that is.

Ranks of one host read one monotonic clock. Those of another host count from another moment, and slightly faster or
slower. A message there and back bounds the distance: the answer was written between the two moments at which rank 0
asked and heard, so the middle of the two is right to half the round trip, whatever the two ways took.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
import torch.distributed as dist

from paci_lab.runtime.rundir import RunDir, write_json

__all__ = ["HostClocks"]

_ASKED = 64
"""Round trips per measurement; the shortest is the surest."""


class HostClocks:
    """Measures the offsets at the start and the end of a run and writes them to `clock.json`.

    `clock.json` holds one entry a rank: the number of its host, `clock_offset_ns` (its clock minus rank 0's) and
    `uncertainty_ns`, both at the start, where they were applied to the times of the run; the same of the end, null
    when the run ended early; and `drifted`, true when the two differ by more than both uncertainties together.

    Args:
        run: the run directory.
        rank: of this process.
        hosts: number of its host for every rank, 0 for that of rank 0.
    """

    def __init__(self, run: RunDir, rank: int, hosts: list[int]) -> None:
        self.run_dir, self.rank, self.hosts = run, rank, hosts
        self.leaders = [hosts.index(host) for host in sorted(set(hosts))]  # the first rank of every host
        self.first: list[tuple[int, int]] = []

    def begin(self, store: dist.Store) -> int:
        """Measure, and return what this rank's clock is ahead of rank 0's, in nanoseconds. All ranks call it."""
        # A group of its own, of gloo: a GPU's stream would be between the message and the clock.
        self.group = dist.new_group(self.leaders, backend="gloo") if len(self.leaders) > 1 else None
        measured = self._measure()
        if self.rank == 0:
            self.first = measured
            self._write(None)
            store.set("clock_offsets_ns", json.dumps([offset for offset, _ in measured]))
        return json.loads(store.get("clock_offsets_ns"))[self.hosts[self.rank]]

    def end(self) -> None:
        """Measure again. All ranks call it."""
        measured = self._measure()
        if self.rank == 0:
            self._write(measured)

    def _measure(self) -> list[tuple[int, int]]:
        """(offset, uncertainty) of every host on rank 0, nothing elsewhere."""
        measured = [(0, 0)]
        for leader in self.leaders[1:]:
            if self.rank == 0:
                measured.append(self._ask(leader))
            elif self.rank == leader:
                self._answer()
        return measured

    def _ask(self, leader: int) -> tuple[int, int]:
        theirs, best = torch.zeros(1, dtype=torch.int64), None
        for _ in range(_ASKED):
            asked = time.monotonic_ns()
            dist.send(theirs, leader, group=self.group)
            dist.recv(theirs, leader, group=self.group)
            heard = time.monotonic_ns()
            sample = (heard - asked, int(theirs) - (asked + heard) // 2)
            best = min(best, sample) if best else sample
        round_trip, offset = best
        return offset, round_trip // 2 + 1

    def _answer(self) -> None:
        message = torch.zeros(1, dtype=torch.int64)
        for _ in range(_ASKED):
            dist.recv(message, 0, group=self.group)
            message.fill_(time.monotonic_ns())
            dist.send(message, 0, group=self.group)

    def _write(self, last: list[tuple[int, int]] | None) -> None:
        ranks: list[dict[str, Any]] = []
        for rank, host in enumerate(self.hosts):
            (offset, uncertainty), end = self.first[host], last[host] if last else (None, None)
            ranks.append(
                {
                    "rank": rank,
                    "host": host,
                    "clock_offset_ns": offset,
                    "uncertainty_ns": uncertainty,
                    "clock_offset_end_ns": end[0],
                    "uncertainty_end_ns": end[1],
                    "drifted": abs(end[0] - offset) > uncertainty + end[1] if last else None,
                }
            )
        write_json(self.run_dir.path / "clock.json", {"hosts": len(self.leaders), "ranks": ranks})
