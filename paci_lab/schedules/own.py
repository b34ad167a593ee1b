"""A user's own schedule, named as "my_file.py:MySchedule" or "module:MySchedule"."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from pathlib import Path

from paci_lab.errors import InputError
from paci_lab.objects import accepts, load_object
from paci_lab.schedules.schedule import Schedule

__all__ = ["excerpt_of", "further_fields", "is_own", "names_a_file", "own_schedule"]


def is_own(name: str) -> bool:
    """True for a name of the user's own code rather than one of ours."""
    return ":" in name and accepts(name)


def names_a_file(name: str) -> bool:
    """True for a name that makes `build_schedule` import the user's own code, or read a file."""
    return is_own(name) or name.endswith(".csv")


def excerpt_of(name: str, schedule: Schedule) -> Schedule:
    """What to validate of `schedule`, which was named `name`: all of somebody's own, for nobody knows that it repeats
    itself, and of ours a stream that shows every fault."""
    return schedule if is_own(name) else schedule.excerpt()


def own_schedule(source: str) -> type[Schedule]:
    """The class that `source` names, loaded anew when its file has changed.

    Raises InputError when it cannot be imported, is no `Schedule`, or leaves out what every schedule states.
    """
    path = Path(source.rpartition(":")[0]).expanduser()
    return _load(source, path.stat().st_mtime_ns if path.is_file() else 0)


@functools.lru_cache
def _load(source: str, _changed_ns: int) -> type[Schedule]:
    # One class per state of the file: specs that name the same schedule must build schedules that compare equal.
    cls = load_object("schedule", source)
    allowed = "a frozen dataclass derived from paci_lab.Schedule"
    if not (isinstance(cls, type) and issubclass(cls, Schedule)):
        raise InputError("schedule", f"{source} ({type(cls).__name__})", allowed, "derive it from Schedule")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    missing += [fact for fact in ("name", "summary", "flushes") if not hasattr(cls, fact)]
    if missing:
        raise InputError(
            "schedule", source, f"{allowed} with {', '.join(missing)}", f"define {', '.join(missing)} in {cls.__name__}"
        )
    fields = {field.name for field in dataclasses.fields(cls)}
    unknown = further_fields(cls)
    if unknown or not fields >= {"stages", "microbatches", "window"}:
        raise InputError(
            "schedule",
            f"{source} (which cannot be made from stages, microbatches and window alone)",
            f"{allowed} whose further fields have defaults",
            f"give {', '.join(unknown) or 'the fields'} a default",
        )
    return cls


def further_fields(cls: type[Schedule]) -> list[str]:
    """Fields that a schedule of class `cls` cannot be made without, beside stages, microbatches and window."""
    return [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.default is parameter.empty and parameter.name not in ("stages", "microbatches", "window")
    ]
