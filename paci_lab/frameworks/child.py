"""A process that trains cases with one framework: `python -m paci_lab.frameworks.child FRAMEWORK FOLDER RANK`.

Frameworks keep state of the whole process (precision, process groups), so no two share one.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from paci_lab.frameworks.case import Case
from paci_lab.frameworks.probe import Meter, Result
from paci_lab.frameworks.registry import FRAMEWORKS

__all__ = ["main"]


def main() -> None:
    name, folder, rank = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    framework = FRAMEWORKS[name]
    if framework.ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=framework.ranks)
    train = importlib.import_module(f"paci_lab.frameworks.{framework.module}").train
    for number, given in enumerate(json.loads((folder / "cases.json").read_text(encoding="utf-8"))):
        case = Case(**given)
        result = train(case)
        if case.measured:
            with Meter() as meter:
                train(case)
            result = replace(result, peak_bytes=meter.peak, collectives=dict(meter.collectives))
        else:
            result = replace(result, seconds=None)
        if rank == 0:
            _write(folder, number, result)
    if framework.ranks > 1:
        dist.destroy_process_group()


def _write(folder: Path, number: int, result: Result) -> None:
    tensors = {f"{u}/{name}": g for u, update in enumerate(result.gradients) for name, g in update.items()}
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / f"{number}.safetensors")
    said = {key: value for key, value in vars(result).items() if key not in ("case", "gradients")}
    (folder / f"{number}.json").write_text(json.dumps(said), encoding="utf-8")


def _end_with_parent() -> None:
    """The other end of standard input is our parent's: it closes when that one ends, however it ends."""
    while os.read(0, 1024):  # not sys.stdin, whose lock would hang this process's own end
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
