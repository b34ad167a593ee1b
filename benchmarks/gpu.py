"""Exactness, version gaps, speed and memory on the GPUs of this machine: `python -m benchmarks.gpu [--json FILE]`.

With fewer GPUs than stages the stages share them and messages go through host memory (gloo); with enough, NCCL is used.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

from paci_lab.commands.common import print_table
from paci_lab.errors import InputError
from paci_lab.runtime.launch import launch
from paci_lab.simulate import simulate
from paci_lab.spec import TrainSpec

MODEL = "gpt:blocks=8,width=1024,heads=16,context=512"
BASE = TrainSpec(
    model=MODEL,
    microbatch_size=8,
    window=8,
    microbatches=64,
    device="cuda",
    learning_rate=3e-4,
    optimizer="adamw",
    validation_batches=2,
    evaluate="after",
)
"""Large enough that a stage computes for milliseconds, small enough for a few minutes in all."""


def main() -> int:
    """Run the table; exit code 1 when a check fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--most", type=int, default=4, help="most stages to try (default 4)")
    arguments = parser.parse_args()
    gpus = torch.cuda.device_count()
    if not gpus:
        raise InputError("GPUs", 0, "a machine with a GPU that torch can use", "run python -m benchmarks.engine here")
    counts = [n for n in (1, 2, 4, 8) if n <= arguments.most]
    rows, figures, plain, wrong = [], [], None, []
    with tempfile.TemporaryDirectory() as folder:
        for stages in counts:
            for schedule in ("1f1b", "paci"):
                spec = BASE.replace(schedule=schedule, stages=stages)
                run = launch(spec, Path(folder) / f"{schedule}-{stages}")
                result = run.wait(600)
                losses, trace = run.dir.losses(), run.trace()
                if plain is None:
                    plain = losses  # one stage, flush: plain gradient accumulation
                consistent = schedule == "1f1b" or stages == 1
                distance = max(abs(a - b) for a, b in zip(losses, plain, strict=True))
                ideal = simulate(run.spec.build_schedule())
                gaps = all(trace.version_gaps(s) == ideal.version_gaps(s) for s in range(stages))
                held = result["in_flight_peak"] == ideal.in_flight_peak()
                if (consistent and distance > 1e-2) or not gaps or not held:
                    wrong.append(run.path.name)
                rows.append(
                    [
                        f"{schedule}, {stages} stages",
                        result["backend"],
                        f"{result['tokens_per_second']:,.0f}",
                        f"{max(result['utilization']):.2f}",
                        f"{distance:.2g}" + ("" if consistent else " (asynchronous)"),
                        "equal" if gaps else "DIFFER",
                        "equal" if held else "DIFFER",
                        f"{max(result['weight_copies']):g}",
                        f"{sum(result['peak_memory_bytes']) / 2**20:,.0f}",
                    ]
                )
                figures.append(
                    {"name": run.path.name, "loss_distance": distance, "gaps_equal": gaps, "held_equal": held, **result}
                )
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(gpus))
    print_table(
        f"{gpus} GPU: {names}; {MODEL}, fp32, torch {torch.__version__}",
        [
            "run",
            "backend",
            "tokens/s",
            "busiest stage",
            "loss distance to 1 stage",
            "gaps",
            "in flight",
            "weight copies",
            "memory of all stages, MiB",
        ],
        rows,
        left=2,
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1))
    for name in wrong:
        print(f"check failed: {name}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
