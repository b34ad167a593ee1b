"""The agent of a run under torchrun: rank 0's process.

It does for the whole run what `agent` does for a local one, with the same code. Rank 0 itself and the evaluator are its
children; the other ranks are peers, which torchrun started beside it or on other hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

import torch.distributed as dist

from paci_lab.errors import InputError
from paci_lab.runtime import agent, freight, member, process
from paci_lab.runtime.child import may_fork
from paci_lab.runtime.place import SIGNALS, START_S, UNANSWERED_S, Place, Unanswered, abandoned, end_of
from paci_lab.runtime.resolve import resolve
from paci_lab.runtime.resume import record_restart, recover
from paci_lab.runtime.rundir import RunDir, write_json
from paci_lab.schedules import ScheduleError
from paci_lab.spec import TrainSpec

__all__ = ["lead"]

_SILENT_S = 10.0
"""A rank of another host that has not been heard of for so long is gone, with its host or without it."""

_LOST = -1
"""Exit code of a peer that has ended without a word."""


class Peer:
    """A rank that torchrun started, as the agent sees it: like a `Child`, but known by what it says."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid  # None on another host, where it cannot be looked for
        self.exit_code: int | None = None
        self.heard, self.beat = time.monotonic(), ""
        self.stopped = False  # by the torchrun of its host

    def poll(self) -> int | None:
        return self.exit_code

    def how_it_ended(self) -> str:
        if self.exit_code == _LOST:
            if self.pid is None:
                return "not heard of any more: killed, or its host has gone"
            return "ended without a word, as when killed (the system does that to a process when memory runs out)"
        return f"ended with exit code {self.exit_code}"

    def gone(self) -> bool:
        """Ended, as far as can be known without its word."""
        if self.pid is None:
            return time.monotonic() - self.heard > _SILENT_S
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False


