"""Checkpoints: all that a run needs to go on from a drained point, written whole or not at all, and checked by hash.

    checkpoints/update-<u>/        the state after update u
        manifest.json              counters, the spec, and size and SHA-256 of every other file
        stage-<s>.safetensors      what stage s is (`state`); plain numbers stand in the file's header
        stage-<s>-replica-<r>…     what only replica r has of it, where replicas share out the optimizer

Every stage writes its own file into `update-<u>.part`, at its own moment of the same drained point. When the agent has
heard of all of them it writes the manifest and renames the folder. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paci_lab.errors import InputError
from paci_lab.runtime.rundir import RunDir, write_json
from paci_lab.spec import TrainSpec

if TYPE_CHECKING:
    from torch import Tensor

    from paci_lab.runtime.stage import Stage
    from paci_lab.schedules import Schedule

__all__ = ["Checkpoint", "checkpoint_due", "newest", "open_checkpoint", "remove_unfinished", "save_part", "seal"]

SCHEMA = 1
_MANIFEST = "manifest.json"
_OF_NO_LAYER = ("random/", "clipping/")  # beginnings of such tensors' names
_MOST = 2**62
_MOST_BYTES = 10**7  # of a manifest


def checkpoint_due(spec: TrainSpec, update: int) -> bool:
    """True when every stage saves its part after `update`: where a segment ends, the last one included, so that a run
    can be made longer. Not after a last window that is cut short: no longer run has an update there."""
    if not spec.checkpoint_every or (update + 1) * spec.window > spec.total_microbatches:
        return False
    return (update + 1) % spec.checkpoint_every == 0 or (update + 1) * spec.window == spec.total_microbatches


# -- writing ----------------------------------------------------------------------------------------------------------
def save_part(run: RunDir, stage: Stage, update: int) -> dict[str, Any]:
    """Write the file of one stage and return its entry of the manifest. Raises OSError with the cause."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from paci_lab.runtime.state import stage_state

    tensors, values = stage_state(stage)
    path = _folder(run, update).with_suffix(".part") / _file_name(stage.stage, stage.replica)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata={"values": json.dumps(values)})
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": _sha256(path)}
    except (OSError, SafetensorError) as error:
        path.unlink(missing_ok=True)  # on a full disk this is the room in which the cause is written down
        raise OSError(f"the checkpoint after update {update} could not be written: {error}") from error


def seal(run: RunDir, spec: TrainSpec, update: int, files: list[dict[str, Any]], *, tokens: int, time_s: float) -> None:
    """All stages have written: make the checkpoint whole, and remove those that are older than are to be kept."""
    part, whole = _folder(run, update).with_suffix(".part"), _folder(run, update)
    for name in [file["name"] for file in files]:
        _sync(part / name)  # here, where no stage waits for it: the checkpoint counts from the renaming on
    write_json(
        part / _MANIFEST,
        {
            "schema": SCHEMA,
            "update": update,
            "microbatches": (update + 1) * spec.window,
            "tokens": tokens,
            "time_s": time_s,
            "corpus_sha256": (run.environment() or {}).get("corpus_sha256"),
            "spec": spec.to_dict(),
            "files": files,
        },
    )
    _sync(part / _MANIFEST)
    os.rename(part, whole)
    _sync(whole.parent)
    for old in _found(run.path)[: -spec.keep_checkpoints]:
        shutil.rmtree(old, ignore_errors=True)


def remove_unfinished(run: RunDir) -> None:
    """Remove what stages wrote of a checkpoint that never became whole."""
    for part in (run.path / "checkpoints").glob("update-*.part"):
        shutil.rmtree(part, ignore_errors=True)


def _file_name(stage: int, replica: int) -> str:
    return f"stage-{stage}{f'-replica-{replica}' if replica else ''}.safetensors"


