"""The same training by torch.distributed.pipelining, to compare with: its 1F1B and interleaved 1F1B, over gloo.

Same layers, weights, micro-batches, loss, optimizer and paces as a flush run of paci_lab with this spec. See `train`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from paci_lab.data import open_data
from paci_lab.models import build_model
from paci_lab.optimizers import build_optimizer
from paci_lab.spec import TrainSpec

__all__ = ["train"]


def train(spec_file: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Start a process per rank and wait for them.

    Args:
        spec_file: a resolved spec of 1f1b or interleaved with a constant learning rate and no warm-up.
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
        for rank in range(spec.build_schedule().ranks)
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


class PacedStage(PipelineStage):
    """A stage whose forward and backward take their stated time, as paci_lab's do: real work, then sleep."""

    paces_ns: dict[str, int]

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        return self._paced("F", super().forward_one_chunk, arguments, options)

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        return self._paced("B", super().backward_one_chunk, arguments, options)

    def _paced(self, kind: str, work: Callable[..., Any], arguments: tuple, options: dict[str, Any]) -> Any:
        until = time.monotonic_ns() + self.paces_ns[kind]
        result = work(*arguments, **options)
        time.sleep(max(until - time.monotonic_ns(), 0) / 1e9)
        return result


def run_rank(spec: TrainSpec, folder: Path, rank: int) -> dict[str, list[float]]:
    """Train the stages of one rank; times are on the monotonic clock, which the ranks share."""
    ours = spec.build_schedule()
    torch.set_num_threads(spec.threads)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), ours.ranks), rank=rank, world_size=ours.ranks
    )
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    stages, optimizers = [], []
    for number in ours.stages_of(rank):
        first = sum(spec.partition[:number])
        layers = nn.Sequential(
            *(model.build_layer(layer, spec.seed) for layer in range(first, first + spec.partition[number]))
        )
        optimizers.append(
            build_optimizer(
                spec.optimizer,
                list(layers.named_parameters()),
                learning_rate=spec.learning_rate,
                weight_decay=spec.weight_decay,
                implementation=spec.optimizer_implementation,
            )
        )
        stages.append((PacedStage if spec.paced else PipelineStage)(layers, number, spec.stages, torch.device("cpu")))
        stages[-1].paces_ns = spec.pace_ns(number)
    window_tokens = sum(map(data.train_tokens, range(spec.window)))
    options = {
        "loss_fn": lambda output, targets: model.loss(output, targets) / window_tokens,
        "scale_grads": False,
    }
    schedule = (
        ScheduleInterleaved1F1B(stages, spec.window, **options)
        if ours.chunks > 1
        else Schedule1F1B(stages[0], spec.window, **options)
    )
    ends: list[float] = []
    losses: list[float] = []
    for start in range(0, spec.total_microbatches, spec.window):
        batches = [data.train(microbatch) for microbatch in range(start, start + spec.window)]
        if rank == 0:
            schedule.step(torch.cat([inputs for inputs, _ in batches]))
        elif rank == ours.ranks - 1:
            found: list[torch.Tensor] = []
            schedule.step(target=torch.cat([targets for _, targets in batches]), losses=found)
            losses += [
                float(loss.detach()) * spec.window for loss in found
            ]  # micro-batches of one size: mean per token
        else:
            schedule.step()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        ends.append(time.monotonic())
    dist.barrier()
    dist.destroy_process_group()
    return {"ends": ends, "losses": losses}


if __name__ == "__main__":
    print(json.dumps(run_rank(TrainSpec.load(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
