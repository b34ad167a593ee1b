"""`paci-lab export`: one window of a schedule in the form that torch.distributed.pipelining reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paci_lab.commands.common import console
from paci_lab.errors import InputError
from paci_lab.schedules import build_schedule, schedule_classes, to_csv

HELP = "write a flush schedule as CSV for torch.distributed.pipelining"
EXAMPLE = "paci-lab export zb-h1.csv --schedule zb-h1 --stages 4 --window 8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="where it goes; - for standard output")
    flushing = [name for name, cls in schedule_classes().items() if cls.flushes]
    parser.add_argument("--schedule", default="1f1b", help=" | ".join(flushing) + " | my_file.py:MySchedule")
    for flag, default, help in (
        ("--stages", 4, "pipeline stages"),
        ("--window", 8, "micro-batches per update"),
        ("--chunks", 0, "interleaved: stages on every rank; 0 for the schedule's own"),
    ):
        parser.add_argument(flag, type=int, default=default, help=f"{help} (default {default})")


def run(arguments: argparse.Namespace) -> int:
    schedule = build_schedule(
        arguments.schedule,
        stages=arguments.stages,
        window=arguments.window,
        microbatches=arguments.window,
        chunks=arguments.chunks,
    )
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