def _folder(run: RunDir, update: int) -> Path:
    return run.path / "checkpoints" / f"update-{update:06d}"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- reading ----------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every file has been checked.

    Args:
        path: its folder.
        update: the last update that it holds.
        microbatches, tokens: of the stream up to there.
        time_s: training time up to there, of all runs it took.
        corpus_sha256: hash of the data.
        spec: of the run that wrote it.
        files: names of every stage's files.
    """

    path: Path
    update: int
    microbatches: int
    tokens: int
    time_s: float
    corpus_sha256: str | None
    spec: TrainSpec
    files: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read and check; raises InputError, naming the file, for one that is cut short, damaged or not ours."""
        manifest = _manifest(path)
        spec = TrainSpec.from_dict(manifest["spec"], where=f"{path}/{_MANIFEST}: spec")
        replicas = range(spec.replicas if spec.shard_optimizer else 1)
        files = tuple(tuple(_file_name(stage, replica) for replica in replicas) for stage in range(spec.stages))
        expected = [name for of_stage in files for name in of_stage]
        if not isinstance(spec.partition, list) or [file["name"] for file in manifest["files"]] != expected:
            raise _damaged(path / _MANIFEST, "its files are not those of its stages")
        if manifest["microbatches"] != (manifest["update"] + 1) * spec.window:
            raise _damaged(path / _MANIFEST, "its counters contradict each other")
        for file in manifest["files"]:
            here = path / file["name"]
            if not here.is_file():
                raise _damaged(here, "it is missing")
            if here.stat().st_size != file["bytes"]:
                raise _damaged(here, f"it has {here.stat().st_size} bytes instead of {file['bytes']}")
            if _sha256(here) != file["sha256"]:
                raise _damaged(here, "its hash is not the one in the manifest")
        known = {field.name: manifest[field.name] for field in dataclasses.fields(cls) if field.name in manifest}
        return cls(**{**known, "path": path, "spec": spec, "files": files})

    def schedule(self, spec: TrainSpec) -> Schedule:
        """The schedule of `spec`, going on behind this checkpoint."""
        from paci_lab.schedules import drained

        return drained(spec.build_schedule(), start=self.microbatches // spec.window)

    def weights(self) -> dict[str, Tensor]:
        """Weights of the whole model by name."""
        layers = range(sum(self.spec.partition))
        tensors, _ = self._of_layers(layers)
        return {name.removeprefix("weights/"): t for name, t in tensors.items() if name.startswith("weights/")}

    def restore(self, stage: Stage) -> None:
        """Make a fresh stage, of this cut or another, what this checkpoint says of its layers."""
        from paci_lab.runtime.state import restore_stage

        layers = range(stage.first_layer, stage.first_layer + len(stage.layers))
        tensors, values = self._of_layers(layers)
        same = self.spec.partition == stage.spec.partition
        restore_stage(stage, tensors, values, first_update=stage.schedule.first_update, same_cut=same)

    def _of_layers(self, layers: range) -> tuple[dict[str, Tensor], dict[str, Any]]:
        from safetensors import SafetensorError, safe_open

        found: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        first = 0
        for names, count in zip(self.files, self.spec.partition, strict=True):
            first, here = first + count, range(first, first + count)
            for name in names if set(here) & set(layers) else ():
                try:
                    with safe_open(self.path / name, framework="pt") as file:
                        said = json.loads((file.metadata() or {})["values"])
                        for key in file.keys():
                            if key.startswith(_OF_NO_LAYER) or _layer_of(key.partition("/")[2]) in layers:
                                found[key] = file.get_tensor(key)
                    # What belongs to no layer, the optimizer's own numbers, is that of the first of these stages.
                    values = values or {**said, "numbers": {}}
                    values["numbers"] |= {of: dict(n) for of, n in said["numbers"].items() if _layer_of(of) in layers}
                except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                    raise _damaged(self.path / name, f"{type(error).__name__}: {error}") from None
        return found, values


def _layer_of(name: str) -> int:
    return int(name.split(".")[1])


def open_checkpoint(path: str | Path) -> tuple[Checkpoint, list[str]]:
    """(the checkpoint at `path`, or the newest good one of the run there; why newer ones were passed over).

    Raises InputError when there is none.
    """
    path = Path(path)
    if (path / _MANIFEST).exists() or re.fullmatch(r"update-\d+", path.name):
        return Checkpoint.read(path), []
    if not (path / "spec.toml").is_file():
        raise InputError("checkpoint", path, "a run directory or a folder in its checkpoints/", "name one of these")
    checkpoint, skipped = newest(path)
    if checkpoint is None:
        why = f" ({'; '.join(skipped)})" if skipped else ""
        raise InputError(
            "checkpoint", path, f"a run with a whole checkpoint{why}", "train with checkpoint_every above 0"
        )
    return checkpoint, skipped


def newest(run_path: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest good checkpoint of a run, and why each newer one is not."""
    skipped = []
    for folder in reversed(_found(run_path)):
        try:
            return Checkpoint.read(folder), skipped
        except InputError as error:
            skipped.append(str(error))
    return None, skipped


def _found(run_path: Path) -> list[Path]:
    folders = (run_path / "checkpoints").glob("update-*")
    return sorted((f for f in folders if re.fullmatch(r"update-\d+", f.name)), key=lambda f: int(f.name[7:]))


def _manifest(path: Path) -> dict[str, Any]:
    """Content of the manifest, with every value of the type it must have."""
    try:
        if (size := (path / _MANIFEST).stat().st_size) > _MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes")
        value = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _damaged(path / _MANIFEST, "it is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path / _MANIFEST, str(error)) from None
    if not isinstance(value, dict) or not isinstance(value.get("schema"), int):
        raise _damaged(path / _MANIFEST, "it is no manifest")
    if value["schema"] > SCHEMA:
        raise InputError(
            "checkpoint", path, f"schema {SCHEMA} or older, this one has {value['schema']}", "update paci_lab"
        )
    good = (
        all(_is_count(value.get(key)) for key in ("update", "microbatches", "tokens"))
        and isinstance(value.get("time_s"), int | float)
        and 0 <= value["time_s"] < _MOST
        and isinstance(value.get("corpus_sha256"), str | None)
        and isinstance(value.get("spec"), Mapping)
        and isinstance(value.get("files"), list)
        and all(
            isinstance(file, dict) and isinstance(file.get("name"), str) and _is_count(file.get("bytes"))
            for file in value["files"]
        )
        and all(re.fullmatch("[0-9a-f]{64}", str(file.get("sha256"))) for file in value["files"])
    )
    if not good:
        raise _damaged(path / _MANIFEST, "a value in it has the wrong type")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _damaged(file: Path, why: str) -> InputError:
    return InputError("checkpoint", file, f"a file as it was written ({why})", "use another checkpoint")
