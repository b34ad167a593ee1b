"""What the lessons need beside the engine: runs that can be recordings, exact loss curves, and meters for memory.

With PACI_LAB_TRAIN=0 in the environment nothing is trained: runs and curves come from the recordings in
`notebooks/runs/`, and every one of them says so.
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor, nn

from paci_lab.data import open_data
from paci_lab.errors import InputError
from paci_lab.exact_replay import replay
from paci_lab.lab import FOLDER
from paci_lab.language import _
from paci_lab.models import build_model
from paci_lab.runtime.environment import describe_machine
from paci_lab.runtime.launch import Run, launch, open_run
from paci_lab.runtime.resolve import resolve
from paci_lab.runtime.rundir import RunDir
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace

__all__ = [
    "Held",
    "RECORDINGS",
    "gradient",
    "loss_curve",
    "relative_difference",
    "small_gpt",
    "start",
    "text_batch",
    "versions_kept",
]

RECORDINGS = FOLDER / "runs"
"""Finished runs that come with the lessons."""

RECORD = "PACI_LAB_RECORD"
"""Environment variable: the folder into which `notebooks/make_runs.py` has the lessons record."""

_RECORDED = 48  # micro-batches; a trace has about 100 bytes an event, so this keeps a recording small
_current: list[Run] = []


def training() -> bool:
    """False when PACI_LAB_TRAIN=0 asks for recordings instead of training."""
    return os.environ.get("PACI_LAB_TRAIN", "1") != "0"


def start(name: str, spec: TrainSpec) -> Run:
    """Start a run and return at once; one that was started before is stopped, so that two cores serve one pipeline.

    With PACI_LAB_TRAIN=0, the recording `name` is opened instead.
    """
    if not training():
        run = open_run(_recording(name))
        _say(name, run.dir, spec)
        return run
    for earlier in _current:
        earlier.stop()
    if RECORD in os.environ:
        spec = spec.replace(updates=None, microbatches=min(spec.total_microbatches, _RECORDED))
        _current[:] = [launch(spec, _empty(Path(os.environ[RECORD]) / name))]
    else:
        _current[:] = [launch(spec)]
    return _current[0]


def loss_curve(name: str, spec: TrainSpec, costs: Costs) -> list[dict[str, float]]:
    """Validation losses of an exact replay of `spec`, as rows of `metrics.jsonl`.

    Samples and losses are those of the real training. The time is the simulator's: when the last stage makes the update
    on devices with these costs. With PACI_LAB_TRAIN=0, the rows of the recording `name`.
    """
    if not training():
        run = RunDir.open(_recording(name))
        _say(name, run, spec)
        return run.validation()
    spec = resolve(spec.replace(device="cpu"))
    updates = simulate(spec.build_schedule(), costs).of_kind("U")
    done = {}
    for event in updates:
        done[event.microbatch] = max(event.end_ns, done.get(event.microbatch, 0))
    per_microbatch = spec.microbatch_size * build_model(spec.model, context=spec.context).context
    rows = [
        {"time_s": done[update] / 1e9, "tokens": seen * per_microbatch, "update": update, "val_loss": loss}
        for seen, update, loss in replay(spec).validation
    ]
    words = _("{name}: validation loss {loss} after {count} micro-batches")
    print(words.format(name=name, loss=f"{rows[-1]['val_loss']:.3f}", count=f"{spec.total_microbatches:,}"))
    if RECORD in os.environ:
        run = RunDir(_empty(Path(os.environ[RECORD]) / name))
        run.create(spec, describe_machine(spec))
        run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def _recording(name: str) -> Path:
    path = RECORDINGS / name
    if not path.is_dir():
        raise InputError(
            "recording",
            name,
            ", ".join(sorted(p.name for p in RECORDINGS.glob("*/"))) or "none here",
            "unset PACI_LAB_TRAIN to train instead",
        )
    return path


def _say(name: str, run: RunDir, asked: TrainSpec) -> None:
    """What is shown instead of a training, and where it differs from what the cell asks for."""
    was, machine = run.spec(), run.environment() or {}
    words = _(
        "Training is switched off: {name} is a recording of {count} micro-batches, made on {cores} cores of {cpu}."
    )
    cores, cpu = machine.get("cpu_cores"), machine.get("cpu")
    print(words.format(name=name, count=was.total_microbatches, cores=cores, cpu=cpu))
    for field in ("schedule", "stages", "window", "model", "optimizer", "learning_rate"):
        if getattr(was, field) != getattr(asked, field):
            words = _("It was made with {field} = {value}, not {asked}.")
            print(words.format(field=field, value=getattr(was, field), asked=getattr(asked, field)))


def _empty(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    return path


# -- small things that lessons train by hand --------------------------------------------------------------------------
def small_gpt(name: str = "femto", *, seed: int = 0) -> nn.Sequential:
    """A GPT as one plain torch module, tokens (rows, context) -> logits (rows, context, 256)."""
    model = build_model(name)
    return nn.Sequential(*(model.build_layer(layer, seed) for layer in range(model.layers)))


def text_batch(rows: int, *, number: int = 0, context: int = 32) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each (rows, context), from the standard library's source; `number` chooses which."""
    return open_data("stdlib", context=context, microbatch_size=rows, seed=0).train(number)


def gradient(module: nn.Module) -> Tensor:
    """A copy of all gradients of `module`, as one vector."""
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def relative_difference(one: Tensor, other: Tensor) -> float:
    """Length of the difference over the length of `other`: 0 is equal, about 1e-7 is float32's rounding."""
    return float((one - other).norm() / other.norm())


# -- meters -----------------------------------------------------------------------------------------------------------
class _Box:
    """Holds one saved tensor, so that its end can be noticed."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Held:
    """A context that counts the bytes autograd keeps from forwards for their backwards, weights themselves left out.

    A copy of a weight counts, since it takes memory; the weight does not, since it is there anyway.

    Attributes:
        now, peak: bytes, at this moment and at most.
        shapes: shape and dtype of everything held now.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._own = {p.untyped_storage().data_ptr() for module in modules for p in module.parameters()}
        self._boxes: dict[int, tuple[int, tuple[int, ...], torch.dtype]] = {}  # storage, shape, dtype
        self._users: dict[int, int] = {}  # how many of them share a storage, whose bytes count once
        self.now = self.peak = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda box: box.tensor)

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return [(shape, dtype) for _, shape, dtype in self._boxes.values()]

    def __enter__(self) -> Held:
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._hooks.__exit__(kind, value, trace)

    def _pack(self, tensor: Tensor) -> _Box:
        box, storage = _Box(tensor), tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in self._own:
            key = id(box)
            self._boxes[key] = (place, tuple(tensor.shape), tensor.dtype)
            self._users[place] = self._users.get(place, 0) + 1
            if self._users[place] == 1:
                self.now += size
                self.peak = max(self.peak, self.now)
            weakref.finalize(box, self._released, key, place, size)
        return box

    def _released(self, key: int, place: int, size: int) -> None:
        del self._boxes[key]
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self.now -= size


def versions_kept(trace: Trace) -> list[int]:
    """Per stage, the most weight versions at once that are live or that a backward still to come met in its forward.

    This is what weight stashing would have to keep for this order of operations.
    """
    most = []
    for stage in range(trace.stages):
        live, held, peak = 0, {}, 1
        for event in (e for e in trace if e.stage == stage and e.op in ("F", "B", "U")):
            if event.op == "F":
                held[event.microbatch] = event.version
            elif event.op == "B":
                held.pop(event.microbatch, None)
            else:
                live = event.version + 1
            peak = max(peak, len({live, *held.values()}))
        most.append(peak)
    return most
