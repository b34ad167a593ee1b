"""Which machine a time was measured on: a time to target says nothing about another one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from paci_lab import InputError
from paci_lab.machine import cpu_model

__all__ = ["difference", "fingerprint", "machine_memory", "this_machine"]

_FIELDS = ("cpu", "cpu_cores", "gpus")


def fingerprint(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's `environment.json` that times depend on."""
    return {field: environment.get(field) for field in _FIELDS}


def this_machine(device_kind: str) -> dict[str, Any]:
    """The same of this machine, without importing torch; GPUs count only where runs use them."""
    gpus = _nvidia_smi("name") if device_kind == "cuda" else []
    return {"cpu": cpu_model(), "cpu_cores": os.cpu_count(), "gpus": gpus}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What differs, in words; "" for equal machines."""
    return "; ".join(
        f"{field}: {one.get(field)} there, {other.get(field)} here"
        for field in _FIELDS
        if one.get(field) != other.get(field)
    )


def machine_memory(device_kind: str) -> int:
    """Bytes of one GPU, or of this machine's memory; raises InputError when they cannot be found out."""
    try:
        if device_kind == "cuda":
            return int(_nvidia_smi("memory.total")[0]) * 2**20
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (IndexError, ValueError, OSError):
        raise InputError(
            "memory", "a share", "bytes, where the size of a device cannot be found out", "give it in bytes"
        ) from None


def _nvidia_smi(field: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
