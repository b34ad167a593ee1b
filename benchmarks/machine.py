"""The machine a figure comes from, in one line."""

from __future__ import annotations

import os
import platform

import torch

from paci_lab.machine import cpu_model

__all__ = ["machine_line"]


def machine_line() -> str:
    """CPU, cores, load, Python and torch; nothing that names a host or a person."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cpu_model()}, {cores} cores, load {os.getloadavg()[0]:.1f}, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
