"""A user's own data, and the loader for everything that is named as "module:name" or "file.py:name"."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from paci_lab.data.base import Data
from paci_lab.errors import InputError

__all__ = ["accepts", "load_object", "open_source"]


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


def open_source(source: str, *, context: int, microbatch_size: int, seed: int) -> Data:
    """Call the user's callable with ``context``, ``microbatch_size`` and ``seed`` by keyword; check what it returns."""
    factory = load_object("data", source)
    allowed = "a callable (context, microbatch_size, seed) that returns name, vocabulary, sha256, train, train_tokens, "
    allowed += "validation"
    if not callable(factory):
        raise InputError("data", f"{source} ({type(factory).__name__})", allowed, "name a function or a class")
    data = factory(context=context, microbatch_size=microbatch_size, seed=seed)
    members = ("name", "vocabulary", "sha256", "train", "train_tokens", "validation")
    # dir, not hasattr: asking for sha256 could hash a large data set in every rank.
    if missing := [member for member in members if member not in dir(data)]:
        fix = f"give {type(data).__name__} {', '.join(missing)}; see paci_lab.data.Data"
        raise InputError("data", source, allowed, fix)
    return data
