"""What a spec will take, before anything is started, fetched or written: `paci-lab train --dry-run`.

Everything here is arithmetic on shapes (the meta device) and simulation. Layer costs are estimated from the sizes of
matrices; a real run measures them when its partition is "auto".
"""

from __future__ import annotations

import dataclasses
import math

import torch

from paci_lab.models import Model, build_model
from paci_lab.partition import balanced_partition, check_partition
from paci_lab.peers import check_engine
from paci_lab.precision import message_dtype
from paci_lab.schedules import build_schedule, excerpt_of, validate, weight_copies
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec

__all__ = ["DryRun", "StageNeeds", "dry_run"]

_STATE_BYTES = {"adamw": 8, "nadam": 8, "muon": 8, "sgd": 4}
"""Per parameter, float32: two moments, or a momentum. Muon keeps one for its matrices, so this is its upper bound."""

_WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "autocast": 4}
_MASTER_BYTES = {"fp32": 0, "bf16": 4, "autocast": 0}
_CAST_BYTES = {"fp32": 0, "bf16": 0, "autocast": 2}
"""Per weight that is multiplied, for every micro-batch in flight: autocast's copies."""

_ACTIVATION_SHARE = {"fp32": 1.0, "bf16": 0.5, "autocast": 0.57}
"""Of float32's activations; autocast's is measured on GPT blocks. The last layer counts in full, for its loss is
float32."""

_EVENT_BYTES = 135
"""Of one line of a trace, measured on long runs."""


@dataclasses.dataclass(frozen=True)
class StageNeeds:
    """What one stage holds.

    Attributes:
        layers: how many. parameters: how many numbers.
        work: its share of the model's computing.
        weights, gradients, optimizer: bytes in the precision of the spec. Weights include the copies that a schedule
            or autocast keeps, the optimizer its masters; it is None for one that is not known.
        activation: bytes kept for every micro-batch in flight.
        rebuilt: bytes that recomputation makes for one micro-batch at a time.
        gap: largest version gap.
        held: most micro-batches in flight.
    """

    layers: int
    parameters: int
    work: float
    weights: int
    gradients: int
    optimizer: int | None
    activation: int
    rebuilt: int
    gap: int
    held: int

    @property
    def activations(self) -> int:
        """Bytes of all that is in flight."""
        return self.held * self.activation + self.rebuilt

    @property
    def bytes(self) -> int:
        """All of it together."""
        return self.weights + self.gradients + (self.optimizer or 0) + self.activations


@dataclasses.dataclass(frozen=True)
class DryRun:
    """What `spec` needs and what to expect.

    Attributes:
        stages: one per stage; every replica has them.
        tokens: seen in the whole run. parameters: of the whole model.
        against_flush: predicted throughput as a multiple of 1F1B-flush with the same micro-batches per update, with a
            backward twice as long as a forward (three times with recomputation) and messages that take no time.
        disk_bytes: the trace, the two snapshots that a run keeps at most, and its checkpoints with the one being made.
    """

    spec: TrainSpec
    stages: list[StageNeeds]
    tokens: int
    parameters: int
    against_flush: float
    disk_bytes: int


