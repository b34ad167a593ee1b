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
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace, read_events

__all__ = ["SCHEMA", "LineTail", "RunDir", "write_json"]

SCHEMA = 1
"""Version of this layout; a reader refuses a larger one."""


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
        """The resolved spec."""
        return TrainSpec.load(self.path / "spec.toml")

    def environment(self) -> dict[str, Any] | None:
        return _read_json(self.path / "environment.json")

    def result(self) -> dict[str, Any] | None:
        """What `result.json` holds; None when the run has not ended well."""
        return _read_json(self.path / "result.json")

    def failure(self) -> dict[str, Any] | None:
        """What `failure.json` holds; None when the run has not failed."""
        return _read_json(self.path / "failure.json")

    def resumed(self) -> dict[str, Any] | None:
        """What `resumed.json` holds; None for a run that began at the beginning."""
        return _read_json(self.path / "resumed.json")

    def restarts(self) -> list[dict[str, Any]]:
        """A row per restart after a failure."""
        return _read_lines(self.path / "restarts.jsonl")

    def trace(self, replica: int = 0) -> Trace:
        """All events of one replica's pipeline written so far. Raises InputError when there is no such replica."""
        spec = self.spec()
        if not 0 <= replica < spec.replicas:
            raise InputError("replica", replica, f"0 to {spec.replicas - 1}", "leave it out for the first")
        ranks = spec.build_schedule().ranks
        files = map(self.trace_file, range(replica * ranks, (replica + 1) * ranks))
        events = [event for path in files if path.exists() for event in read_events(path)]
        source = "measured on paced devices" if spec.paced else "measured"
        if spec.replicas > 1:
            source += f", replica {replica} of {spec.replicas}"
        return Trace(events, source=source, stages=spec.stages)

    def updates(self, rank: int) -> list[dict[str, Any]]:
        """Update lines of one rank, in order."""
        return _read_lines(self.updates_file(rank))

    def metrics(self) -> list[dict[str, Any]]:
        """Rows with `train_loss`, in order."""
        return [row for row in _read_lines(self.metrics_file) if "train_loss" in row]

    def validation(self) -> list[dict[str, Any]]:
        """Rows with `val_loss`, in order."""
        return [row for row in _read_lines(self.metrics_file) if "val_loss" in row]

    def losses(self) -> list[float]:
        """Mean loss per token of every micro-batch, in the order of the data stream; replicas take turns in it."""
        spec = self.spec()
        rows = [self.updates_of(spec.stages - 1, replica) for replica in range(spec.replicas)]
        by_replica = [[loss for row in own for loss in row["losses"]] for own in rows]
        return [loss for turn in zip(*by_replica, strict=False) for loss in turn]

    def updates_of(self, stage: int, replica: int = 0) -> list[dict[str, Any]]:
        """Update lines of one stage of one replica, in order."""
        schedule = self.spec().build_schedule()
        rank = replica * schedule.ranks + schedule.rank_of(stage)
        return [row for row in self.updates(rank) if row["stage"] == stage]

    def parameters(self) -> dict[str, Any]:
        """Tensors of the newest whole snapshot by name; raises InputError when there is none."""
        from safetensors.torch import load_file

        stages = self.spec().stages  # a run that was stopped leaves a snapshot that only some stages saved
        folders = [
            f for f in sorted((self.path / "snapshots").glob("update-*")) if len([*f.glob("*.safetensors")]) == stages
        ]
        if not folders:
            raise InputError(
                "run directory", self.path, "a run with a snapshot", "train with evaluate_every above 0, or to the end"
            )
        return {
            name: tensor
            for file in sorted(folders[-1].glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }


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
        return [json.loads(line) for line in text.splitlines()]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file in one step: a reader sees all of it or none."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(str(path), "its content", "a JSON object", f"remove the file ({error})") from None
    if not isinstance(value, dict):
        raise InputError(str(path), type(value).__name__, "a JSON object", "remove the file")
    return value


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return LineTail(path).rows()
