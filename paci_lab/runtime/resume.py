"""Going on: a new run from a checkpoint of another one, or the same run after a failure.

resumed.json    of a new run: the checkpoint it began with
restarts.jsonl  of a run that failed and went on: a line per restart
begun.json      when its training began, so that its clock goes on after a restart
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError
from paci_lab.runtime.checkpoint import Checkpoint, newest, remove_unfinished
from paci_lab.runtime.rundir import RunDir, write_json
from paci_lab.spec import TrainSpec

__all__ = ["adopt", "began_ns", "check_corpus", "note_origin", "record_restart", "recover"]

_FIXED = ("model", "context", "data", "microbatch_size", "replicas", "seed", "optimizer")


def adopt(spec: TrainSpec, checkpoint: Checkpoint) -> TrainSpec:
    """`spec` for a run that goes on from `checkpoint`, cut in the same places where it leaves that open.

    Raises InputError for a spec that cannot go on from there.
    """
    there = checkpoint.spec
    if spec.engine != "paci-lab":
        raise InputError("engine", spec.engine, "paci-lab: a peer knows no checkpoints", "leave engine out")
    if spec.partition == "auto" and spec.stages == there.stages:
        spec = spec.replace(partition=list(there.partition))
    if spec.context is None:
        spec = spec.replace(context=there.context)
    for name in _FIXED:
        if getattr(spec, name) != getattr(there, name):
            raise InputError(
                name,
                getattr(spec, name),
                f"{getattr(there, name)}, as in the checkpoint: the run would not be the same one",
                f"leave {name} out, or start a new run",
            )
    if checkpoint.microbatches % spec.window:
        allowed = f"a divisor of {checkpoint.microbatches}, the micro-batches behind the checkpoint"
        raise InputError("window", spec.window, allowed, f"keep window {there.window}")
    if spec.total_microbatches <= checkpoint.microbatches:
        raise InputError(
            "microbatches",
            spec.total_microbatches,
            f"more than the {checkpoint.microbatches} behind the checkpoint",
            f"give --updates above {checkpoint.microbatches // spec.window}",
        )
    return spec


def check_corpus(run_environment: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse data that has another content by now: the run would go on with other micro-batches."""
    here = run_environment.get("corpus_sha256")
    if checkpoint.corpus_sha256 not in (None, here):
        raise InputError(
            "data",
            checkpoint.spec.data,
            f"a corpus with the hash {checkpoint.corpus_sha256}",
            "bring back the same data",
        )


def note_origin(run: RunDir, checkpoint: Checkpoint, skipped: list[str]) -> None:
    """Write `resumed.json`. The path is relative to the run directory, so that both can be moved together."""
    there = checkpoint.spec
    write_json(
        run.path / "resumed.json",
        {
            "checkpoint": os.path.relpath(checkpoint.path.absolute(), run.path.absolute()),
            "update": checkpoint.update,
            "microbatches": checkpoint.microbatches,
            "tokens": checkpoint.tokens,
            "time_s": checkpoint.time_s,
            "schedule": there.schedule,
            "stages": there.stages,
            "window": there.window,
            "partition": there.partition,
            "passed_over": skipped,
        },
    )


def recover(run: RunDir) -> tuple[Checkpoint | None, list[str]]:
    """Bring a run that failed back to the newest point that it can go on from, and return that: its newest good
    checkpoint, else the one that it was resumed from, else None for the very beginning; with what was passed over.

    What was written behind that point is cut off. Killed in the middle, it can be done again.
    """
    checkpoint, skipped = newest(run.path)
    if checkpoint is None and (origin := run.resumed()) is not None:
        checkpoint = Checkpoint.read(run.path / origin["checkpoint"])
    microbatches = checkpoint.microbatches if checkpoint else 0
    last = microbatches // run.spec().window - 1
    for path in [*(run.path / "trace").glob("*.jsonl"), *(run.path / "updates").glob("*.jsonl")]:
        _cut(path, last)
    _keep_rows(run.metrics_file, last)
    for folder in ("snapshots", "checkpoints"):
        for path in (run.path / folder).glob("update-*"):
            number = path.name.removeprefix("update-").removesuffix(".part")
            if path.name.endswith(".part") or (number.isdecimal() and int(number) > last):
                shutil.rmtree(path, ignore_errors=True)
    remove_unfinished(run)
    for path in (run.path / "log").glob("rank*.error.json"):
        path.unlink()
    return checkpoint, skipped


def _cut(path: Path, last: int) -> None:
    """Cut a file of lines in front of the first whose update is above `last`, or that is cut short itself. In front of
    it all lines are older, for a stage is drained there: it is found by halving, not by reading a long run's trace."""
    with open(path, "r+b") as file:
        low, high = 0, file.seek(0, os.SEEK_END)
        while low < high:
            middle = (low + high) // 2
            if middle:
                file.seek(middle - 1)
                file.readline()
            begin = file.tell() if middle else file.seek(0)
            line = file.readline()
            if not line.endswith(b"\n") or json.loads(line)["update"] > last:
                high = middle
            else:
                low = begin + len(line)
        file.truncate(low)


def _keep_rows(path: Path, last: int) -> None:
    """The same for rows that are not in the order of their updates: a validation loss comes late."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    part = path.with_name(path.name + ".part")
    part.write_bytes(b"".join(li for li in lines if li.endswith(b"\n") and json.loads(li)["update"] <= last))
    os.replace(part, path)


def record_restart(run: RunDir, cause: str, checkpoint: Checkpoint | None, skipped: list[str]) -> dict[str, Any]:
    """Append to `restarts.jsonl` and return the row."""
    begun = _begun_unix_ns(run)
    row = {
        "time_s": 0.0 if begun is None else (time.time_ns() - begun) / 1e9,
        "cause": cause,
        "from_update": checkpoint.microbatches // run.spec().window if checkpoint else 0,
        "passed_over": skipped,
    }
    with open(run.path / "restarts.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return row


def began_ns(run: RunDir) -> int:
    """When training began, on this process's monotonic clock: now at the first start; after a restart, so far back that
    the time in which nothing ran counts as well."""
    now, unix = time.monotonic_ns(), time.time_ns()
    begun = _begun_unix_ns(run)
    if begun is None:
        write_json(run.path / "begun.json", {"unix_ns": unix})
        return now
    last = max((row["time_s"] for row in run.metrics()), default=0.0)
    return now - max(unix - begun, round(last * 1e9))  # a clock that was set back must not let time run backwards


def _begun_unix_ns(run: RunDir) -> int | None:
    try:
        return int(json.loads((run.path / "begun.json").read_text(encoding="utf-8"))["unix_ns"])
    except FileNotFoundError:
        return None
