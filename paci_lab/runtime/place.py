"""Where a process that torchrun started stands, and how it speaks with the others of its run.

The ranks and the leader speak to each other through torchrun's store; everything else goes through the run directory,
which all hosts share. torchrun may start all of its processes again after a failure, with the same store, so every
start has a place of its own in it:

host/<r>   what the leader must know of rank r before the run: its host, its GPUs, the spec if it was given one
run        the leader's answer: run directory, checkpoint and the hosts of all ranks, or that there will be no run
said       a line of each rank that has ended, with its exit code and its error
beat/<r>   counts as long as rank r's process lives, for ranks whose process the leader cannot see
end        the leader's word to the ranks: "reached" (end well, nothing more is wanted) or "failed"
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import select
import signal
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paci_lab.errors import InputError
from paci_lab.runtime.torchrun import ENDS_WITH_STDIN

__all__ = ["SIGNALS", "START_S", "Place", "abandoned", "end_of"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What torchrun passes on to its processes."""

START_S = 600.0
"""How long the ranks of a run may take to meet."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of torchrun's processes this is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    agent_store: bool
    """torchrun serves the store; otherwise rank 0 has to."""

    @classmethod
    def from_environment(cls) -> Place:
        """Raises InputError when torchrun did not start this process."""
        try:
            numbers = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        except (KeyError, ValueError):
            raise InputError(
                "python -m paci_lab.train",
                "on its own",
                "a start by torchrun",
                "run torchrun --standalone --nproc-per-node STAGES -m paci_lab.train SPEC.toml, or paci-lab train",
            ) from None
        return cls(*numbers, os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")

    def job_store(self, *, serve: bool = False) -> dist.Store:
        """A connection to what all starts of this job share. A blocking call keeps others on it waiting: one each."""
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=serve and not self.agent_store,
            wait_for_workers=False,
            timeout=timedelta(seconds=START_S),
        )
        return dist.PrefixStore(f"paci_lab/{os.environ.get('TORCHELASTIC_RUN_ID', '')}", store)

    def store(self, start: int, *, serve: bool = False) -> dist.Store:
        """A connection to what the ranks of one start share."""
        return dist.PrefixStore(f"start-{start}", self.job_store(serve=serve))

    def start(self, job: dist.Store) -> int:
        """Which start this is, from 0; called once by every process. On one node torchrun says so. Several count apart:
        one that only sees the others start again does not count that, but every rank is started once a time."""
        if self.local_world_size == self.world_size:
            return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return job.add(f"started/{self.rank}", 1) - 1

    def introduce(self, asked: dict[str, Any] | None) -> str:
        """What the leader has to know of this process."""
        gpus = torch.cuda.device_count()
        return json.dumps({"host": _host(), "pid": os.getpid(), "gpus": gpus, "asked": asked})


def _host() -> str:
    """The same for processes that share clock, loopback interface and process ids; tells nobody the host's name."""
    parts = [socket.gethostname()]
    for read in (
        Path("/proc/sys/kernel/random/boot_id").read_text,
        *(lambda n=n: os.readlink(f"/proc/self/ns/{n}") for n in ("net", "pid", "time")),
    ):
        try:
            parts.append(read())
        except OSError:  # not Linux, or a kernel without this kind of namespace
            parts.append("")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def abandoned(parent: int) -> str | None:
    """Why nobody waits for this process any more, or None."""
    if os.getppid() != parent:
        return "torchrun went away"
    if ENDS_WITH_STDIN in os.environ and select.select([0], [], [], 0)[0] and os.read(0, 4096) == b"":
        return "the process that started the run went away"
    return None


def end_of(store: dist.Store) -> str | None:
    """The agent's last word, or None."""
    return store.get("end").decode() if store.check(["end"]) else None
