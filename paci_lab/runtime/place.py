"""Where a process that torchrun started stands, and how it speaks with the others of its run.

The ranks and the leader speak to each other through torchrun's store; everything else goes through the run directory,
or, from hosts that do not share it, through the store as well (`freight`). torchrun may start all of its processes
again after a failure, with the same store, so every start has a place of its own in it:

asked/<n>  of node n, the number of its first rank there and whether it was given a spec
host/<r>   what the leader must know of rank r before the run: its host, its GPUs, the spec if it was given one
run        the leader's answer: the run directory, its sign and spec, the checkpoint to go on from, the hosts of all
           ranks; or that there is no run
said       a line of each rank that has ended, with its exit code and its error
beat/<r>   counts as long as rank r's process lives, for ranks whose process the leader cannot see
beat/leader  changes as long as the leader lives, where there are several hosts
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
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paci_lab.errors import InputError
from paci_lab.runtime.torchrun import ENDS_WITH_STDIN

__all__ = ["SIGNALS", "START_S", "UNANSWERED_S", "Place", "Unanswered", "abandoned", "end_of"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What torchrun passes on to its processes."""

START_S = 600.0
"""How long the ranks of a run may take to meet."""

UNANSWERED_S = 20
"""A store that has not answered for so long is on a host that has gone, or behind a link that has. Longer than a leader
waits for a silent rank: each side has given the other up."""


class Unanswered(threading.Thread):
    """Acts when the store does not answer any more. A call to a host that has gone does not return for minutes, so
    another thread counts: its own seconds, for one that holds Python's lock stops both.

    Args:
        act: is called once; ends the process.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(daemon=True, name="end-without-an-answer")
        self.act, self.answers = act, 0

    def answered(self) -> None:
        """To be called after every answer."""
        self.answers += 1

    def run(self) -> None:
        seen, silent = -1, 0
        while silent < UNANSWERED_S:
            seen, silent = self.answers, silent + 1 if self.answers == seen else 0
            time.sleep(1.0)
        self.act()


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of torchrun's processes this is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    store_rank: int
    """A rank of the host that the store is on."""
    agent_store: bool
    """torchrun serves the store; otherwise its rank 0 has to."""
    start: int = 0
    """Which of torchrun's starts of this job it is."""

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
        return cls(*numbers, 0, os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")

    def serve(self) -> dist.Store | None:
        """The store itself, for as long as it is held, in the process that has to serve it; None elsewhere.

        Raises InputError when its port is taken.
        """
        if self.agent_store or os.environ["RANK"] != "0":
            return None
        try:
            return _connect(is_master=True)
        except dist.DistNetworkError as error:
            port = os.environ["MASTER_PORT"]
            why = str(error).splitlines()[0]
            raise InputError("--master-port", port, "a free port of this host", f"choose another one ({why})") from None

    def job_store(self) -> dist.Store:
        """A connection to what all starts of this job share. A blocking call keeps others waiting: one a thread."""
        return dist.PrefixStore(f"paci_lab/{os.environ.get('TORCHELASTIC_RUN_ID', '')}", _connect(is_master=False))

    def store(self) -> dist.Store:
        """A connection to what the ranks of this start share."""
        return dist.PrefixStore(f"start-{self.start}", self.job_store())

    def counted(self) -> Place:
        """This place, knowing which start it is, from 0; called once by every process. On one node torchrun says so.
        Several count apart: one that only sees the others start again does not count that, but every rank is started
        once a time."""
        if self.local_world_size == self.world_size:
            start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        else:
            start = self.job_store().add(f"started/{self.rank}", 1) - 1
        return dataclasses.replace(self, start=start)

    def led_by_the_asked(self, asked: dict[str, Any] | None) -> Place:
        """This place, with ranks counted from the first node that was given a spec: there the run directory is made.

        torchrun numbers its nodes as it likes, and without a shared disk the user looks where the command was given.
        """
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        if nodes == 1:
            return self
        store, parent = self.store(), os.getppid()
        if self.local_rank == 0:
            store.set(f"asked/{os.environ['GROUP_RANK']}", json.dumps([self.rank, asked is not None]))
        keys, deadline = [f"asked/{node}" for node in range(nodes)], time.monotonic() + START_S
        while not store.check(keys):
            if abandoned(parent) or time.monotonic() > deadline:
                sys.exit(1)
            time.sleep(0.05)
        said = [json.loads(store.get(key)) for key in keys]
        first = next((rank for rank, has_spec in said if has_spec), 0)
        moved = {"rank": (self.rank - first) % self.world_size, "store_rank": -first % self.world_size}
        return dataclasses.replace(self, **moved)

    def introduce(self, asked: dict[str, Any] | None) -> str:
        """What the leader has to know of this process."""
        gpus = torch.cuda.device_count()
        return json.dumps({"host": _host(), "pid": os.getpid(), "gpus": gpus, "asked": asked})


def _connect(*, is_master: bool) -> dist.Store:
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=is_master,
        wait_for_workers=False,
        timeout=timedelta(seconds=START_S),
    )


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
