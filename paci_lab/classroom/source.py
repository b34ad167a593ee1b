"""The learner's function as text that stands on its own: what is checked, collected and graded is the same text."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any

from paci_lab.language import _

__all__ = ["NotTaken", "gather", "is_stub"]

LONGEST = 50_000
"""Characters of a function with all that it needs."""


class NotTaken(Exception):
    """The function cannot be taken along; the message tells a learner why, and what to do."""


def gather(function: Callable) -> str:
    """The source of `function`, under the imports, small values and functions of the notebook that it uses.

    Raises NotTaken when it was not written with `def`, or uses something that cannot be taken along: a model, say, that
    another cell has made. Such a function would give another answer tomorrow.
    """
    if not isinstance(function, types.FunctionType):
        kind = type(function).__name__
        raise NotTaken(_("check needs a function, and this is {kind}. Give its name, no brackets.").format(kind=kind))
    parts: dict[str, str] = {}
    _add(function, function.__name__, parts)
    text = "\n\n".join(parts.values()) + "\n"
    if len(text) > LONGEST:
        raise NotTaken(_("{name} is longer than any answer needs to be.").format(name=function.__name__))
    return text


def is_stub(tree: ast.Module, name: str) -> bool:
    """True when the function `name` in `tree` has nothing in its body but a docstring, `...` and `pass`."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return all(
                isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
                for line in node.body
            )
    return False


def _add(function: types.FunctionType, name: str, parts: dict[str, str]) -> None:
    """Add `function` and, before it, everything that it uses; what is there already is not added again."""
    source = _source(function)
    parts.setdefault(name, "")  # so that two functions that call each other come to an end
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    around = {**function.__globals__, **{used: cell.cell_contents for used, cell in cells}}
    for used in sorted((_names(function.__code__) | _names_of_head(source)) & set(around)):
        if used not in parts and around[used] is not getattr(builtins, used, parts):
            _take(used, around[used], function, parts)
    del parts[name]
    parts[name] = source


def _take(used: str, value: Any, function: types.FunctionType, parts: dict[str, str]) -> None:
    if isinstance(value, types.ModuleType):
        parts[used] = f"import {value.__name__} as {used}"
    elif getattr(value, "__module__", "") != function.__module__ and _importable(value):
        parts[used] = f"from {value.__module__} import {value.__qualname__} as {used}"
    elif isinstance(value, types.FunctionType) and value.__name__ == used:
        _add(value, used, parts)
    elif _is_literal(value):
        parts[used] = f"{used} = {value!r}"
    else:
        words = {"name": function.__name__, "used": used}
        raise NotTaken(
            _("{name} uses {used}, which is made outside of it. Use what the function is given.").format(**words)
        )


def _source(function: types.FunctionType) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source)
    except UnicodeEncodeError as error:
        words = {"name": function.__name__, "character": ascii(error.object[error.start])}
        raise NotTaken(
            _("{name} holds {character}, which is half a character. Type that line again.").format(**words)
        ) from None
    except (OSError, TypeError, SyntaxError):
        tree, source = None, ""
    if tree is None or not isinstance(tree.body[0], ast.FunctionDef):
        raise NotTaken(_("check needs a function that is written with def in a cell of its own."))
    return source.rstrip()


def _names(code: types.CodeType) -> set[str]:
    """Names that `code` looks up outside of itself, those of the functions inside it too; attributes are none."""
    names = {line.argval for line in dis.get_instructions(code) if line.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    names |= set(code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _names_of_head(source: str) -> set[str]:
    """Names in the defaults, annotations and decorators of a function: they are looked up where it is defined."""
    head = ast.parse(source).body[0]
    head.body = []
    return {node.id for node in ast.walk(head) if isinstance(node, ast.Name)}


def _importable(value: Any) -> bool:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "." in name:
        return False
    return getattr(sys.modules.get(module), name, None) is value


def _is_literal(value: Any) -> bool:
    try:
        return len(text := repr(value)) < 10_000 and ast.literal_eval(text) == value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
