"""The process that calls a learner's function: limits, then case after case, and after each a line of JSON.

It is forked for one check and ends with it. Whatever the function does to its process (leave it, fill it, change torch
or paci_lab in it) ends there too.
"""

from __future__ import annotations

import ast
import ctypes
import io
import json
import linecache
import os
import random
import resource
import signal
import sys
import traceback
from typing import Any

from paci_lab.classroom.exercise import find
from paci_lab.classroom.source import is_stub
from paci_lab.classroom.values import encode

__all__ = ["FILE", "MEMORY_BYTES", "run"]

FILE = "<your function>"
"""The name under which the learner's text is compiled."""

MEMORY_BYTES = 1 << 30
"""Address space that a function may take beside what is there already."""

FILE_BYTES = 64 << 20
"""The largest file that a function may write: its folder is on the learner's disk until the check has ended."""

_DEATH = 1  # PR_SET_PDEATHSIG of Linux's prctl


def run(request: dict[str, Any], results: int, printed: int) -> None:
    """Call the function of `request` for every case; write to the descriptor `results`; prints go to `printed`.

    A line is {"case": number, "value": …} or {"problem": a kind, "words": …, "line": source line}; the
    last is {"end": true}. Does not return.
    """
    os.chdir(request["folder"])  # what it writes goes with it
    os.setsid()  # so that everything it starts can be ended with it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(descriptor, place)
    # The server reads messages from its own 0 and writes to its own 1; this process has neither any more.
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, mode, closefd=False) for n, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    exercise = find(request["exercise"])
    _limit(request["seconds"])

    def tell(**line: Any) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(results, data) :]

    linecache.cache[FILE] = (len(request["source"]), None, list(io.StringIO(request["source"])), FILE)
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        tree = ast.parse(request["source"], FILE)
        if is_stub(tree, request["name"]):
            tell(problem="stub", words="", line="")
            os._exit(0)
        exec(compile(tree, FILE, "exec"), space)
        function = space[request["name"]]
        for number, case in enumerate(exercise.cases):
            _seed()
            tell(case=number, value=encode(exercise.call(function, *case.arguments)))
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the function's doing as well
        _flush()
        tell(**_problem(error))
    else:
        _flush()
        tell(end=True)
    os._exit(0)


def _seed() -> None:
    """The same random numbers for every case and every check."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)  # torch.manual_seed imports its compiler first, a quarter of a second


def _limit(seconds: int) -> None:
    """Processor time, memory, size of a file, core dumps; and an alarm, for nobody may watch one that sleeps."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(2 * seconds + 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    most = FILE_BYTES if hard == resource.RLIM_INFINITY else min(hard, FILE_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # Python ignores its signal, so a write raises OSError
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # macOS, which does not keep this limit anyway
        return
    most = now + MEMORY_BYTES
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _problem(error: BaseException) -> dict[str, Any]:
    """What went wrong, in a word that the sentence is chosen by, with the learner's own line."""
    try:
        words = f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # it is the learner's class, and so is its __str__
        words = type(error).__name__
    words = words.encode(errors="backslashreplace").decode()  # no page and no terminal can show half a character
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    line = frames[-1].line.strip()[:200] if frames and frames[-1].line else ""
    if (
        isinstance(error, SyntaxError)
        and error.filename == FILE
        or isinstance(error, UnicodeEncodeError)
        and not frames
    ):
        return {"problem": "syntax", "words": words, "line": ""}
    if isinstance(error, MemoryError) or "can't allocate memory" in words:
        kind = "memory"
    elif isinstance(error, SystemExit):
        kind = "exit"
    elif not frames and isinstance(error, ValueError | RecursionError):
        kind = "too much"  # `encode` refused it
    else:
        kind = "raised"
    return {"problem": kind, "words": words, "line": line}


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed or replaced by the function
            pass
