"""What `--dry-run` prints: a table per stage and what the whole run takes."""

from __future__ import annotations

import dataclasses
from typing import Any

from paci_lab.commands.common import console, print_table
from paci_lab.dry_run import dry_run
from paci_lab.precision import precision_label
from paci_lab.spec import TrainSpec

__all__ = ["print_dry_run"]


def print_dry_run(spec: TrainSpec) -> dict[str, Any]:
    """Print what `spec` takes, start nothing; returns the figures for --json."""
    found = dry_run(spec)
    rows = [
        (
            str(number),
            str(stage.layers),
            f"{stage.parameters / 1e6:,.1f} M",
            f"{stage.work:.1%}",
            _size(stage.weights + stage.gradients),
            "not known" if stage.optimizer is None else _size(stage.optimizer),
            f"{stage.held} x {_size(stage.activation)}" + (f" + {_size(stage.rebuilt)}" if stage.rebuilt else ""),
            _size(stage.bytes),
            str(stage.gap),
        )
        for number, stage in enumerate(found.stages)
    ]
    print_table(
        f"{spec.model}, {spec.schedule}, {spec.stages} stages, window {spec.window}: estimated, nothing was started",
        ["stage", "layers", "parameters", "work", "weights, gradients", "optimizer", "activations", "memory", "gap"],
        rows,
        notes=[
            f"{precision_label(spec.precision, recompute=spec.recompute)}; "
            + ("only inputs kept and one micro-batch rebuilt at a time" if spec.recompute else "no recomputation")
            + "; work from the sizes of matrices. gap: most updates between F and B."
        ],
    )
    per_update = spec.window * spec.microbatch_size * spec.replicas
    say = console().print
    say(f"parameters    {found.parameters / 1e6:,.1f} M")
    each = f" on each of {spec.replicas} replicas" if spec.replicas > 1 else ""
    say(
        f"batch         {per_update:,} sequences an update: {spec.window} micro-batches of {spec.microbatch_size}{each}"
    )
    if spec.replicas > 1:
        say(f"ranks         {spec.world_size}: {spec.replicas} replicas of the pipeline above")
    say(f"tokens        {found.tokens:,} from {spec.data}, which was not opened", highlight=False)
    say(f"disk          {_size(found.disk_bytes)}: the trace and two snapshots of the weights")
    if spec.schedule != "1f1b":
        say(
            f"throughput    {found.against_flush:.2f} times that of 1F1B-flush with m = {spec.window}, simulated with "
            f"this partition, B = {3 if spec.recompute else 2}F and messages that take no time"
        )
    return {
        "spec": spec.to_dict(),
        "stages": [
            {**dataclasses.asdict(stage), "activations": stage.activations, "bytes": stage.bytes}
            for stage in found.stages
        ],
        "parameters": found.parameters,
        "tokens": found.tokens,
        "disk_bytes": found.disk_bytes,
        "throughput_against_flush": found.against_flush,
    }


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