def dry_run(spec: TrainSpec) -> DryRun:
    """Work it out; raises InputError or ScheduleError for a spec that cannot run, as far as shapes tell."""
    check_engine(spec)
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    parameters, multiplied, work = _layers(model)
    boundary = math.prod(model.boundary_shape(spec.microbatch_size)) * message_dtype(spec.precision).itemsize
    partition = balanced_partition(work, spec.stages) if spec.partition == "auto" else spec.partition
    check_partition(partition, model.layers, spec.stages)
    schedule = spec.build_schedule()
    validate(excerpt_of(spec.schedule, schedule))
    excerpt = schedule.excerpt()  # long enough for a stage to keep as many copies of its weights as it ever will
    stages, first = [], 0
    for stage, count in enumerate(partition):
        layers = range(first, first + count)
        first += count
        numbers = sum(parameters[layer] for layer in layers)
        held = schedule.in_flight(stage)
        kept = round(
            sum(
                model.activation_bytes_per_microbatch(layer, spec.microbatch_size)
                * (1 if layer == model.layers - 1 else _ACTIVATION_SHARE[spec.precision])
                for layer in layers
            )
        )
        cast = _CAST_BYTES[spec.precision] * sum(multiplied[layer] for layer in layers)
        state = _STATE_BYTES.get(spec.optimizer)
        shards = spec.replicas if spec.shard_optimizer else 1  # whole parameters are shared out, so about evenly
        recomputes = spec.recompute and (held > 1 or schedule.gap_bound(stage) > 0)
        tokens = 8 * spec.microbatch_size * model.context
        stages.append(
            StageNeeds(
                layers=count,
                parameters=numbers,
                work=sum(work[layer] for layer in layers) / sum(work),
                weights=_WEIGHT_BYTES[spec.precision] * numbers * weight_copies(excerpt, stage)
                + (1 if recomputes else held) * cast,
                gradients=4 * numbers,
                optimizer=None if state is None else -(-(state + _MASTER_BYTES[spec.precision]) * numbers // shards),
                activation=(boundary if stage else tokens) if recomputes else kept,
                rebuilt=kept if recomputes else 0,
                gap=schedule.gap_bound(stage),
                held=held,
            )
        )
    # An F, a B and the two waits before them, for every micro-batch and stage.
    trace = 4 * _EVENT_BYTES * spec.total_microbatches * spec.stages * spec.replicas if spec.trace else 0
    kept = spec.keep_checkpoints + 1 if spec.checkpoint_every else 0
    checkpoints = kept * (4 + _STATE_BYTES.get(spec.optimizer, 8)) * sum(parameters)
    return DryRun(
        spec=spec,
        stages=stages,
        tokens=spec.total_microbatches * spec.replicas * spec.microbatch_size * model.context,
        parameters=sum(parameters),
        against_flush=_against_flush(spec, [stage.work for stage in stages]),
        disk_bytes=trace + 2 * 4 * sum(parameters) + checkpoints,
    )


def _layers(model: Model) -> tuple[list[int], list[int], list[float]]:
    """Parameters, those that are multiplied, and estimated work of every layer. Layers of one kind are built once."""
    found: dict[str, tuple[int, int, float]] = {}
    for layer in range(model.layers):
        if (kind := model.layer_kind(layer)) not in found:
            with torch.device("meta"):
                shapes = [p.shape for p in model.build_layer(layer, 0).parameters()]
            matrices = sum(shape.numel() for shape in shapes if len(shape) == 2)
            # The first layer looks its rows up. One number in a matrix is one multiplication per token; attention over
            # the context comes to as many as a matrix of width x context, twice.
            attention = 2 * model.context * model.boundary_shape(1)[-1] if 0 < layer < model.layers - 1 else 0
            multiplied = matrices if layer else 0
            found[kind] = (sum(map(math.prod, shapes)), multiplied, float(multiplied + attention))
    kinds = [found[model.layer_kind(layer)] for layer in range(model.layers)]
    numbers, multiplied, work = zip(*kinds, strict=True)
    return list(numbers), list(multiplied), list(work)


def _against_flush(spec: TrainSpec, work: list[float]) -> float:
    """Steady micro-batches per second of `spec`'s schedule over those of a flush with the same window and ranks."""
    schedule = spec.build_schedule()
    of_ranks = [sum(work[stage] for stage in schedule.stages_of(rank)) for rank in range(schedule.ranks)]

    def per_update(name: str, work: list[float], chunks: int = 0) -> float:
        forward = [max(share, 1e-6) for share in work]
        costs = Costs(forward_ms=forward, backward_ms=[(3 if spec.recompute else 2) * f for f in forward])
        updates = 8 + -(-4 * spec.stages // spec.window)
        schedule = build_schedule(
            name, stages=len(work), microbatches=updates * spec.window, window=spec.window, chunks=chunks
        )
        trace = simulate(schedule, costs)
        ends = [event.end_ns for event in trace.of_kind("U") if event.stage == 0]
        steady = (ends[-2] - ends[1]) / (len(ends) - 3)
        if not spec.checkpoint_every:
            return steady
        # Drained for each checkpoint: a segment takes as long as a run of its length.
        short = schedule.shortened(min(spec.checkpoint_every, updates) * spec.window)
        longer = max(spec.checkpoint_every - updates, 0) * steady
        return (simulate(short, costs).makespan_ns + longer) / spec.checkpoint_every

    return per_update("1f1b", of_ranks) / per_update(spec.schedule, work, spec.chunks)
