"""Interpreter 2, the oracle: any schedule in one process, with exact numbers and no time.

The order in which stages take turns cannot change a number, because every operation has its inputs before it starts
and every stage keeps the schedule's order; so replay agrees with real ranks bit for bit on CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from paci_lab.data import open_data
from paci_lab.errors import InputError
from paci_lab.measure import Evaluator, evaluation_due
from paci_lab.models import build_model
from paci_lab.runtime.resolve import resolve
from paci_lab.runtime.stage import Stage, UpdateRecord
from paci_lab.schedules import Op, Schedule, inputs_of
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace, TraceEvent

__all__ = ["Replay", "replay", "turns"]


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a replay found.

    Args:
        trace: its events last one "nanosecond" per turn: order, versions and gaps are real, durations are not.
        losses: mean loss per token of every micro-batch, in order.
        parameters: final weights by name.
        updates: per stage, one record per update.
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


def replay(spec: TrainSpec) -> Replay:
    """Replay `spec` on the CPU. Raises what `TrainSpec`, `resolve` and the stages raise; InputError for a peer's."""
    if spec.engine != "paci-lab":
        raise InputError("engine", spec.engine, "paci-lab: a peer is not replayed", "replay the same flush schedule")
    spec = resolve(spec.replace(device="cpu"))
    schedule = spec.build_schedule()
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    with cpu_threads(spec.threads):
        stages = [Stage(spec, model, data, schedule, s, torch.device("cpu")) for s in range(spec.stages)]
        messages: dict[tuple[int, str, int], Tensor | None] = {}
        records: list[list[UpdateRecord]] = [[] for _ in stages]
        events: list[TraceEvent] = []
        evaluations = Evaluations(spec, model, data)
        for now, round_ in enumerate(turns(schedule)):
            for rank, op in round_:
                stage = stages[op.stage]
                needed = inputs_of(op, spec.stages)[1]
                received = messages.pop(needed) if needed is not None else None
                version = stage.version
                if op.kind == "F":
                    messages[op.stage, "F", op.microbatch] = stage.forward(op.microbatch, received)
                elif op.kind == "B":
                    messages[op.stage, "I", op.microbatch] = stage.backward(op.microbatch, received)
                elif op.kind == "I":
                    messages[op.stage, "I", op.microbatch] = stage.input_gradient(op.microbatch, received)
                elif op.kind == "W":
                    stage.weight_gradient(op.microbatch)
                else:
                    records[op.stage].append(stage.update(op.microbatch))
                    evaluations.after_update(stage, op.microbatch)
                if (op.kind == "F" and stage.last) or (op.kind in "BI" and stage.first):
                    messages.pop((op.stage, "F" if op.kind == "F" else "I", op.microbatch))
                update = op.microbatch if op.kind == "U" else schedule.window_of(op.microbatch)
                events.append(TraceEvent(op.stage, rank, op.kind, op.microbatch, now, now + 1, version, update))
        parameters = {name: tensor for stage in stages for name, tensor in stage.state().items()}
    losses = [loss for record in records[-1] for loss in record.losses]
    trace = Trace(events, source="replayed", stages=spec.stages)
    return Replay(trace, losses, parameters, records, evaluations.found)


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
