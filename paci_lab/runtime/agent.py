"""The agent: the one process of a run that starts the ranks, watches them and writes what they say together.

`launch` starts it with the spec on standard input. It answers with one line on standard output ("ready", or what is
wrong with the spec), and from then on speaks through the run directory. It ends its ranks when one of them fails, when
the target is reached, on SIGTERM, and when its own parent goes away: standard input closes then.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paci_lab.errors import InputError
from paci_lab.measure import summarize
from paci_lab.runtime import evaluate, process, worker
from paci_lab.runtime.checkpoint import Checkpoint, open_checkpoint, remove_unfinished, seal
from paci_lab.runtime.child import Child, may_fork
from paci_lab.runtime.environment import describe_machine
from paci_lab.runtime.failure import failure_of
from paci_lab.runtime.recorder import read_now
from paci_lab.runtime.resolve import resolve
from paci_lab.runtime.resume import adopt, check_corpus, note_origin, record_restart, recover
from paci_lab.runtime.rundir import LineTail, RunDir, write_json
from paci_lab.runtime.stage import NonFiniteLoss
from paci_lab.runtime.watch import HANG_TIMEOUT_S, Watch
from paci_lab.schedules import Op, ScheduleError
from paci_lab.spec import TrainSpec

__all__ = ["GRACE_S", "RESTART", "Agent", "create", "main"]

_TICK_S = 0.05
RESTART = -1
"""What `Agent.watch` returns when the run failed and may go on from a checkpoint."""
GRACE_S = 2.0
"""How long after a rank fails the others may take to say what they saw: the first to notice need not be the cause."""


class Agent:
    """Starts and watches one run.

    Args:
        run: its directory, already created.
        fork: start children by forking.
        begin: the checkpoint that its ranks go on from; None to begin at the beginning.
        restartable: it may fail and be started again, so that a failure is not the run's last word.
        hang_timeout_s: see `Watch`.
    """

    own_sessions = False  # the ranks' process group is the agent's

    def __init__(
        self,
        run: RunDir,
        *,
        fork: bool,
        begin: Checkpoint | None = None,
        restartable: bool = False,
        hang_timeout_s: float = HANG_TIMEOUT_S,
    ) -> None:
        self.run_dir, self.spec, self.begin, self.restartable = run, run.spec(), begin, restartable
        self.schedule = begin.schedule(self.spec) if begin else self.spec.build_schedule()
        self.children: list[Child] = []
        self.evaluator = self.start(evaluate, [str(run.path)], run.path / "log" / "evaluator.log", fork)
        self.ranks = self.start_ranks(fork)
        self.tails = [LineTail(run.updates_file(rank)) for rank in range(self.spec.world_size)]
        self.hangs = Watch(run, self.schedule, self.spec.world_size, timeout_s=hang_timeout_s)
        self.gathered: dict[int, list[dict[str, Any]]] = {}  # update -> rows of the stages that have made it
        # After a restart the ranks' files are read again, and what was said about them is not said twice.
        self.told, self.judged = ({row["update"] for row in rows} for rows in (run.metrics(), run.validation()))
        self.origin = run.resumed() or {"time_s": 0.0}
        self.requests: list[dict[str, Any]] = []  # snapshots to evaluate, oldest first
        self.asked: dict[int, dict[str, Any]] = {}
        self.answers = b""
        self.reached = any(self.hits_target(row["val_loss"]) for row in run.validation())
        self.not_finite: dict[str, Any] | None = None  # the answer that ends the run
        self.metrics = open(run.metrics_file, "a", buffering=1, encoding="utf-8")

    def start(self, module: Any, arguments: list[str], log: Path, fork: bool) -> Child:
        child = Child(module, arguments, log, fork=fork, others=self.children, own_session=self.own_sessions)
        self.children.append(child)
        return child

    def start_ranks(self, fork: bool) -> list[Any]:
        """Start all ranks and connect them; they are polled and killed like a `Child`."""
        ranks = [
            self.start(
                worker,
                [str(self.run_dir.path), str(rank), str(self.begin.path) if self.begin else ""],
                self.run_dir.log_file(rank),
                fork,
            )
            for rank in range(self.spec.world_size)
        ]
        # The store serves from a thread, so it comes after the forks; port 0 lets the system choose a free one. Given
        # no socket, it would listen on every interface.
        port = (listening := socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        self.store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(minutes=5),
            master_listen_fd=listening.detach(),
        )
        for rank in ranks:
            with contextlib.suppress(BrokenPipeError):  # one that is gone already is found by `watch`
                os.write(rank.input, f"{self.store.port}\n".encode())
        return ranks

    def watch(self, stopped: Callable[[], str | None]) -> int:
        """Until the run has ended; returns the agent's exit code."""
        while True:
            codes = [rank.poll() for rank in self.ranks]
            over = all(code == 0 for code in codes)
            self.gather()
            self.evaluate(ranks_over=over or self.reached)
            reason = stopped()
            if reason is not None:
                return self.fail({"message": f"{reason} after update {max(self.gathered, default=0)}", "stopped": True})
            if any(code not in (None, 0) for code in codes) and not self.reached:
                return self.fail_for_now(self.diagnose())
            if self.evaluator.poll() is not None:
                said = f"the evaluator ended badly: see {self.run_dir.path}/log/evaluator.log"
                return self.fail_for_now({"message": said})
            if (hang := self.hangs.look(self.ranks)) is not None and not self.reached:
                return self.fail_for_now(hang)
            if self.not_finite is not None:
                return self.fail(
                    {
                        "message": "the validation loss after update {update} is {val_loss}: the weights are "
                        "lost, try a lower learning rate".format(**self.not_finite)
                    }
                )
            if self.reached and not over:
                self.kill_ranks()  # nothing after the target is asked for
                self.gather()
                over = True
            if over and not self.requests and not self.asked:
                self.kill_all()
                write_json(self.run_dir.path / "result.json", summarize(self.run_dir))
                self.evaluator.kill()
                return 0
            time.sleep(_TICK_S)

    # -- putting together what the ranks write --------------------------------------------------------------------
    def gather(self) -> None:
        for rank, tail in enumerate(self.tails):
            for row in tail.rows():
                rows = self.gathered.setdefault(row["update"], [])
                rows.append({"replica": rank // self.schedule.ranks, **row})
                if len(rows) == self.spec.stages * self.spec.replicas:
                    self.complete(row["update"], rows)

    def complete(self, update: int, rows: list[dict[str, Any]]) -> None:
        """All stages have made `update`: one line of metrics, and a snapshot to evaluate if they saved one."""
        first = [row for row in rows if row["replica"] == 0]
        parts = {row["replica"]: row["train_loss"] for row in rows if row["train_loss"] is not None}
        when = {"time_s": max(row["end_ns"] for row in rows) / 1e9, "tokens": rows[0]["tokens"], "update": update}
        if update not in self.told:
            self.write_metrics(
                {
                    **when,
                    "train_loss": sum(parts[replica] for replica in sorted(parts)),
                    "grad_norm": None
                    if any(row["skipped"] for row in first)
                    else sum(row["grad_norm"] ** 2 for row in first) ** 0.5,
                    "learning_rate": max(row["learning_rate"] for row in rows),  # a schedule may lower some
                }
            )
        if all(row["snapshot"] for row in first) and update not in self.judged:
            self.requests.append(when)
        saving = rows if self.spec.shard_optimizer else first
        if all(row["checkpoint"] for row in saving) and update >= self.schedule.first_update:
            files = [row["checkpoint"] for row in sorted(saving, key=lambda row: (row["stage"], row["replica"]))]
            time_s = self.origin["time_s"] + when["time_s"]
            seal(self.run_dir, self.spec, update, files, tokens=when["tokens"], time_s=time_s)
        self.gathered[update] = []  # the rows are on disk; the key stays as the count of updates

    def write_metrics(self, row: dict[str, Any]) -> None:
        self.metrics.write(json.dumps(row) + "\n")

    def evaluate(self, *, ranks_over: bool) -> None:
        """Hand snapshots to the evaluator and take its answers."""
        if self.requests and (self.spec.evaluate == "during" or ranks_over) and not self.reached:
            request = self.requests.pop(0)
            self.asked[request["update"]] = request
            os.write(self.evaluator.input, f"{request['update']}\n".encode())
        if self.reached:
            self.requests.clear()
            self.asked.clear()
        try:
            self.answers += os.read(self.evaluator.output, 65536)
        except BlockingIOError:
            return
        *lines, self.answers = self.answers.split(b"\n")
        for line in lines:
            if self.reached:
                return
            answer = json.loads(line)
            if not math.isfinite(answer["val_loss"]):
                self.not_finite = answer
                return
            if (when := self.asked.pop(answer["update"], None)) is not None:
                self.write_metrics({**when, "val_loss": answer["val_loss"]})
                self.reached = self.hits_target(answer["val_loss"])

    def hits_target(self, loss: float) -> bool:
        return self.spec.target_loss is not None and loss <= self.spec.target_loss

    # -- ends -----------------------------------------------------------------------------------------------------
    def diagnose(self) -> dict[str, Any]:
        """Wait for the ranks that saw the failure, and tell the cause from its consequences."""
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and any(rank.poll() is None for rank in self.ranks):
            time.sleep(_TICK_S)
        codes = [rank.poll() for rank in self.ranks]
        failed = [r for r, code in enumerate(codes) if code not in (None, 0)]
        rank = min(failed, key=lambda r: (codes[r] == process.PEER_LOST_EXIT, r))
        said = _read_error(self.run_dir.error_file(rank)) if codes[rank] > 0 else None
        op = Op.parse(said["op"]) if said and said["op"] else read_now(self.run_dir.now_file(rank))
        cause = said["cause"] if said else self.ranks[rank].how_it_ended()
        final = cause.startswith(NonFiniteLoss.__name__)  # it would happen again
        ranks = self.spec.world_size
        return failure_of(
            self.run_dir, self.schedule, ranks, rank, op, lambda what: f"failed in {what}: {cause}", cause=cause
        ) | {"final": final}

    def fail_for_now(self, failure: dict[str, Any]) -> int:
        """`fail`, or RESTART where that may help."""
        if not self.restartable or failure.get("final"):
            return self.fail(failure)
        self.kill_all()
        self.evaluator.kill()
        self.gather()
        self.cause = failure["message"]
        return RESTART

    def fail(self, failure: dict[str, Any]) -> int:
        self.kill_all()
        with contextlib.suppress(OSError):  # a full disk, perhaps; what is removed is the room to write down the cause
            self.gather()
        remove_unfinished(self.run_dir)
        write_json(self.run_dir.path / "failure.json", failure)
        self.evaluator.kill()
        return 1

    def kill_ranks(self) -> None:
        for rank in self.ranks:
            rank.kill()

    def kill_all(self) -> None:
        """End everything, and wait for all but the evaluator.

        It runs where nobody else wants a core, and it needs one to end: on a busy machine that takes seconds, in which
        the last word of the run is already there.
        """
        self.evaluator.strike()
        for child in self.children:
            if child is not self.evaluator:
                child.kill()


def _read_error(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def create(
    run: RunDir, spec: TrainSpec, resume: str | None, resolve: Callable[[TrainSpec], TrainSpec], *, hosts: int = 1
) -> tuple[TrainSpec, Checkpoint | None]:
    """Resolve `spec` and make the run directory; with `resume`, for a run that goes on from that checkpoint."""
    begin, skipped = open_checkpoint(resume) if resume else (None, [])
    spec = resolve(adopt(spec, begin) if begin else spec)
    environment = describe_machine(spec, hosts=hosts)
    if begin:
        begin.schedule(spec)  # refuses a first segment that this schedule cannot run
        check_corpus(environment, begin)
    run.create(spec, environment)
    if begin:
        note_origin(run, begin, skipped)
    return spec, begin


def main() -> int:
    """Read {"spec", "run_dir", "resume", "max_restarts", "hang_timeout_s"} from standard input, answer, run."""
    asked = json.loads(sys.stdin.readline())
    answer = os.fdopen(os.dup(1), "w")
    run = RunDir(asked["run_dir"])
    try:
        spec, begin = create(run, TrainSpec.from_dict(asked["spec"]), asked["resume"], resolve)
        fork = may_fork(spec)
    except InputError as error:
        print(
            json.dumps({"input_error": [error.what, str(error.value), error.allowed, error.fix]}),
            file=answer,
            flush=True,
        )
        return 2
    except ScheduleError as error:
        print(
            json.dumps({"schedule_error": [error.code, str(error.op), error.reason, error.grid]}),
            file=answer,
            flush=True,
        )
        return 2
    told: list[str] = []  # before the answer: from then on the launcher may stop this run
    signal.signal(signal.SIGTERM, lambda *_: told.append("stopped by the user"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the launcher, which then sends SIGTERM
    print(json.dumps({"ready": True}), file=answer, flush=True)
    answer.close()
    log = os.open(run.path / "log" / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.set_blocking(0, False)

    def stopped() -> str | None:
        try:
            if os.read(0, 4096) == b"":
                told.append("the process that started the run went away")
        except BlockingIOError:
            pass
        return told[0] if told else None

    for restarts_left in reversed(range(asked["max_restarts"] + 1)):
        agent = Agent(
            run, fork=fork, begin=begin, restartable=restarts_left > 0, hang_timeout_s=asked["hang_timeout_s"]
        )
        try:
            if (code := agent.watch(stopped)) != RESTART:
                return code
            begin, skipped = recover(run)
        except BaseException as error:
            traceback.print_exc()
            return agent.fail(
                {"message": f"the agent failed: {type(error).__name__}: {error}. See {run.path}/log/agent.log"}
            )
        print("restart:", json.dumps(record_restart(run, agent.cause, begin, skipped)), flush=True)
        del agent  # its store serves from a thread, which must have ended before the next ones are forked
    raise AssertionError("the last start does not ask for another one")


if __name__ == "__main__":
    sys.exit(main())
