"""Pipeline schedules as data. To add one, write one file in this folder with a `Schedule` subclass: see `paci.py`."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

from paci_lab.errors import InputError
from paci_lab.schedules.drained import Drained, drained
from paci_lab.schedules.gpipe import GPipe
from paci_lab.schedules.interleaved import Interleaved
from paci_lab.schedules.interleaved_paci import InterleavedPACI
from paci_lab.schedules.one_f_one_b import OneFOneB
from paci_lab.schedules.op import KINDS, Op
from paci_lab.schedules.own import excerpt_of, further_fields, is_own, names_a_file, own_schedule
from paci_lab.schedules.paci import PACI
from paci_lab.schedules.pipedream import PipeDream
from paci_lab.schedules.pipedream_2bw import PipeDream2BW
from paci_lab.schedules.pipemare import PipeMare
from paci_lab.schedules.schedule import Schedule
from paci_lab.schedules.torch_csv import TorchCsv, from_csv, to_csv
from paci_lab.schedules.validate import Reason, ScheduleError, inputs_of, validate
from paci_lab.schedules.versions import NeededVersions, weight_copies
from paci_lab.schedules.zb_h1 import ZBH1
from paci_lab.schedules.zb_h2 import ZBH2
from paci_lab.schedules.zb_v import ZBV

__all__ = [
    "KINDS",
    "Drained",
    "GPipe",
    "Interleaved",
    "InterleavedPACI",
    "NeededVersions",
    "OneFOneB",
    "Op",
    "PACI",
    "PipeDream",
    "PipeDream2BW",
    "PipeMare",
    "Schedule",
    "ZBH1",
    "ZBH2",
    "ZBV",
    "Reason",
    "ScheduleError",
    "TorchCsv",
    "build_schedule",
    "drained",
    "excerpt_of",
    "from_csv",
    "has_option",
    "inputs_of",
    "is_own",
    "names_a_file",
    "own_schedule",
    "to_csv",
    "schedule_classes",
    "validate",
    "weight_copies",
]


def schedule_classes() -> dict[str, type[Schedule]]:
    """Every schedule of this folder by its name: a new file is found without being registered."""
    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        importlib.import_module(module.name)
    classes: dict[str, type[Schedule]] = {}
    pending = list(Schedule.__subclasses__())
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if cls.__module__.startswith(__name__ + ".") and not further_fields(cls):
            classes[cls.name] = cls
    return dict(sorted(classes.items()))


def build_schedule(name: str, *, stages: int, microbatches: int, window: int, **options: int) -> Schedule:
    """A schedule by name, "my_file.py:MySchedule" or "file.csv"; `options` are its extra fields (PACI: `slack`,
    interleaved: `chunks`), and a zero is no option.

    >>> [str(op) for op in build_schedule("paci", stages=2, microbatches=2, window=1).ops(0)]
    ['0F0', '0F1', '0B0', '0U0', '0B1', '0U1']
    """
    if name.endswith(".csv"):
        read = from_csv(name)
        options |= {"file": read.file, "lines": read.lines}
        cls: type[Schedule] = TorchCsv
    elif is_own(name):
        cls = own_schedule(name)
    elif (classes := schedule_classes()).keys() >= {name}:
        cls = classes[name]
    else:
        raise InputError(
            "schedule", name, f"{' | '.join(classes)} | my_file.py:MySchedule | file.csv", "choose one of these"
        )
    taken = {field.name for field in dataclasses.fields(cls)}
    for option, value in options.items():
        if option not in taken and value != 0:
            raise InputError(
                option,
                value,
                f"0 for schedule {name!r}, which has no {option}",
                f"leave {option} out, or use {_having(option)}",
            )
    options = {option: value for option, value in options.items() if value != 0}
    return cls(stages=stages, microbatches=microbatches, window=window, **options)


def has_option(name: str, option: str) -> bool:
    """True when `name` is a schedule of this folder that has a field `option`."""
    cls = schedule_classes().get(name)
    return cls is not None and option in {field.name for field in dataclasses.fields(cls)}


def _having(option: str) -> str:
    """Names of the schedules with a field `option`."""
    return " or ".join(name for name in schedule_classes() if has_option(name, option))