class TorchrunAgent(agent.Agent):
    """Watches a run whose ranks above 0 are peers.

    Args:
        run: its directory, already created.
        fork: start children by forking.
        store: the agent's connection to it.
        members: what every rank said of itself, by rank.
        hosts: number of its host, by rank.
        sign: by which a rank knows the run directory.
        place: of this process.
        screen: where the user reads.
        options: of `Agent`.
    """

    own_sessions = True  # torchrun's signals go to the whole process group; the agent decides what ends when

    def __init__(
        self,
        run: RunDir,
        *,
        fork: bool,
        store: dist.Store,
        members: list[dict[str, Any]],
        hosts: list[int],
        sign: str,
        place: Place,
        screen: TextIO,
        **options: Any,
    ) -> None:
        self.store, self.members, self.hosts, self.sign = store, members, hosts, sign
        self.place, self.screen = place, screen
        self.said, self.asked_at, self.ending = b"", 0.0, False
        self.unanswered = Unanswered(self.give_up)
        super().__init__(run, fork=fork, **options)

    def start_ranks(self, fork: bool) -> list[Any]:
        begin = str(self.begin.path.absolute()) if self.begin else ""
        arguments = [str(self.run_dir.path), json.dumps(self.hosts), begin, str(self.place.start)]
        first = self.start(member, arguments, self.run_dir.log_file(0), fork)
        self.peers = [
            Peer(said["pid"] if host == 0 else None)
            for said, host in zip(self.members[1:], self.hosts[1:], strict=True)
        ]
        self.store.set("said", "")
        self.freight = freight.Freight(self.run_dir, self.store)
        answer = {"run_dir": str(self.run_dir.path), "sign": self.sign, "hosts": self.hosts, "begin": begin}
        self.store.set("run", json.dumps(answer | {"spec": self.spec.to_dict()}))
        return [first, *self.peers]

    def gather(self) -> None:
        self.hear()
        with contextlib.suppress(dist.DistError):  # the store went, and nothing comes any more
            self.freight.take()
        super().gather()

    def hear(self) -> None:
        """Take in what the peers say, ten times a second at most: the ranks have better uses for the core."""
        now = time.monotonic()
        if now - self.asked_at < 0.1 or not self.peers or self.ending:
            return
        self.asked_at = now
        try:
            if len(set(self.hosts)) > 1:
                self.store.set("beat/leader", str(now))
            self._listen(now)
        except dist.DistError:  # the store went with the torchrun that served it, and that one's ranks with it
            for peer in self.peers:
                if peer.exit_code is None and (peer.pid is None or peer.gone()):
                    peer.exit_code = _LOST
        self.unanswered.answered()

    def _listen(self, now: float) -> None:
        for rank, peer in enumerate(self.peers, 1):
            if peer.pid is None and peer.exit_code is None and self.store.check([f"beat/{rank}"]):
                beat = self.store.get(f"beat/{rank}").decode()
                if beat != peer.beat:
                    peer.beat, peer.heard = beat, now
        gone = [peer for peer in self.peers if peer.gone()]  # before reading: nobody speaks after that
        said = self.store.get("said")
        lines, self.said = said[len(self.said) :].splitlines(), said
        for row in map(json.loads, lines):
            peer = self.peers[row["rank"] - 1]
            if peer.exit_code is None:
                peer.exit_code = row["code"]
                if row["error"] is not None:
                    peer.stopped = row["error"].get("stopped", False)
                    write_json(self.run_dir.error_file(row["rank"]), row["error"])
        for peer in gone:
            if peer.exit_code is None:
                peer.exit_code = _LOST

    def give_up(self) -> None:
        """The host of the store does not answer: end what is left here. The other hosts do the same."""
        ranks = [rank for rank, host in enumerate(self.hosts) if host == self.hosts[self.place.store_rank]]
        for child in self.children:
            child.kill()
        message = f"nothing is heard of {_host_of(ranks)}: no answer from it for {UNANSWERED_S} s"
        write_json(self.run_dir.path / "failure.json", {"message": message, "ranks": ranks})
        print(f"paci_lab.train: {message}", file=self.screen, flush=True)
        os._exit(1)

    def caused(self) -> bool:
        """Whether a rank has ended badly by itself, not because another one did."""
        return any(rank.poll() not in (None, 0, process.PEER_LOST_EXIT) for rank in self.ranks)

    def diagnose(self) -> dict[str, Any]:
        self.wait_for_words(_SILENT_S + agent.GRACE_S if any(peer.pid is None for peer in self.peers) else 0.0)
        failure = super().diagnose()
        host = self.hosts[failure["rank"]] if "rank" in failure else 0
        ranks = [rank for rank, there in enumerate(self.hosts) if there == host]
        if host and all(self.ranks[rank].poll() == _LOST for rank in ranks):
            failure |= {"message": f"nothing is heard of {_host_of(ranks)}: {failure['message']}", "ranks": ranks}
        return failure

    def wait_for_words(self, seconds: float) -> None:
        """Until a cause is known or everybody has ended, for `seconds` at most."""
        deadline = time.monotonic() + max(seconds, agent.GRACE_S)
        while time.monotonic() < deadline and not self.caused() and any(rank.poll() is None for rank in self.ranks):
            self.hear()
            time.sleep(0.02)

    def stopped_by_signal(self) -> bool:
        """After a signal from torchrun: whether somebody wanted the run to end. torchrun sends the same signal when a
        rank has failed, but then that rank has said so, or has ended without a word."""
        if self.reached or all(rank.poll() == 0 for rank in self.ranks):
            return True
        if self.ranks[0].poll() is None:  # it does not get torchrun's signals, and would otherwise be waited for
            self.ranks[0].kill()
            self.ranks[0].exit_code = process.PEER_LOST_EXIT
        self.wait_for_words(0.0)
        return not self.caused()

    def stopped_elsewhere(self) -> bool:
        """After a rank was ended by the torchrun of its host: whether somebody wanted that. If not, a rank there has
        failed and has said so before, or it is gone without a word; so look for the life of all others."""
        since, self.asked_at = time.monotonic(), 0.0
        self.hear()
        while not self.caused() and any(p.exit_code is None and p.pid is None and p.heard < since for p in self.peers):
            time.sleep(0.02)
            self.hear()
        return not self.caused()

    def kill_ranks(self) -> None:
        self.store.set("end", "reached")
        self.ranks[0].kill()
        deadline = time.monotonic() + _SILENT_S
        while time.monotonic() < deadline and any(peer.poll() is None for peer in self.peers):
            self.hear()
            time.sleep(0.02)

    def kill_all(self) -> None:
        self.ending = True
        super().kill_all()
        if self.hangs.hung and (peer := self.peers[self.hangs.hung - 1]).exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.pid, signal.SIGKILL)  # it does not hear the word, and only one that is seen can hang
        with contextlib.suppress(RuntimeError):  # the store went with torchrun, and the peers with the store
            if end_of(self.store) is None:
                self.store.set("end", "failed")


