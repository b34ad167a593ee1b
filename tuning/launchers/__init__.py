"""How a trial is started: one file here per way, with a class that has a `name`; a site's own is named file.py:Class.

A launcher is made with the study's launcher options as keyword arguments. What it starts writes a run directory as
`paci-lab train` does, and the tuner reads nothing else, so any way of starting that command will do.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from paci_lab import InputError, TrainSpec

__all__ = ["Job", "Launcher", "open_launcher"]

State = Literal["waiting", "running", "ended"]


class Job(Protocol):
    """A trial that has been started.

    Attributes:
        id: what `Launcher.cancel` needs to end it from another process; "" where it ends with the process that
            started it.
    """

    id: str

    def state(self) -> State:
        """ "waiting" for its turn (time that no trial is charged for), "running" or "ended"."""

    def stop(self) -> None:
        """End it, and return when it is gone."""


@runtime_checkable
class Launcher(Protocol):
    """Starts trials.

    Attributes:
        name: for --launcher.
        here: trials compute on this machine, where two at once would disturb each other's clocks.
    """

    name: str
    here: bool

    def start(self, spec: TrainSpec, run_dir: Path) -> Job:
        """Start `spec` in the new folder `run_dir`; raises InputError when it cannot be started."""

    def cancel(self, job_id: str) -> None:
        """End a job whose controller is gone."""


def open_launcher(name: str, options: Mapping[str, Any]) -> Launcher:
    """A launcher by name or by file.py:Class; raises InputError for an unknown one or wrong options."""
    classes = _classes()
    if name in classes:
        found = classes[name]
    elif ".py:" in name:
        found = _from_file(name)
    else:
        raise InputError("launcher", name, f"{' | '.join(classes)}, or file.py:Class", "choose one of these")
    try:
        made = found(**options)
    except TypeError as error:
        taken = [p for p in inspect.signature(found).parameters]
        raise InputError(
            "launcher options",
            ", ".join(options) or "none",
            f"for {name}: {', '.join(taken) or 'none'}",
            f"check them ({error})",
        ) from None
    if not isinstance(made, Launcher):
        raise InputError("launcher", name, "a class with name, here, start and cancel", "see tuning/launchers/local.py")
    return made


def _classes() -> dict[str, type]:
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    members = [member for module in modules for member in vars(module).values()]
    return {
        m.name: m
        for m in members
        if inspect.isclass(m) and m.__module__.startswith(f"{__name__}.") and hasattr(m, "name")
    }


def _from_file(text: str) -> type:
    path, _, name = text.rpartition(":")
    try:
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_file_location(f"_launcher_{Path(path).stem}", path)
        )
        module.__spec__.loader.exec_module(module)
        return getattr(module, name)
    except (OSError, SyntaxError, ImportError, AttributeError) as error:
        raise InputError("launcher", text, "a Python file and a class in it", f"check it ({error})") from None
