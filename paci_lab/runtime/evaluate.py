"""The evaluator: validation losses of snapshots, in a process of its own that takes only time nobody else wants.

Reads the number of an update a line from standard input, answers {"update", "val_loss"} a line on standard output.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import shutil
import sys
import threading
from collections.abc import Iterator

import torch
from safetensors.torch import load_file

from paci_lab.data import open_data
from paci_lab.measure import Evaluator
from paci_lab.models import build_model
from paci_lab.runtime.rundir import RunDir

__all__ = ["main", "run_as_child"]


def main(run_path: str) -> None:
    """Answer for as long as the agent lives. Keeps the newest evaluated snapshot and removes the one before."""
    with contextlib.suppress(OSError, AttributeError):  # not every system has an idle class
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    run = RunDir(run_path)
    updates = _requests()
    first = next(updates)  # nothing is built before it is needed: that would take time from the first updates
    spec = run.spec()
    torch.set_num_threads(spec.threads)
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    evaluator = Evaluator(spec, model, data, device=spec.device)
    before = None
    for update in itertools.chain([first], updates):
        files = sorted(run.snapshot(update).glob("*.safetensors"))
        parameters = {name: tensor for file in files for name, tensor in load_file(file).items()}
        print(json.dumps({"update": update, "val_loss": evaluator(parameters)}), flush=True)
        if before is not None:
            shutil.rmtree(run.snapshot(before), ignore_errors=True)
        before = update


def _requests() -> Iterator[int]:
    """Numbers of updates as they are asked for. This process ends when the agent does, even in an evaluation."""
    lines: queue.SimpleQueue[int] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(int(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True, name="end-with-parent").start()
    while True:
        yield lines.get()


def run_as_child(arguments: list[str]) -> int:
    """Entry point of a forked evaluator."""
    main(*arguments)
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