def _host_of(ranks: list[int]) -> str:
    return f"the host of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def lead(place: Place, asked: dict[str, Any] | None) -> int:
    """Be the agent; returns its exit code. One message on standard error when the run cannot start, or fails."""
    told: list[int] = []
    parent = os.getppid()
    for number in SIGNALS:
        signal.signal(number, lambda number, _: told.append(number))
    store, job = place.store(), place.job_store()
    store.set("host/0", place.introduce(asked))
    if not _wait_for([f"host/{rank}" for rank in range(place.world_size)], store, told, parent):
        return 1
    members = [json.loads(store.get(f"host/{rank}")) for rank in range(place.world_size)]
    names = list(dict.fromkeys(said["host"] for said in members))
    hosts = [names.index(said["host"]) for said in members]
    try:
        wanted = next((said["asked"] for said in members if said["asked"]), None)
        if wanted is None:
            raise InputError("SPEC.toml", "none", "a spec on the command line of one host", "name a spec file")
        if place.start == 0:
            job.set("run_dir", wanted["run_dir"])  # it may be named by the time, which every start would do anew
        elif job.check(["run_dir"]):
            wanted["run_dir"] = job.get("run_dir").decode()
        run = RunDir(Path(wanted["run_dir"]).absolute())
        if place.start and (run.path / "spec.toml").exists():
            if (over := _over(run)) is not None:
                return _refuse(store, *over)
            cause = (run.failure() or {}).get("message", "rank 0's process ended without a word")
            begin, skipped = recover(run)
            record_restart(run, cause, begin, skipped)
            (run.path / "failure.json").unlink(missing_ok=True)
            spec = run.spec()
        else:
            spec, begin = agent.create(
                run,
                TrainSpec.from_dict(wanted["spec"]),
                wanted["resume"],
                lambda spec: _resolved(spec, place, members),
                hosts=len(names),
            )
    except (InputError, ScheduleError) as error:
        return _refuse(store, 2, str(error))
    screen = os.fdopen(os.dup(2), "w")
    sign = freight.sign(run)
    log = os.open(run.path / "log" / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The store serves from a thread when torchrun does not serve it.
    fork = may_fork(spec) and place.agent_store
    watching = TorchrunAgent(
        run,
        fork=fork,
        store=store,
        members=members,
        hosts=hosts,
        sign=sign,
        place=place,
        screen=screen,
        begin=begin,
        hang_timeout_s=wanted["hang_timeout_s"],
    )
    code = _watch(watching, told, parent)
    if code:
        print(f"paci_lab.train: {run.failure()['message']}", file=screen, flush=True)
    return code


def _over(run: RunDir) -> tuple[int, str] | None:
    """(exit code, message) when torchrun starts a run again that has nothing to go on with; None otherwise."""
    if run.result() is not None:
        return 0, f"{run.path} has ended well already"
    failure = run.failure() or {}
    return (1, failure["message"]) if failure.get("final") or failure.get("stopped") else None


def _refuse(store: dist.Store, code: int, message: str) -> int:
    """Say why there is no run, once, and end all ranks with `code`."""
    print(f"paci_lab.train: {message}", file=sys.stderr, flush=True)
    store.set("run", json.dumps({"refused": code}))
    return code


def _watch(watching: TorchrunAgent, told: list[int], parent: int) -> int:
    by_signal: list[bool] = []

    def stopped() -> str | None:
        if told and not by_signal:
            by_signal.append(watching.stopped_by_signal())
        if not by_signal and any(peer.stopped for peer in watching.peers):
            by_signal.append(watching.stopped_elsewhere())
        if by_signal and by_signal[0]:
            return "stopped by the user"
        return abandoned(parent)

    if len(set(watching.hosts)) > 1:
        watching.unanswered.start()
    try:
        return watching.watch(stopped)
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, dist.DistError) and (reason := abandoned(parent)):
            return watching.fail({"message": reason, "stopped": True})  # and the store went with it
        return watching.fail(
            {"message": f"the agent failed: {type(error).__name__}: {error}. See {watching.run_dir.path}/log/agent.log"}
        )


def _wait_for(keys: list[str], store: dist.Store, told: list[int], parent: int) -> bool:
    """Until all of them are set; False when the start is to be given up. Not `store.wait`: signals would wait too."""
    deadline = time.monotonic() + START_S
    while not store.check(keys):
        if told or abandoned(parent) or time.monotonic() > deadline:
            print("paci_lab.train: stopped before all ranks were there", file=sys.stderr, flush=True)
            return False
        time.sleep(0.05)
    return True


def _resolved(spec: TrainSpec, place: Place, members: list[dict[str, Any]]) -> TrainSpec:
    """`resolve`, for ranks on several hosts that each have their own GPUs."""
    if spec.engine != "paci-lab":
        raise InputError("engine", spec.engine, "paci-lab under torchrun", "start a peer with launcher local")
    ranks = spec.world_size
    if place.world_size != ranks:
        raise InputError(
            "torchrun's processes",
            place.world_size,
            f"{ranks}, one for every rank of {spec.replicas} x {spec.stages} stages, over all nodes"
            if spec.replicas > 1
            else f"{ranks}, one a stage, over all nodes",
            f"start torchrun with --nproc-per-node {ranks}, or on several nodes with as many in all",
        )
    backend, spec = spec.backend, resolve(spec.replace(backend="auto"))
    if spec.device == "cuda" and not all(said["gpus"] for said in members):
        raise InputError("device", "cuda", "cpu where a host has no GPU", "use device cpu, or leave that host out")
    # The same number of processes runs on every host, so each has its own GPU if there are that many.
    enough = spec.device == "cuda" and all(said["gpus"] >= place.local_world_size for said in members)
    if backend == "nccl" and not enough:
        raise InputError("backend", "nccl", "gloo where ranks share a GPU or use none", "use backend auto")
    return spec.replace(backend="nccl" if enough and backend != "gloo" else "gloo")
