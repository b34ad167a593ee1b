"""On what a run was made: the content of its `environment.json`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from paci_lab.data import open_data
from paci_lab.machine import cpu_model
from paci_lab.spec import TrainSpec

__all__ = ["describe_machine"]


def describe_machine(spec: TrainSpec, *, hosts: int = 1) -> dict[str, Any]:
    """Content of `environment.json`: enough to judge a figure years later, nothing that names a person or a host."""
    data = open_data(spec.data, context=spec.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    return {
        "paci_lab": importlib.metadata.version("paci-lab"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if spec.device == "cuda"
        else [],
        "hosts": hosts,
        "git": _git_state(),
        "corpus": data.name,
        "corpus_sha256": data.sha256,
    }


def _git_state() -> str | None:
    """Commit of the code that runs, with "+" when files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        folder = Path(__file__).parent
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=5
        ).stdout

    try:
        return git("rev-parse", "HEAD").strip() + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
