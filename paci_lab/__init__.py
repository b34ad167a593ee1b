"""PACI Lab: pipeline-parallel training that can be seen, measured and tuned.

import paci_lab
run = paci_lab.launch(paci_lab.TrainSpec(schedule="paci", stages=4, window=8))
run.wait()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paci_lab.errors import InputError, RunFailed
from paci_lab.schedules import PACI, GPipe, OneFOneB, Schedule, ScheduleError, build_schedule, validate
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace, TraceEvent

if TYPE_CHECKING:
    from paci_lab.exact_replay import Replay, replay
    from paci_lab.runtime.launch import Run, launch, open_run

__all__ = [
    "Costs",
    "GPipe",
    "InputError",
    "OneFOneB",
    "PACI",
    "Replay",
    "Run",
    "RunFailed",
    "Schedule",
    "ScheduleError",
    "Trace",
    "TraceEvent",
    "TrainSpec",
    "build_schedule",
    "launch",
    "open_run",
    "replay",
    "simulate",
    "validate",
]

# torch takes seconds to import, and a command that only simulates or refuses a flag need not wait for it. No module
# here may have the name of such a function: importing the module would put it in the function's place.
_LATER = {
    "Replay": "exact_replay",
    "replay": "exact_replay",
    "Run": "runtime.launch",
    "launch": "runtime.launch",
    "open_run": "runtime.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'paci_lab' has no attribute {name!r}")
    import importlib

    globals()[name] = value = getattr(importlib.import_module(f"paci_lab.{_LATER[name]}"), name)
    return value
