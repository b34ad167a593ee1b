"""One rank of a run under torchrun, tied to the end of the run; `place` says how it speaks with the others."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paci_lab.errors import InputError
from paci_lab.runtime import freight, process, worker
from paci_lab.runtime.checkpoint import Checkpoint
from paci_lab.runtime.clock import HostClocks
from paci_lab.runtime.interface import choose_interface
from paci_lab.runtime.place import SIGNALS, Place, Unanswered, abandoned, end_of
from paci_lab.runtime.rundir import RunDir, write_json

__all__ = ["run_as_child", "take_part"]

_BEAT_S = 0.25
"""How often the leader is asked whether the run is over, and told that this rank lives."""


class Tie(threading.Thread):
    """Ends this rank with its run: when the agent says so, when torchrun sends a signal, when either goes away.

    A thread, because the rank itself may be waiting for a message then, where no signal handler of Python's runs.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True, name="end-with-the-run")
        self.place, self.parent = place, os.getppid()
        self.shipper: freight.Shipper | None = None
        self.unanswered = Unanswered(self.give_up)
        self.reads, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)

    def run(self) -> None:
        self.unanswered.start()
        try:
            store, beat, heard = self.place.store(), 0, None
            while True:
                # The store may be on this host, and the leader on one that has gone.
                leader = store.get("beat/leader") if store.check(["beat/leader"]) else None
                if leader is None or leader != heard:
                    heard = leader
                    self.unanswered.answered()
                if select.select([self.reads], [], [], _BEAT_S)[0] or abandoned(self.parent):
                    cause = "ended by torchrun, or torchrun went away"
                    self.ship_the_rest()
                    error = {"rank": self.place.rank, "op": None, "cause": cause, "stopped": True}
                    say(store, self.place.rank, process.PEER_LOST_EXIT, error)
                    break
                if (word := end_of(store)) is not None:
                    code = 0 if word == "reached" else process.PEER_LOST_EXIT
                    self.ship_the_rest()
                    say(store, self.place.rank, code)
                    os._exit(code)
                beat += 1
                store.set(f"beat/{self.place.rank}", str(beat))
        finally:  # the store is gone, and with it the agent
            os._exit(process.PEER_LOST_EXIT)

    def give_up(self) -> None:
        kept = f"; what it wrote is in {self.shipper.folder}" if self.shipper else ""
        print(f"paci_lab.train: rank {self.place.rank} ends: no answer from the other host{kept}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(process.PEER_LOST_EXIT)

    def ship_the_rest(self) -> None:
        """Before the last word: the leader takes nothing more after it."""
        if self.shipper is not None:
            self.shipper.finish()


def say(store: dist.Store, rank: int, code: int, error: dict[str, Any] | None = None) -> None:
    """Tell the agent how this rank ended."""
    store.append("said", json.dumps({"rank": rank, "code": code, "error": error}) + "\n")


def take_part(place: Place, asked: dict[str, Any] | None) -> int:
    """Be one of the ranks above 0; returns its exit code."""
    tie = Tie(place)
    tie.start()
    store = place.store()
    store.set(f"host/{place.rank}", place.introduce(asked))
    answer = json.loads(store.get("run"))
    if "refused" in answer:
        return answer["refused"]
    run, begin = RunDir(answer["run_dir"]), answer["begin"]
    shared = freight.sees(run, answer["sign"])
    if not shared:
        run = freight.own_folder(answer["spec"])
        tie.shipper = freight.Shipper(place.store(), place.rank, run)
        tie.shipper.start()
    hosts = answer["hosts"]
    code, error = process.perform(
        run, place.rank, lambda: _begin(place, run, hosts, store, begin, own_log=True, shared=shared)
    )
    tie.ship_the_rest()
    if code == process.PEER_LOST_EXIT and end_of(store) == "reached":
        code, error = 0, None  # the peer was lost because nothing more is wanted
    say(store, place.rank, code, error)
    return code


def _begin(
    place: Place, run: RunDir, hosts: list[int], store: dist.Store, begin: str, *, own_log: bool, shared: bool
) -> worker.Worker:
    if own_log:
        log = os.open(run.log_file(place.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    if len(set(hosts)) == 1:
        process.stay_on_this_host()
    else:
        choose_interface(os.environ["MASTER_ADDR"])
    if not shared and (run.spec().checkpoint_every or begin):
        raise InputError("checkpoints", "no shared disk", "a run directory that all hosts see", "leave checkpoints out")
    clocks = HostClocks(run, place.rank, hosts)
    checkpoint = Checkpoint.read(Path(begin)) if begin else None
    return worker.Worker(run, place.rank, store, local_rank=place.local_rank, clocks=clocks, begin=checkpoint)


def run_as_child(arguments: list[str]) -> int:
    """Entry point of rank 0, a child of the agent."""
    path, hosts, begin, start = arguments
    run, hosts = RunDir(path), json.loads(hosts)
    process.end_with_parent()
    # torchrun may have given this process another number.
    place = dataclasses.replace(Place.from_environment(), rank=0, start=int(start))
    code, error = process.perform(
        run, 0, lambda: _begin(place, run, hosts, place.store(), begin, own_log=False, shared=True)
    )
    if error is not None:
        write_json(run.error_file(0), error)
    return code


if __name__ == "__main__":
    code = run_as_child(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as in `worker`
