"""The default corpus: the source code of the Python standard library, present wherever Python is."""

from __future__ import annotations

import platform
import sys
import sysconfig
from pathlib import Path

import numpy as np

from paci_lab.data.base import TokenStream, minimum_tokens
from paci_lab.errors import InputError

__all__ = ["accepts", "open_source"]

_LEFT_OUT = frozenset(
    # Tables, not prose; parts that some Linux distributions ship separately; demos.
    "encodings pydoc_data distutils ensurepip idlelib lib2to3 tkinter turtledemo __phello__".split()
)


def accepts(source: str) -> bool:
    return source == "stdlib"


def _files(root: Path) -> list[Path]:
    """Source files of modules named by Python itself, so site-packages, tests and build data never enter."""
    names = sorted(sys.stdlib_module_names - _LEFT_OUT)
    single = [path for name in names if (path := root / f"{name}.py").is_file()]
    packages = [path for name in names for path in (root / name).rglob("*.py")]
    tests = {"test", "tests"}
    return sorted(
        (path for path in single + packages if not tests & set(path.relative_to(root).parts)),
        key=lambda path: path.relative_to(root).as_posix(),
    )


def open_source(source: str, *, context: int, microbatch_size: int, seed: int) -> TokenStream:
    """The library's bytes, files in the order of their names; the same for the same Python version and build."""
    root = Path(sysconfig.get_paths()["stdlib"])
    corpus = b"\n".join(path.read_bytes().replace(b"\r\n", b"\n") for path in _files(root))
    if len(corpus) < minimum_tokens(context):
        raise InputError(
            "data",
            f"stdlib ({len(corpus)} bytes of source in {root})",
            f"at least {minimum_tokens(context)} bytes for context {context}",
            "this Python comes without its source, or the context is too long: name a text file as data instead",
        )
    name = f"standard library of Python {platform.python_version()}"
    tokens = np.frombuffer(corpus, dtype=np.uint8)
    return TokenStream(name, tokens, vocabulary=256, context=context, microbatch_size=microbatch_size, seed=seed)
