"""A user's own code by its name, "module:name" or "file.py:name": data, an optimizer, a schedule."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from paci_lab.errors import InputError

__all__ = ["accepts", "load_object"]


def accepts(source: str) -> bool:
    place, _, name = source.rpartition(":")
    return name.isidentifier() and (place.endswith(".py") or all(part.isidentifier() for part in place.split(".")))


def load_object(what: str, source: str) -> object:
    """Import what "module:name" or "path/to/file.py:name" names; modules in the current directory are found.

    Raises:
        InputError: when the file, the module or the name in it is missing, or importing it fails.
    """
    place, _, name = source.rpartition(":")
    allowed = 'the name of something that can be imported, as "module:name" or "file.py:name"'
    try:
        if place.endswith(".py"):
            path = Path(place).expanduser().resolve()
            module_name = f"paci_user_{path.stem}"
            spec = importlib.util.spec_from_file_location(module_name, path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[module_name] = module  # dataclasses and pickle look the module up by its name
            spec.loader.exec_module(module)
        else:
            if (here := os.getcwd()) not in sys.path:
                sys.path.insert(0, here)  # a console script does not have the current directory on its path
            module = importlib.import_module(place)
    except Exception as error:  # whatever the user's module raises is the answer to why it cannot be used
        problem = f"{source} ({type(error).__name__}: {error})"
        raise InputError(what, problem, allowed, "check the name, and import it in Python to see why") from error
    if not hasattr(module, name):
        raise InputError(what, f"{source} ({place} has no {name})", allowed, f"define {name} there")
    return getattr(module, name)
