"""What one rank of a run holds at most, measured without the others: `python -m paci_lab.runtime.probe LOGS`.

Reads {"spec", "rank", "limit"} a line, answers {"peak", "stopped", "error"} a line. Every probe is a child of its own
that ends itself as soon as it holds more than its limit, so that no probe can take the machine's memory. The child does
what the rank would do, operation by operation, with made-up messages in place of its neighbours'.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path

import torch

from paci_lab.data import open_data
from paci_lab.errors import InputError
from paci_lab.models import build_model
from paci_lab.runtime.child import Child, may_fork
from paci_lab.runtime.p2p import AHEAD
from paci_lab.runtime.process import end_with_parent, peak_memory
from paci_lab.runtime.stage import Stage
from paci_lab.schedules import Schedule, weight_copies
from paci_lab.spec import TrainSpec

__all__ = ["hold", "main", "run_as_child", "shortest"]

_OVER = 4
"""Exit code of a probe that held more than its limit."""

_LOOK_S = 0.002


def shortest(spec: TrainSpec) -> TrainSpec:
    """`spec` over as few micro-batches as fill every rank to what it would hold in the whole run: a smaller window if
    that keeps activations and copies of the weights as they are, and three windows."""

    def held(schedule: Schedule) -> list[tuple[int, float]]:
        excerpt = schedule.excerpt()
        return [(schedule.in_flight(s), weight_copies(excerpt, s)) for s in range(schedule.stages)]

    def cut(window: int) -> TrainSpec:
        count = 3 * window + spec.stages
        return spec.replace(window=window, updates=None, microbatches=count - count % window)

    wanted = held(cut(spec.window).build_schedule())
    window = 1
    while window < spec.window:
        with contextlib.suppress(InputError):  # a window that this schedule cannot have
            if held(cut(window).build_schedule()) == wanted:
                return cut(window)
        window *= 2
    return cut(spec.window)


def hold(spec: TrainSpec, rank: int) -> int:
    """Do what `rank` of a resolved `spec` does; returns its peak in bytes, as a run counts it."""
    torch.set_num_threads(spec.threads)
    device = torch.device(spec.device)
    spec = shortest(spec)
    schedule = spec.build_schedule()
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    stages = {s: Stage(spec, model, data, schedule, s, device) for s in schedule.stages_of(rank)}
    shape = model.boundary_shape(spec.microbatch_size)
    for stage in stages.values():
        stage.warm_up()
    posted = [torch.ones(shape, device=device) for _ in range(2 * AHEAD * len(stages))]  # receives, always ahead
    sent = {s: deque(maxlen=schedule.in_flight(s) + AHEAD) for s in stages}  # kept until they are known to be there
    for op in schedule.ops(rank):
        stage = stages[op.stage]
        message = torch.full(shape, 1e-3, device=device) if op.kind in "FBI" else None
        if op.kind == "F":
            made = stage.forward(op.microbatch, None if stage.first else message)
        elif op.kind == "B":
            made = stage.backward(op.microbatch, None if stage.last else message)
        elif op.kind == "I":
            made = stage.input_gradient(op.microbatch, None if stage.last else message)
        elif op.kind == "W":
            made = stage.weight_gradient(op.microbatch)
        else:
            made = None
            stage.update(op.microbatch)
        if made is not None:
            sent[op.stage].append(made)
    del posted
    return peak_memory(device)


def run_as_child(arguments: list[str]) -> int:
    """One probe; prints its peak."""
    end_with_parent()
    asked = json.loads(arguments[0])
    spec, limit = TrainSpec.from_dict(asked["spec"]), asked["limit"]
    if spec.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0))
    else:
        threading.Thread(target=_end_above, args=(limit,), daemon=True, name="limit").start()
    try:
        peak = hold(spec, asked["rank"])
    except torch.OutOfMemoryError:
        return _OVER
    os.write(1, f"{peak}\n".encode())
    return 0


def _end_above(limit: int) -> None:
    while peak_memory(torch.device("cpu")) <= limit:
        time.sleep(_LOOK_S)
    os._exit(_OVER)


def _probe(asked: dict, log: Path, parent: int) -> dict:
    spec = TrainSpec.from_dict(asked["spec"])
    child = Child(sys.modules[__name__], [json.dumps(asked)], log, fork=may_fork(spec), others=[])
    while (code := child.poll()) is None:
        if os.getppid() != parent:  # nobody waits for the answer
            child.kill()
            sys.exit(1)
        time.sleep(0.005)
    said = b""
    if code == 0:
        os.set_blocking(child.output, True)
        said = os.read(child.output, 64)
    for end in (child.input, child.output):
        os.close(end)
    if code in (0, _OVER):
        return {"peak": int(said) if said else asked["limit"], "stopped": code == _OVER, "error": None}
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return {"peak": None, "stopped": False, "error": lines[-1] if lines else child.how_it_ended()}


def main(logs: str) -> None:
    """Answer for as long as the one who asks lives; what the probes print goes into the folder `logs`."""
    parent = os.getppid()
    for number, line in enumerate(sys.stdin):
        print(json.dumps(_probe(json.loads(line), Path(logs) / f"{number}.log", parent)), flush=True)


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):  # a probe that could not be forked
        sys.exit(run_as_child(sys.argv[1:]))
    main(sys.argv[1])
