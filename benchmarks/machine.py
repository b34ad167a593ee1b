"""The machine a figure comes from, in one line."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

__all__ = ["machine_line"]


def machine_line() -> str:
    """CPU, cores, load, Python and torch; nothing that names a host or a person."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cpu}, {cores} cores, load {os.getloadavg()[0]:.1f}, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
