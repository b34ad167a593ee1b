"""What precision and recomputation cost and give: `python -m benchmarks.precision [--losses 100] [--json FILE]`.

One middle stage of a PACI pipeline in this process: bytes that autograd keeps at most, weights left out; copies of the
weights; seconds for the forward and the backward of a micro-batch, medians of interleaved rounds with the smallest and
the largest; what the version audit finds. Then exact replays: loss after the same samples in each precision.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch

from benchmarks.machine import machine_line
from paci_lab.audit import audit_stage
from paci_lab.commands.common import add_json_argument, print_table, write_figures
from paci_lab.data import open_data
from paci_lab.exact_replay import replay
from paci_lab.lessons import Held
from paci_lab.measure import Evaluator
from paci_lab.models import build_model
from paci_lab.partition import even_partition
from paci_lab.runtime.stage import Stage
from paci_lab.spec import TrainSpec

STAGE = TrainSpec(
    model="gpt:blocks=8,width=128,heads=4,context=64",
    stages=4,
    window=4,
    updates=4,
    microbatch_size=4,
    partition=even_partition(10, 4),
    device="cpu",
)
SMALL = TrainSpec(
    model="gpt:blocks=6,width=32,heads=2,context=32",
    stages=4,
    window=4,
    microbatch_size=2,
    partition=even_partition(8, 4),
    learning_rate=3e-3,
    validation_batches=64,
    device="cpu",
)
CASES = {
    f"{precision}{', recomputed' if recompute else ''}": {"precision": precision, "recompute": recompute}
    for recompute in (False, True)
    for precision in ("fp32", "bf16", "autocast")
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--losses", type=int, default=100, help="updates of the replays (0: none)")
    add_json_argument(parser)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    figures = {name: dict[str, Any]() for name in CASES}
    stages = {name: _middle(STAGE.replace(**changes)) for name, changes in CASES.items()}
    for name, stage in stages.items():
        figures[name]["version_used"] = audit_stage(stage)
        stage.warm_up()
        figures[name]["held_bytes"], figures[name]["weight_copies"] = _held(stage), stage.weight_copies
    for number in range(asked.rounds):
        for name in list(stages)[:: 1 if number % 2 == 0 else -1]:
            figures[name].setdefault("seconds", []).append(_seconds(stages[name]))
    plain = statistics.median(figures["fp32"]["seconds"])
    print_table(
        f"A middle stage of 4, PACI, {STAGE.model}, {STAGE.microbatch_size} sequences, 3 micro-batches in flight",
        ["", "kept by autograd", "copies of the weights", "F + B", "against fp32", "Linear weight", "LayerNorm weight"],
        [
            (
                name,
                f"{found['held_bytes'] / 2**20:.1f} MiB",
                f"{found['weight_copies']:.2f}",
                _spread(found["seconds"]),
                f"{statistics.median(found['seconds']) / plain:.2f}×",
                found["version_used"]["Linear weight"],
                found["version_used"]["LayerNorm weight"],
            )
            for name, found in figures.items()
        ],
        notes=[machine_line()],
    )
    if asked.losses:
        for name, changes in CASES.items():
            figures[name] |= _losses(SMALL.replace(updates=asked.losses, **changes))
            print(name, figures[name]["val_loss"], file=sys.stderr)
        print_table(
            f"{SMALL.model}, PACI, 4 stages, window 4, {asked.losses} updates, seed 0: exact replay",
            ["", "validation loss", "with the weights rounded to bf16"],
            [(name, f"{found['val_loss']:.4f}", f"{found['val_loss_rounded']:.4f}") for name, found in figures.items()],
        )
    write_figures(asked.json, figures)
    return 0


def _middle(spec: TrainSpec) -> Stage:
    model = build_model(spec.model)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    return Stage(spec, model, data, spec.build_schedule(), 1, torch.device("cpu"))


def _messages(stage: Stage) -> tuple[torch.Tensor, torch.Tensor]:
    activation = stage._sample().detach()
    return activation, torch.randn(activation.shape, generator=torch.Generator().manual_seed(1)).to(activation.dtype)


def _held(stage: Stage) -> int:
    """Bytes at most, with as many micro-batches in flight as the schedule has; a kept input counts, in or out of it."""
    activation, gradient = _messages(stage)
    count = stage.schedule.in_flight(1)
    with Held(stage.layers) as held:
        for microbatch in range(count):
            stage.forward(microbatch, activation.clone())
        for microbatch in range(count):
            stage.backward(microbatch, gradient)
    inputs = activation.nbytes * count if stage.recomputes else 0  # kept by the stage itself, unseen by autograd
    stage.optimizer.zero_grad()
    return held.peak + inputs


def _seconds(stage: Stage) -> float:
    """Of one forward and its backward."""
    activation, gradient = _messages(stage)
    began = time.perf_counter()
    stage.forward(0, activation)
    stage.backward(0, gradient)
    return time.perf_counter() - began


def _losses(spec: TrainSpec) -> dict[str, float]:
    found = replay(spec)
    model = build_model(spec.model)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    rounded = {name: tensor.bfloat16().float() for name, tensor in found.parameters.items()}
    return {
        "val_loss": found.validation[-1][2],
        "val_loss_rounded": Evaluator(spec, model, data)(rounded),
    }


def _spread(seconds: list[float]) -> str:
    ms = [1e3 * s for s in seconds]
    return f"{statistics.median(ms):.1f} ms ({min(ms):.1f} to {max(ms):.1f})"


if __name__ == "__main__":
    sys.exit(main())
