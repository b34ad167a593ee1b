"""The run directory: everything a run says, in files that anyone can read during the run and years later.

spec.toml              the resolved TrainSpec: running it again repeats the run
environment.json       versions, device, CPU and GPU model, git state, corpus hash
clock.json             runs over several hosts: how far each clock is from rank 0's, at the start and the end
trace/rank<r>.jsonl    one TraceEvent a line; ranks count through the replicas one after the other
updates/rank<r>.jsonl  one line per update of a stage: losses, gradient norm, learning rate, peak memory
metrics.jsonl          the updates of all stages put together, and the validation losses
log/rank<r>.log        what that rank printed; log/agent.log, what the agent did
log/rank<r>.now        the operation that rank is at
snapshots/update-<u>/  the weights after update u, one safetensors file a stage
checkpoints/           where the run can go on from: see `checkpoint`
resumed.json           the checkpoint it began with; begun.json, when; restarts.jsonl, its failures: see `resume`
result.json            written last: its presence means the run ended well
failure.json           why it did not
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError
from paci_lab.reading import METRICS, MOST_BYTES, check_row, file_inside, parse_json, read_json
from paci_lab.runtime.alignment import doubt_about_clocks
from paci_lab.schedules import names_a_file
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace, read_events

__all__ = ["SCHEMA", "LineTail", "RunDir", "write_json"]

SCHEMA = 1
"""Version of this layout; a reader refuses a larger one."""

_UPDATE = {
    **dict.fromkeys(("stage", "update", "tokens", "peak_memory_bytes", "pace_overruns"), "count"),
    **dict.fromkeys(("end_ns", "learning_rate", "weight_copies"), "number"),
    "grad_norm": "number or null",
    "losses": "numbers",
    **dict.fromkeys(("snapshot", "skipped"), "switch"),
}


class RunDir:
    """Paths and readers of one run directory. Reading never fails on a run that is still going or was killed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """An existing run directory; raises InputError when `path` is not one or is of a newer schema."""
        run = cls(path)
        if not (run.path / "spec.toml").is_file():
            raise InputError("run directory", path, "a folder that holds a spec.toml", "name a folder under runs/")
        schema = (run.environment() or {}).get("schema", SCHEMA)
        if not isinstance(schema, int) or schema > SCHEMA:
            raise InputError(
                "run directory", path, f"schema {SCHEMA} or older, this one has {schema}", "update paci_lab"
            )
        return run

    def create(self, spec: TrainSpec, environment: Mapping[str, Any]) -> None:
        """Make the folders, the spec and the environment; raises InputError when the folder holds something already."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise InputError("run directory", self.path, "a new or empty folder", "name another one with --run-dir")
            for folder in ("trace", "updates", "log", "snapshots"):
                (self.path / folder).mkdir()
            write_json(self.path / "environment.json", {"schema": SCHEMA, **environment})
            spec.save(self.path / "spec.toml")
        except OSError as error:
            raise InputError(
                "run directory", self.path, "a folder that can be written", f"choose another one ({error})"
            ) from None

    # -- where things are -----------------------------------------------------------------------------------------
    def trace_file(self, rank: int) -> Path:
        return self.path / "trace" / f"rank{rank}.jsonl"

    def updates_file(self, rank: int) -> Path:
        return self.path / "updates" / f"rank{rank}.jsonl"

    def log_file(self, rank: int) -> Path:
        return self.path / "log" / f"rank{rank}.log"

    def now_file(self, rank: int) -> Path:
        return self.path / "log" / f"rank{rank}.now"

    def error_file(self, rank: int) -> Path:
        return self.path / "log" / f"rank{rank}.error.json"

    def snapshot(self, update: int, stage: int | None = None) -> Path:
        folder = self.path / "snapshots" / f"update-{update:06d}"
        return folder if stage is None else folder / f"stage-{stage}.safetensors"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    # -- what they say --------------------------------------------------------------------------------------------
    def spec(self) -> TrainSpec:
        """The resolved spec. Code of the user's own that it names is not imported, see `TrainSpec`."""
        file_inside(self.path, self.path / "spec.toml", most_bytes=MOST_BYTES)
        return TrainSpec.load(self.path / "spec.toml")

    def environment(self) -> dict[str, Any] | None:
        return read_json(self.path, self.path / "environment.json")

    def result(self) -> dict[str, Any] | None:
        """What `result.json` holds; None when the run has not ended well."""
        return read_json(self.path, self.path / "result.json")

    def failure(self) -> dict[str, Any] | None:
        """What `failure.json` holds; None when the run has not failed."""
        return read_json(self.path, self.path / "failure.json")

    def resumed(self) -> dict[str, Any] | None:
        """What `resumed.json` holds; None for a run that began at the beginning."""
        return read_json(self.path, self.path / "resumed.json")

    def restarts(self) -> list[dict[str, Any]]:
        """A row per restart after a failure."""
        return _read_lines(self, self.path / "restarts.jsonl", {"time_s": "number", "from_update": "count"})

    def trace(self, replica: int = 0) -> Trace:
        """All events of one replica's pipeline written so far, on one clock. Its `source` says so where several hosts'
        clocks forbid comparing them (`alignment`). Raises InputError when there is no such replica."""
        spec = self.spec()
        if not 0 <= replica < spec.replicas:
            raise InputError("replica", replica, f"0 to {spec.replicas - 1}", "leave it out for the first")
        ranks = self._ranks(spec)
        paths = map(self.trace_file, range(replica * ranks, (replica + 1) * ranks))
        files = [path for path in paths if file_inside(self.path, path)]
        events = [event for path in files for event in read_events(path, stages=spec.stages, replicas=spec.replicas)]
        source = "measured on paced devices" if spec.paced else "measured"
        if spec.replicas > 1:
            source += f", replica {replica} of {spec.replicas}"
        hosts = (self.environment() or {}).get("hosts", 1)
        clock = read_json(self.path, self.path / "clock.json")
        shortest = min((e.end_ns - e.start_ns for e in events if e.op in ("F", "B", "I", "W")), default=0)
        if doubt := doubt_about_clocks(clock, hosts=hosts if isinstance(hosts, int) else 1, shortest_ns=shortest):
            source += f"; {doubt}"
        return Trace(events, source=source, stages=spec.stages)

    def updates(self, rank: int) -> list[dict[str, Any]]:
        """Update lines of one rank, in order."""
        return _read_lines(self, self.updates_file(rank), _UPDATE)

    def metrics(self) -> list[dict[str, Any]]:
        """Rows with `train_loss`, in order."""
        return [row for row in _read_lines(self, self.metrics_file, METRICS) if "train_loss" in row]

    def validation(self) -> list[dict[str, Any]]:
        """Rows with `val_loss`, in order."""
        return [row for row in _read_lines(self, self.metrics_file, METRICS) if "val_loss" in row]

    def losses(self) -> list[float]:
        """Mean loss per token of every micro-batch, in the order of the data stream; replicas take turns in it."""
        spec = self.spec()
        rows = [self.updates_of(spec.stages - 1, replica) for replica in range(spec.replicas)]
        by_replica = [[loss for row in own for loss in row["losses"]] for own in rows]
        return [loss for turn in zip(*by_replica, strict=False) for loss in turn]

    def updates_of(self, stage: int, replica: int = 0) -> list[dict[str, Any]]:
        """Update lines of one stage of one replica, in order."""
        spec = self.spec()
        ranks = self._ranks(spec)
        # Which rank a stage is on, the user's own code knows alone: it is not asked, and every rank's file is.
        places = range(ranks) if names_a_file(spec.schedule) else [spec.build_schedule().rank_of(stage)]
        rows = (row for place in places for row in self.updates(replica * ranks + place))
        return [row for row in rows if row["stage"] == stage]

    def _ranks(self, spec: TrainSpec) -> int:
        """Of one replica; where only the user's own code knows, as many as have written."""
        if not names_a_file(spec.schedule):
            return spec.build_schedule().ranks
        return len([*(self.path / "trace").glob("rank*.jsonl")]) // spec.replicas

    def parameters(self) -> dict[str, Any]:
        """Tensors of the newest whole snapshot by name; raises InputError when there is none."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        stages = self.spec().stages  # a run that was stopped leaves a snapshot that only some stages saved
        folders = [
            f for f in sorted((self.path / "snapshots").glob("update-*")) if len([*f.glob("*.safetensors")]) == stages
        ]
        if not folders:
            raise InputError(
                "run directory", self.path, "a run with a snapshot", "train with evaluate_every above 0, or to the end"
            )
        files = [file for file in sorted(folders[-1].glob("*.safetensors")) if file_inside(self.path, file)]
        try:
            return {name: tensor for file in files for name, tensor in load_file(file).items()}
        except SafetensorError as error:
            raise InputError(
                "snapshot", folders[-1], "whole safetensors files", f"copy the run again ({error})"
            ) from None


class LineTail:
    """Reads a file of lines that another process is appending to; `rows` gives the complete new ones, and all of them
    again when the file was cut, as a restart does."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def rows(self) -> list[dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                if self._offset:
                    file.seek(self._offset - 1)
                    if file.read(1) != b"\n":
                        self._offset = 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        try:
            return [parse_json(line) for line in text.splitlines()]
        except ValueError as error:
            raise InputError(str(self.path), "a line of it", "a JSON object", f"remove the line ({error})") from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file in one step: a reader sees all of it or none."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _read_lines(run: RunDir, path: Path, kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """Lines of a file of a run that anybody may have written."""
    if file_inside(run.path, path) is None:
        return []
    return [check_row(row, kinds, f"{path} line {number}") for number, row in enumerate(LineTail(path).rows(), 1)]
