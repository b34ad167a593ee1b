"""Interpreter 2, the oracle: any schedule in one process, with exact numbers and no time.

The order in which stages take turns cannot change a number, because every operation has its inputs before it starts
and every stage keeps the schedule's order; so replay agrees with real ranks bit for bit on CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from paci_lab.data import open_data
from paci_lab.errors import InputError
from paci_lab.measure import Evaluator, evaluation_due
from paci_lab.models import build_model
from paci_lab.runtime.checkpoint import open_checkpoint
from paci_lab.runtime.replicas import Reducer, add_up_here
from paci_lab.runtime.resolve import resolve
from paci_lab.runtime.resume import adopt
from paci_lab.runtime.stage import Stage, UpdateRecord
from paci_lab.schedules import Op, Schedule, inputs_of
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace, TraceEvent

__all__ = ["Replay", "replay", "turns"]

Message = tuple[Tensor | None, Tensor | None]
"""The tensor, and the note of clipping that goes with it."""


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a replay found.

    Args:
        trace: its events last one "nanosecond" per turn: order, versions and gaps are real, durations are not. Of
            several replicas it is the first one's, which all others do at the same time.
        losses: mean loss per token of every micro-batch, in the order of the data stream.
        parameters: final weights by name.
        updates: per stage, one record per update, of the first replica.
        validation: (micro-batches seen, update, validation loss) at every evaluation asked for.
    """

    trace: Trace
    losses: list[float]
    parameters: dict[str, Tensor]
    updates: list[list[UpdateRecord]]
    validation: list[tuple[int, int, float]]


def turns(schedule: Schedule) -> Iterator[list[tuple[int, Op]]]:
    """Rounds of operations that can run side by side, as (rank, operation); every rank in its own order."""
    streams = [schedule.ops(rank) for rank in range(schedule.ranks)]
    pending = [next(stream, None) for stream in streams]
    made: set[tuple[int, str, int]] = set()
    while any(op is not None for op in pending):
        round_ = [
            (rank, op)
            for rank, op in enumerate(pending)
            if op is not None and ((needed := inputs_of(op, schedule.stages)[1]) is None or needed in made)
        ]
        if not round_:
            raise AssertionError("deadlock: validate the schedule first")
        yield round_
        for rank, op in round_:
            if (needed := inputs_of(op, schedule.stages)[1]) is not None:
                made.discard(needed)  # one consumer each, so the set stays as small as what is in flight
            if op.kind in "FBI":
                made.add((op.stage, "F" if op.kind == "F" else "I", op.microbatch))
            pending[rank] = next(streams[rank], None)


def replay(spec: TrainSpec, *, resume: str | Path | None = None) -> Replay:
    """Replay `spec` on the CPU. Raises what `TrainSpec`, `resolve` and the stages raise; InputError for a peer's.

    Args:
        spec: the run.
        resume: the checkpoint, or the run directory with one, from which it goes on.
    """
    if spec.engine != "paci-lab":
        raise InputError("engine", spec.engine, "paci-lab: a peer is not replayed", "replay the same flush schedule")
    begin = open_checkpoint(resume)[0] if resume is not None else None
    spec = resolve((adopt(spec, begin) if begin else spec).replace(device="cpu"))
    schedule = begin.schedule(spec) if begin else spec.build_schedule()
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    with cpu_threads(spec.threads):
        cpu, copies = torch.device("cpu"), range(spec.replicas)
        stages = [[Stage(spec, model, data, schedule, s, cpu, replica=r) for r in copies] for s in range(spec.stages)]
        for stage in (stage for same in stages for stage in same) if begin else ():
            begin.restore(stage)
        reducers = [_reducers(same) for same in stages]
        messages: dict[tuple[int, str, int], list[Message]] = {}  # one per replica
        records: list[list[list[UpdateRecord]]] = [[[] for _ in copies] for _ in stages]
        events: list[TraceEvent] = []
        evaluations = Evaluations(spec, model, data)
        for now, round_ in enumerate(turns(schedule)):
            for rank, op in round_:
                stage = stages[op.stage][0]
                needed = inputs_of(op, spec.stages)[1]
                received = messages.pop(needed) if needed is not None else [(None, None) for _ in copies]
                version = stage.version
                if op.kind == "U":
                    if reducers[op.stage]:
                        add_up_here(reducers[op.stage])
                    for same, record in zip(stages[op.stage], records[op.stage], strict=True):
                        record.append(same.update(op.microbatch))
                    evaluations.after_update(stage, op.microbatch)
                else:
                    made = [_compute(stages[op.stage][r], reducers[op.stage], op, received[r]) for r in copies]
                    if op.kind != "W":
                        messages[op.stage, "F" if op.kind == "F" else "I", op.microbatch] = made
                if (op.kind == "F" and stage.last) or (op.kind in "BI" and stage.first):
                    messages.pop((op.stage, "F" if op.kind == "F" else "I", op.microbatch))
                update = op.microbatch if op.kind == "U" else schedule.window_of(op.microbatch)
                events.append(TraceEvent(op.stage, rank, op.kind, op.microbatch, now, now + 1, version, update))
        parameters = {name: tensor for same in stages for name, tensor in same[0].state().items()}
    by_replica = [[loss for record in own for loss in record.losses] for own in records[-1]]
    losses = [loss for turn in zip(*by_replica, strict=True) for loss in turn]
    trace = Trace(events, source="replayed", stages=spec.stages)
    return Replay(trace, losses, parameters, [own[0] for own in records], evaluations.found)


def _reducers(same: list[Stage]) -> list[Reducer]:
    """One for each replica of a stage; none when there is one replica, whose gradient is what it is."""
    if len(same) == 1:
        return []
    return [Reducer(stage.optimizer.parameters, len(same)) for stage in same]


def _compute(stage: Stage, reducers: list[Reducer], op: Op, received: Message) -> Message:
    """F, B, I or W of one replica."""
    tensor, note = received
    link = "F" if op.kind == "F" else "B"
    stage.clipping.heard(link, note)
    if op.kind == "F":
        made = stage.forward(op.microbatch, tensor)
    elif op.kind == "I":
        made = stage.input_gradient(op.microbatch, tensor)
    else:
        window = stage.schedule.window_microbatches(stage.schedule.window_of(op.microbatch))
        with reducers[stage.replica].backward(len(window)) if reducers else nullcontext():
            made = stage.weight_gradient(op.microbatch) if op.kind == "W" else stage.backward(op.microbatch, tensor)
    return made, stage.clipping.says(link)


class Evaluations:
    """Validation losses of version-consistent weights, gathered stage by stage as each reaches the update."""

    def __init__(self, spec: TrainSpec, model, data) -> None:
        self.spec = spec
        self.evaluator = Evaluator(spec, model, data)
        self.partial: dict[int, dict[str, Tensor]] = {}
        self.seen: dict[int, int] = {}
        self.found: list[tuple[int, int, float]] = []

    def after_update(self, stage: Stage, update: int) -> None:
        if not evaluation_due(self.spec, update):
            return
        weights = self.partial.setdefault(update, {})
        weights.update(stage.state())
        self.seen[update] = self.seen.get(update, 0) + 1
        if self.seen[update] == self.spec.stages:
            microbatches = min((update + 1) * self.spec.window, self.spec.total_microbatches)
            self.found.append((microbatches, update, self.evaluator(self.partial.pop(update))))


@contextmanager
def cpu_threads(threads: int) -> Iterator[None]:
    """Run with this many CPU threads: another number would add up sums in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
