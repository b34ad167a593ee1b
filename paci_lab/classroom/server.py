"""`python -m paci_lab.classroom.server`: a warm process that forks one child per check and watches it.

The notebook's kernel holds the other ends of standard input and output. It cannot be forked itself, for it has threads;
this process has one thread and has imported torch, so a child is there in milliseconds. It ends when the kernel does,
whatever way that goes, and when nobody has asked anything for ten minutes.

A request is a line of JSON: {"exercise", "seconds", "source", "name"}. The answer is `TAKEN` at once, and then a line
of JSON: {"lines": what the child wrote, "printed": the beginning of what was printed, "printed_bytes", "ended":
"well" | "time" | "left" | "killed", "detail": exit code or signal}.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from typing import Any

from paci_lab.classroom import child
from paci_lab.classroom.client import TAKEN, folders_of
from paci_lab.classroom.exercise import every_exercise

__all__ = ["PRINTED_BYTES", "RESULT_BYTES", "main"]

PRINTED_BYTES = 4_000
RESULT_BYTES = 16 << 20
IDLE_S = 600
LOOK_S = 0.5  # how often to see whether the kernel is still there

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl: what a child leaves behind becomes this process's child


def main() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    asked, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)  # what an import prints is no answer
    import torch

    torch.set_num_threads(1)
    waiting = b""
    while True:
        line, waiting = _next_line(asked, waiting, parent)
        if line is None:
            return
        os.write(answers, TAKEN)
        answer = (json.dumps(_check(json.loads(line), asked, answers, parent)) + "\n").encode()
        while answer:
            answer = answer[os.write(answers, answer) :]


def _next_line(asked: int, waiting: bytes, parent: int) -> tuple[bytes | None, bytes]:
    """The next request and what was read beyond it; None when the kernel is gone or has been silent for long."""
    until = time.monotonic() + IDLE_S
    while b"\n" not in waiting:
        if select.select([asked], [], [], LOOK_S)[0]:
            read = os.read(asked, 1 << 16)
            if not read:
                return None, b""
            waiting += read
        elif os.getppid() != parent or time.monotonic() > until:
            return None, b""
        else:
            # What a child would import for itself, each anew: the exercises, and what torch's optimizers need. Not at
            # the start, for the first check should not wait for them.
            every_exercise()
            importlib.import_module("torch._dynamo")
    line, _, rest = waiting.partition(b"\n")
    return line, rest


def _check(request: dict[str, Any], asked: int, answers: int, parent: int) -> dict[str, Any]:
    """Fork, watch until the child has ended or must be, clean up, and say how it went."""
    with tempfile.TemporaryDirectory(prefix=folders_of(os.getpid()), ignore_cleanup_errors=True) as folder:
        return _watch(request | {"folder": folder}, asked, answers, parent)


def _watch(request: dict[str, Any], asked: int, answers: int, parent: int) -> dict[str, Any]:
    results, tell = os.pipe()
    prints, printed = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for descriptor in (asked, answers, results, prints):
                os.close(descriptor)
            child.run(request, tell, printed)
        finally:
            os._exit(1)
    os.close(tell)
    os.close(printed)
    until = time.monotonic() + 2 * request["seconds"]
    read: dict[int, bytes] = {results: b"", prints: b""}
    most, total, open_ends = {results: RESULT_BYTES, prints: PRINTED_BYTES}, 0, {results, prints}
    while results in open_ends and not _has_ended(pid) and time.monotonic() < until:
        ready = select.select([*open_ends, asked], [], [], LOOK_S)[0]
        if os.getppid() != parent or (asked in ready and not os.read(asked, 1)):
            _end(pid)
            sys.exit()  # the kernel is gone
        for end in open_ends.intersection(ready):
            data = os.read(end, 1 << 16)
            total += len(data) if end == prints else 0
            read[end] += data[: most[end] - len(read[end])]
            if not data:
                open_ends.discard(end)
    late = results in open_ends and not _has_ended(pid)
    status = _end(pid, at_once=late)
    for end in open_ends:  # what came between the last look and the end; a pipe holds 64 KiB
        os.set_blocking(end, False)
        try:
            data = os.read(end, 1 << 16)
        except BlockingIOError:
            continue
        total += len(data) if end == prints else 0
        read[end] += data[: most[end] - len(read[end])]
    os.close(results)
    os.close(prints)
    ended, detail = _how(status, late, read[results])
    return {
        "lines": read[results].decode(errors="replace").splitlines(),
        "printed": read[prints].decode(errors="replace"),
        "printed_bytes": total,
        "ended": ended,
        "detail": detail,
    }


def _how(status: int, late: bool, results: bytes) -> tuple[str, int]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if late or number in (signal.SIGXCPU, signal.SIGALRM):
            return "time", number
        return "killed", number
    code = os.WEXITSTATUS(status)
    last = results.rstrip().rpartition(b"\n")[2]
    return ("well" if b'"end"' in last or b'"problem"' in last else "left"), code


def _has_ended(pid: int) -> bool:
    """True when the child is dead; it keeps its number until `_end`, so that no other process can get it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(pid: int, *, at_once: bool = True) -> int:
    """Give the child a moment to end by itself unless `at_once`; then kill its group, and everything it left behind.

    Returns its exit status.
    """
    for _ in range(0 if at_once else 200):
        if _has_ended(pid):
            break
        time.sleep(0.001)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it had no time to make its group, or all of it is dead (macOS)
        os.kill(pid, signal.SIGKILL)
    return _reap(os.waitpid(pid, 0)[1])


def _reap(status: int) -> int:
    """End what children of the child have outlived it; they are this process's children now."""
    for _ in range(1000):
        try:
            left = os.waitpid(-1, os.WNOHANG)[0]
        except ChildProcessError:
            break
        if not left:
            for pid in _children():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.001)
    return status


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # macOS
        return []


if __name__ == "__main__":
    main()
