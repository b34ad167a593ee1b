"""The same training by torch.distributed.pipelining's Schedule1F1B, to compare with: one process per stage over gloo.

Same layers, weights, micro-batches, loss and optimizer as a flush run of paci_lab with this spec. Run by `train`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from paci_lab.data import open_data
from paci_lab.models import build_model
from paci_lab.optimizers import build_optimizer
from paci_lab.spec import TrainSpec

__all__ = ["train"]


def train(spec_file: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Start a process per stage and wait for them.

    Args:
        spec_file: a resolved flush spec with a constant learning rate and no warm-up.
        folder: new, for the meeting point of the processes.

    Returns (end of every update in seconds, on the slowest rank; loss of every micro-batch).
    """
    folder.mkdir()
    spec = TrainSpec.load(spec_file)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.torch_pipeline", str(spec_file), str(folder), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(spec.stages)
    ]
    try:
        said = [json.loads(rank.communicate(timeout=300)[0] or "null") for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("torch's own pipeline failed: its error is above")
    return [max(ends) for ends in zip(*(one["ends"] for one in said), strict=True)], said[-1]["losses"]


def run_rank(spec: TrainSpec, folder: Path, rank: int) -> dict[str, list[float]]:
    """Train one stage; times are on the monotonic clock, which the ranks share."""
    torch.set_num_threads(spec.threads)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), spec.stages), rank=rank, world_size=spec.stages
    )
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    first = sum(spec.partition[:rank])
    layers = nn.Sequential(
        *(model.build_layer(layer, spec.seed) for layer in range(first, first + spec.partition[rank]))
    )
    optimizer = build_optimizer(
        spec.optimizer,
        list(layers.named_parameters()),
        learning_rate=spec.learning_rate,
        weight_decay=spec.weight_decay,
        implementation=spec.optimizer_implementation,
    )
    stage = PipelineStage(layers, rank, spec.stages, torch.device("cpu"))
    window_tokens = sum(map(data.train_tokens, range(spec.window)))
    schedule = Schedule1F1B(
        stage,
        spec.window,
        loss_fn=lambda output, targets: model.loss(output, targets) / window_tokens,
        scale_grads=False,
    )
    ends: list[float] = []
    losses: list[float] = []
    for start in range(0, spec.total_microbatches, spec.window):
        batches = [data.train(microbatch) for microbatch in range(start, start + spec.window)]
        if rank == 0:
            schedule.step(torch.cat([inputs for inputs, _ in batches]))
        elif rank == spec.stages - 1:
            found: list[torch.Tensor] = []
            schedule.step(target=torch.cat([targets for _, targets in batches]), losses=found)
            losses += [
                float(loss.detach()) * spec.window for loss in found
            ]  # micro-batches of one size: mean per token
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.monotonic())
    dist.barrier()
    dist.destroy_process_group()
    return {"ends": ends, "losses": losses}


if __name__ == "__main__":
    print(json.dumps(run_rank(TrainSpec.load(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
