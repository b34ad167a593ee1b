"""`paci-lab export`: what others read: a schedule for torch.distributed.pipelining, or the weights of a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paci_lab.commands.common import console
from paci_lab.errors import InputError
from paci_lab.schedules import build_schedule, schedule_classes, to_csv

HELP = "write a flush schedule as CSV for torch.distributed.pipelining, or the weights of a run as one safetensors file"
EXAMPLE = """paci-lab export zb-h1.csv --schedule zb-h1 --stages 4 --window 8
          paci-lab export runs/mine --output weights.safetensors"""

_SIZES = {"stages": 4, "window": 8, "chunks": 0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="where the schedule goes, - for standard output; with --output the run or checkpoint",
    )
    parser.add_argument("--output", metavar="WEIGHTS", help="write the weights of the run or checkpoint FILE here")
    flushing = [name for name, cls in schedule_classes().items() if cls.flushes]
    parser.add_argument("--schedule", help=" | ".join(flushing) + " | my_file.py:MySchedule (default 1f1b)")
    for name, help in (
        ("stages", "pipeline stages"),
        ("window", "micro-batches per update"),
        ("chunks", "interleaved: stages on every rank; 0 for the schedule's own"),
    ):
        parser.add_argument(f"--{name}", type=int, help=f"{help} (default {_SIZES[name]})")


def _export_weights(arguments: argparse.Namespace) -> int:
    from safetensors.torch import save_file

    from paci_lab.runtime.checkpoint import Checkpoint
    from paci_lab.runtime.rundir import RunDir

    for name in ("schedule", *_SIZES):
        if (value := getattr(arguments, name)) is not None:
            raise InputError(f"--{name}", value, "nothing with --output, which writes weights", "leave it out")
    if (Path(arguments.file) / "spec.toml").is_file():
        run = RunDir.open(arguments.file)
        spec, weights = run.spec(), run.parameters()
    else:
        checkpoint = Checkpoint.read(Path(arguments.file))
        spec, weights = checkpoint.spec, checkpoint.weights()
    try:
        save_file(weights, arguments.output, metadata={"model": spec.model, "context": str(spec.context)})
    except Exception as error:  # safetensors has errors of its own for files
        raise InputError(
            "--output", arguments.output, "a file that can be written", f"choose another ({error})"
        ) from None
    console().print(
        f"{arguments.output}: {sum(t.numel() for t in weights.values()):,} weights of {spec.model}; "
        "paci_lab.models.load_weights(model, file) loads them",
        markup=False,
        soft_wrap=True,
    )
    return 0


def run(arguments: argparse.Namespace) -> int:
    if arguments.output is not None:
        return _export_weights(arguments)
    sizes = {
        name: default if getattr(arguments, name) is None else getattr(arguments, name)
        for name, default in _SIZES.items()
    }
    schedule = build_schedule(arguments.schedule or "1f1b", microbatches=sizes["window"], **sizes)
    text = to_csv(schedule)
    if arguments.file == "-":
        sys.stdout.write(text)
        return 0
    try:
        Path(arguments.file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            "FILE", arguments.file, "a file that can be written, or -", f"choose another ({error})"
        ) from None
    console().print(f'{arguments.file}: torch reads it with _load_csv(file, format="compute_only")')
    return 0
