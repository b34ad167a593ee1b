"""A user's own data, named as "module:name" or "file.py:name"."""

from __future__ import annotations

from paci_lab.data.base import Data
from paci_lab.errors import InputError
from paci_lab.objects import accepts, load_object

__all__ = ["accepts", "open_source"]


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
