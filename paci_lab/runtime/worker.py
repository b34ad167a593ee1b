"""One rank: an interpreter of its part of the schedule. Started by the agent as `python -m paci_lab.runtime.worker`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from paci_lab.audit import audit_stage
from paci_lab.data import Data, open_data
from paci_lab.measure import evaluation_due
from paci_lab.models import Model, build_model
from paci_lab.peers import rank_class
from paci_lab.precision import message_dtype
from paci_lab.runtime.checkpoint import Checkpoint, checkpoint_due, save_part
from paci_lab.runtime.clock import HostClocks
from paci_lab.runtime.guard import self_test
from paci_lab.runtime.p2p import Form, agree_on_messages, connect
from paci_lab.runtime.process import all_there, device_of, end_with_parent, peak_memory, perform, stay_on_this_host
from paci_lab.runtime.recorder import Recorder
from paci_lab.runtime.replicas import Reducer, ReplicaGroup
from paci_lab.runtime.resume import began_ns
from paci_lab.runtime.rundir import RunDir, write_json
from paci_lab.runtime.stage import Stage
from paci_lab.runtime.timing import make_timer
from paci_lab.schedules import Op

__all__ = ["PACED_DELAY", "Worker", "main", "run_as_child"]

_WAIT_NS = 100_000
"""A message that is there within this is not waited for: it is the time that asking takes."""

PACED_DELAY = 0.25
"""Share of a paced operation's time before its real work. Ranks that share cores end and begin operations in the same
moments; there the cores belong to the messages, and the work is done when nobody waits for one."""


class Worker:
    """Stages of one rank, its links and its recorder; `run` interprets the schedule.

    Args:
        run, rank: which rank of which run; ranks count through the replicas one after the other.
        store: shared by all ranks.
        local_rank: its number on its host, which chooses its GPU; `rank` when None.
        clocks: measures the clocks of several hosts; None when all ranks read the same one.
        begin: the checkpoint to go on from; None to begin at the beginning.
    """

    def __init__(
        self,
        run: RunDir,
        rank: int,
        store: dist.Store,
        *,
        local_rank: int | None = None,
        clocks: HostClocks | None = None,
        begin: Checkpoint | None = None,
    ) -> None:
        self.run_dir, self.rank, self.spec = run, rank, run.spec()
        spec = self.spec
        torch.set_num_threads(spec.threads)
        self.schedule = begin.schedule(spec) if begin else spec.build_schedule()
        self.device = device_of(spec.device, rank if local_rank is None else local_rank)
        self_test(str(self.device))
        device_id = self.device if spec.backend == "nccl" else None
        with all_there():
            dist.init_process_group(
                spec.backend,
                store=dist.PrefixStore("group", store),
                rank=rank,
                world_size=spec.world_size,
                timeout=timedelta(hours=1),
                device_id=device_id,
            )
        model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
        data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
        self.replica, self.place = divmod(rank, self.schedule.ranks)
        with all_there():
            group = ReplicaGroup(spec, self.schedule, rank, self.device) if spec.replicas > 1 else None
        self.stages = {
            s: Stage(spec, model, data, self.schedule, s, self.device, replica=self.replica, group=group)
            for s in self.schedule.stages_of(self.place)
        }
        self.paces = {s: spec.pace_ns(s) for s in self.stages}
        notes = any(stage.clipping.carries_notes for stage in self.stages.values())
        self.form = Form(model.boundary_shape(spec.microbatch_size), message_dtype(spec.precision), notes)
        made = {s: stage.warm_up() for s, stage in self.stages.items()}
        self.version_used = {s: audit_stage(stage) for s, stage in self.stages.items()}
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)  # what the audit took is no part of the run
        for stage in self.stages.values() if begin else ():
            begin.restore(stage)
        own_store = dist.PrefixStore(f"replica/{self.replica}", store)
        agree_on_messages(made, self.form, own_store, self.schedule, self.place)
        self.inboxes, self.outboxes = {}, {}
        self.prepare(model, data)
        self.reducers = {  # after the warm-up, whose backward is none of a window's
            s: Reducer(stage.optimizer.parameters, spec.replicas, group, early=stage.split is None)
            for s, stage in self.stages.items()
            if group is not None
        }
        self.recorder = Recorder(run, rank, trace=spec.trace)
        with all_there():
            dist.barrier()
        self.clocks = clocks
        with all_there():
            offset_ns = clocks.begin(store) if clocks else 0
        # One clock for all ranks: rank 0's monotonic clock, counted from when that rank first left the barrier.
        if rank == 0:
            store.set("begin_ns", str(began_ns(run)))
        self.begin_ns = int(store.get("begin_ns")) + offset_ns
        self.timer = make_timer(self.device, self.begin_ns)
        self.idle_since = 0  # end of the last operation on a GPU, where waiting shows as a gap

    def prepare(self, model: Model, data: Data) -> None:
        """What has to be there before the clock starts, and is nobody's but this engine's: its links."""
        self.inboxes, self.outboxes = connect(
            self.schedule, self.rank, self.form, self.device, self.spec.backend, replicas=self.spec.replicas
        )

    def interpret(self) -> None:
        """Every operation of this rank, in order."""
        for op in self.schedule.ops(self.place):
            self.recorder.now(op)
            stage = self.stages[op.stage]
            if op.kind == "U":
                self.update(stage, op.microbatch)
            else:
                self.compute(stage, op)

    def run(self) -> None:
        """Train, and end together with the other ranks."""
        self.interpret()
        self.timer.settle(wait=True)
        self.recorder.doing("waiting")
        for outbox in self.outboxes.values():
            outbox.drain()
        self.recorder.close()
        with all_there():
            dist.barrier()
            if self.clocks:
                self.clocks.end()
        dist.destroy_process_group()

    def compute(self, stage: Stage, op: Op) -> None:
        """F, B, I or W: receive, compute, send. An I takes and makes the messages of a backward, a W none."""
        link = (op.stage, "B" if op.kind == "I" else op.kind)
        inbox, outbox = self.inboxes.get(link), self.outboxes.get(link)
        received = self.receive(stage, op, inbox) if inbox else None
        if inbox is not None:
            stage.clipping.heard(link[1], inbox.note)
        version, update = stage.version, self.schedule.window_of(op.microbatch)

        def done(start_ns: int, end_ns: int) -> None:
            if self.device.type == "cuda":
                if inbox is not None and start_ns - self.idle_since > _WAIT_NS:
                    self.recorder.event(
                        op.stage, f"wait-{link[1]}", op.microbatch, self.idle_since, start_ns, version, update
                    )
                self.idle_since = end_ns
            self.recorder.event(op.stage, op.kind, op.microbatch, start_ns, end_ns, version, update)

        pace_ns = self.paces[op.stage][op.kind]
        started = self.timer.start()
        if pace_ns:
            if inbox is not None:
                inbox.post()
            time.sleep(pace_ns * PACED_DELAY / 1e9)
        if op.kind == "F":
            result = stage.forward(op.microbatch, received)
        else:
            activation = stage.held[op.microbatch][0]
            with self.adding_up(op):
                if op.kind == "W":
                    result = stage.weight_gradient(op.microbatch)
                else:
                    backward = stage.backward if op.kind == "B" else stage.input_gradient
                    result = backward(op.microbatch, received)
            if inbox is not None:
                inbox.give_back(received)
            if not stage.first and op.kind != "I":
                self.inboxes[op.stage, "F"].give_back(activation.detach())
        operation = self.timer.stop(started, pace_ns)
        if outbox is not None:
            outbox.send(result, stage.clipping.says(link[1]))  # first of all: somebody is waiting for it
        if inbox is not None:
            inbox.post()
        self.timer.report(operation, done)

    def adding_up(self, op: Op) -> contextlib.AbstractContextManager[None]:
        """Around `op`, which may be the backward that ends a window: what it makes goes to the other replicas."""
        if op.kind == "I" or not self.reducers:
            return contextlib.nullcontext()
        window = self.schedule.window_microbatches(self.schedule.window_of(op.microbatch))
        return self.reducers[op.stage].backward(len(window))

    def receive(self, stage: Stage, op: Op, inbox) -> torch.Tensor:
        asked = time.monotonic_ns()
        self.recorder.doing("waiting")
        message = inbox.take()
        self.recorder.doing("")
        now = time.monotonic_ns()
        if self.device.type == "cpu" and now - asked > _WAIT_NS:
            self.recorder.event(
                op.stage,
                "wait-F" if op.kind == "F" else "wait-B",
                op.microbatch,
                asked - self.begin_ns,
                now - self.begin_ns,
                stage.version,
                self.schedule.window_of(op.microbatch),
            )
        return message

    def update(self, stage: Stage, update: int) -> None:
        """U, after the wait for the other replicas' gradients, and the snapshot or the checkpoint when one is due."""
        version = stage.version
        ended = []

        def waited(start_ns: int, end_ns: int) -> None:
            if self.reducers and end_ns - start_ns > _WAIT_NS:
                self.recorder.event(stage.stage, "wait-U", update, start_ns, end_ns, version, update)

        asked = time.monotonic_ns()
        if self.reducers:
            self.recorder.doing("waiting")
            self.reducers[stage.stage].wait()
            self.recorder.doing("")
        if self.device.type == "cpu":
            waited(asked - self.begin_ns, time.monotonic_ns() - self.begin_ns)

        def done(start_ns: int, end_ns: int) -> None:
            if self.device.type == "cuda":
                waited(self.idle_since, start_ns)
            ended.append(end_ns)
            self.idle_since = end_ns
            self.recorder.event(stage.stage, "U", update, start_ns, end_ns, version, update)

        started = self.timer.start()
        record = stage.update(update)
        self.timer.report(self.timer.stop(started, 0), done)
        snapshot = self.replica == 0 and evaluation_due(self.spec, update)  # the others have the same weights
        if snapshot:
            with self.saving(stage, "snapshot", update):
                self.save_snapshot(stage, update)
        checkpoint = None
        if checkpoint_due(self.spec, update) and (self.replica == 0 or self.spec.shard_optimizer):
            self.timer.settle(wait=True)
            self.recorder.flush()  # what comes before a checkpoint is on the disk when the checkpoint is
            with self.saving(stage, "checkpoint", update):
                checkpoint = save_part(self.run_dir, stage, update)
        if not ended:  # a GPU update still running: its end on the host's clock is near enough for the metrics
            ended.append(time.monotonic_ns() - self.begin_ns)
        self.recorder.update(
            {
                "stage": stage.stage,
                "update": update,
                "end_ns": ended[0],
                "tokens": record.tokens,
                "learning_rate": record.learning_rate,
                "grad_norm": record.grad_norm,
                "train_loss": record.train_loss,
                "losses": record.losses,
                "skipped": record.skipped,
                **({"clipping": record.clipping} if record.clipping else {}),
                "snapshot": snapshot,
                "checkpoint": checkpoint,
                "peak_memory_bytes": peak_memory(self.device),
                "pace_overruns": self.timer.overruns,
                "weight_copies": stage.weight_copies,
                "optimizer_bytes": stage.optimizer_bytes,
                **({"version_used": self.version_used.pop(stage.stage)} if stage.stage in self.version_used else {}),
            }
        )

    @contextlib.contextmanager
    def saving(self, stage: Stage, what: str, update: int) -> Iterator[None]:
        """Record the block as an event of this kind."""
        before = time.monotonic_ns() - self.begin_ns
        self.recorder.doing("saving")
        yield
        self.recorder.doing("")
        after = time.monotonic_ns() - self.begin_ns
        self.recorder.event(stage.stage, what, update, before, after, stage.version, update)

    def save_snapshot(self, stage: Stage, update: int) -> None:
        path = self.run_dir.snapshot(update, stage.stage)
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(path.name + ".part")
        save_file(stage.state(), part)
        os.replace(part, path)


def main(run_path: str, rank: int, begin_path: str) -> int:
    """Run one rank to its end and return its exit code. Reads the port of the store from standard input.

    Args:
        begin_path: the checkpoint to go on from; empty to begin at the beginning.
    """
    run = RunDir(run_path)

    def begin() -> Worker:
        port = int(sys.stdin.readline())
        end_with_parent()
        stay_on_this_host()
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(minutes=5))
        engine = rank_class(run.spec().engine) or Worker
        return engine(run, rank, store, begin=Checkpoint.read(Path(begin_path)) if begin_path else None)

    code, error = perform(run, rank, begin)
    if error is not None:
        with contextlib.suppress(OSError):
            write_json(run.error_file(rank), error)
    return code


def run_as_child(arguments: list[str]) -> int:
    """Entry point of a forked rank."""
    return main(arguments[0], int(arguments[1]), arguments[2])


if __name__ == "__main__":
    code = run_as_child(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # an orderly exit would wait for a thread that waits for other replicas
