"""Start the processes of a framework, wait for them, and read what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file

from paci_lab.errors import RunFailed
from paci_lab.frameworks.case import Case
from paci_lab.frameworks.probe import Result
from paci_lab.frameworks.registry import FRAMEWORKS, require

__all__ = ["run"]

_LEFT_OUT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_ADDED = {
    "CUDA_VISIBLE_DEVICES": "",  # what is compared is arithmetic, on the same kernels
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def run(name: str, cases: Sequence[Case], *, timeout_s: float = 1800) -> list[Result]:
    """Train every case with the framework `name`, in processes of its own, and return the results in their order.

    Raises InputError when it is unknown or not installed, RunFailed with the end of its output when it fails.
    """
    version = require(name)
    framework = FRAMEWORKS[name]
    environment = {key: value for key, value in os.environ.items() if key not in _LEFT_OUT} | _ADDED
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "cases.json").write_text(json.dumps([case.to_dict() for case in cases]), encoding="utf-8")
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(framework.ranks):
                with (folder / f"log{rank}").open("wb") as log:
                    command = [sys.executable, "-m", "paci_lab.frameworks.child", name, text, str(rank)]
                    ranks.append(
                        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
                    )
            failed, how = _first_failure(ranks, timeout_s)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
                if rank.stdin:
                    rank.stdin.close()
        if failed is not None:
            said = (folder / f"log{failed}").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RunFailed(f"{framework.title} {version} failed ({how}):\n" + "\n".join(said[-15:]))
        return [_read(folder, number, case, version) for number, case in enumerate(cases)]


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> tuple[int | None, str]:
    """Wait for all. The first rank that ended badly or is not done in time, and how; None when all is well."""
    deadline = time.monotonic() + timeout_s
    while True:
        codes = [rank.poll() for rank in ranks]
        for rank, code in enumerate(codes):
            if code:
                return rank, f"rank {rank}: exit code {code}"
            if code is None and time.monotonic() > deadline:
                return rank, f"rank {rank}: not done after {timeout_s:.0f} s"
        if all(code == 0 for code in codes):
            return None, ""
        time.sleep(0.05)


def _read(folder: Path, number: int, case: Case, version: str) -> Result:
    said = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
    gradients: list[dict] = [{} for _ in said["learning_rates"]]
    for key, tensor in load_file(folder / f"{number}.safetensors").items():
        update, _, parameter = key.partition("/")
        gradients[int(update)][parameter] = tensor
    return Result(**said | {"case": case, "gradients": gradients, "version": version})
