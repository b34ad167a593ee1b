"""How good and how fast: validation loss of version-consistent weights, time to target, and the result of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paci_lab.spec import TrainSpec

if TYPE_CHECKING:
    from torch import Tensor

    from paci_lab.data import Data
    from paci_lab.models import Model
    from paci_lab.runtime.rundir import RunDir

__all__ = ["Evaluator", "evaluation_due", "summarize"]


def evaluation_due(spec: TrainSpec, update: int) -> bool:
    """True when every stage saves its weights after `update`: the first one after each `evaluate_every` micro-batches,
    and the last of the run.

    All stages save at the same update number, each at its own moment: together these are weights that one process
    could have, though no instant of the run had them all at once.
    """
    before, after = update * spec.window, min((update + 1) * spec.window, spec.total_microbatches)
    if after == spec.total_microbatches:
        return True
    return spec.evaluate_every > 0 and before // spec.evaluate_every < after // spec.evaluate_every


class Evaluator:
    """Mean validation loss per token, in nats, of the whole model with given weights, in one process."""

    def __init__(self, spec: TrainSpec, model: Model, data: Data, *, device: str = "cpu") -> None:
        from torch import nn

        self.model, self.device = model, device
        self.layers = (
            nn.ModuleList(model.build_layer(layer, spec.seed) for layer in range(model.layers)).to(device).eval()
        )
        self.batches = data.validation(spec.validation_batches)

    def __call__(self, parameters: Mapping[str, Tensor]) -> float:
        """Load `parameters` (named as `Stage.state` names them) and evaluate."""
        import torch

        from paci_lab.models import IGNORED_TARGET

        self.layers.load_state_dict({name.removeprefix("layers."): tensor for name, tensor in parameters.items()})
        total, tokens = 0.0, 0
        with torch.no_grad():
            for inputs, targets in self.batches:
                activation, targets = inputs.to(self.device), targets.to(self.device)
                for layer in self.layers:
                    activation = layer(activation)
                total += float(self.model.loss(activation, targets))
                tokens += int((targets != IGNORED_TARGET).sum())
        return total / tokens


def summarize(run: RunDir) -> dict[str, Any]:
    """The content of `result.json`, read off the files of a run whose ranks have ended.

    Lists have one entry per stage, of replica 0; times are seconds since training began, memory is bytes. Tokens,
    losses and updates are those of all replicas together. `replica_wait` is the share of the run that a stage waited
    for the gradients of other replicas. Of a run that was resumed from a checkpoint, `tokens` and what it took to the
    target count from the very beginning; `updates`, `wall_time_s` and the speeds are those of this run. Time lost by a
    restart counts.
    """
    from paci_lab.audit import merge_findings
    from paci_lab.precision import precision_label
    from paci_lab.runtime.rundir import SCHEMA
    from paci_lab.spikes import loss_spikes

    spec = run.spec()
    schedule = spec.build_schedule()
    trace, metrics, validation = run.trace(), run.metrics(), run.validation()
    made = [run.updates_of(stage) for stage in range(schedule.stages)]
    ends = [rows[-1] for rows in made if rows]
    wall = max([row["end_ns"] for rank in range(spec.world_size) for row in run.updates(rank)[-1:]], default=0) / 1e9
    updates = len(metrics)
    origin = run.resumed()
    tokens_before, time_before = (origin["tokens"], origin["time_s"]) if origin else (0, 0.0)
    tokens = metrics[-1]["tokens"] if metrics else tokens_before
    hit = next(
        (row for row in validation if spec.target_loss is not None and row["val_loss"] <= spec.target_loss), None
    )
    traced = len(trace) > 0
    utilization = trace.utilization().tolist() if traced else None
    return {
        "schema": SCHEMA,
        "engine": spec.engine,
        "schedule": spec.schedule,
        "stages": spec.stages,
        "window": spec.window,
        "slack": spec.slack,
        "ranks": spec.world_size,
        "replicas": spec.replicas,
        "updates": updates,
        "microbatch_size": spec.microbatch_size,
        "optimizer": spec.optimizer,
        "learning_rate": spec.learning_rate,
        "seed": spec.seed,
        "device_kind": "cpu-paced" if spec.paced and spec.device == "cpu" else spec.device,
        "backend": spec.backend,
        "precision": spec.precision,
        "precision_label": precision_label(spec.precision, recompute=spec.recompute),
        "recompute": spec.recompute,
        "clip_norm": spec.clip_norm,
        "clip": None if spec.clip_norm is None else spec.clip,
        "tokens": tokens,
        "wall_time_s": wall,
        "tokens_per_second": (tokens - tokens_before) / wall if wall else 0.0,
        "utilization": utilization,
        "steady_utilization": trace.steady_utilization().tolist() if traced else None,
        "bubble_fraction": trace.bubble_fraction() if traced else None,
        "version_gap_max": trace.version_gap_max() if traced else None,
        "version_gap_mean": trace.version_gap_mean() if traced else None,
        "in_flight_peak": trace.in_flight_peak() if traced else None,
        "replica_wait": (trace.waiting_ns("wait-U") / max(trace.makespan_ns, 1)).tolist() if traced else None,
        "weight_copies": [row["weight_copies"] for row in ends],
        "optimizer_bytes": [row["optimizer_bytes"] for row in ends],
        "version_used": merge_findings([row["version_used"] for rows in made for row in rows if "version_used" in row]),
        "skipped_updates": [sum(row["skipped"] for row in rows) for rows in made],
        "clipped_updates": None
        if spec.clip_norm is None
        else [sum(row["clipping"][0] < 1 for row in rows if "clipping" in row) for rows in made],
        "loss_spikes": loss_spikes(metrics, [[row["grad_norm"] for row in rows] for rows in made]),
        "peak_memory_bytes": [row["peak_memory_bytes"] for row in ends],
        # A rank counts them for all of its stages, so its first stage has the count.
        "pace_overruns": [
            row["pace_overruns"] * (stage == schedule.stages_of(schedule.rank_of(stage))[0])
            for stage, row in enumerate(ends)
        ],
        "final_train_loss": metrics[-1]["train_loss"] if metrics else None,
        "final_val_loss": validation[-1]["val_loss"] if validation else None,
        "best_val_loss": min((row["val_loss"] for row in validation), default=None),
        "target_loss": spec.target_loss,
        "reached": None if spec.target_loss is None else hit is not None,
        "time_to_target_s": hit["time_s"] + time_before if hit else None,
        "updates_to_target": hit["update"] + 1 if hit else None,
        "tokens_to_target": hit["tokens"] if hit else None,
        "seconds_per_update": metrics[-1]["time_s"] / updates if updates else None,
        "resumed_from": origin,
        "restarts": len(run.restarts()),
    }
