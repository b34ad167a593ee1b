"""The kernel's end of the check server: starts it, asks it, and starts it again when it has gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from paci_lab.classroom.exercise import Exercise
from paci_lab.errors import RunFailed
from paci_lab.language import _
from paci_lab.reading import parse_json

__all__ = ["TAKEN", "ask", "folders_of", "stop", "warm"]

TAKEN = b"taken\n"
"""What the server writes when it has read a request and is about to run it."""

PATIENCE_S = 60
"""How much longer than its function's own limit an answer may take, on a machine with much else to do."""

_MARK = "PACI_LAB_CHECKS_FOR"
"""A variable of the server, and so of all that it starts: the number of the process that asks."""

_lock = threading.Lock()
_server: subprocess.Popen | None = None
_said: IO[bytes] | None = None  # what the server wrote to its standard error


def warm() -> None:
    """Start the server and return at once, so that it is ready when the first function is."""
    with _lock:
        _running()


def ask(exercise: Exercise, source: str, name: str) -> dict[str, Any]:
    """Have `name` of `source` called for every case of `exercise`; the server's answer (see `server`).

    A server that has taken the request and is gone was ended by the function: the answer has "ended": "server". Raises
    RunFailed when the server cannot be started, with what it wrote.
    """
    asked = {"exercise": exercise.id, "seconds": exercise.seconds, "source": source, "name": name}
    line = json.dumps(asked).encode() + b"\n"
    with _lock:
        for _attempt in range(2):  # an idle server ends by itself, perhaps at this moment
            server = _running()
            try:
                server.stdin.write(line)
                server.stdin.flush()
                taken = server.stdout.readline() == TAKEN
                answer = _answer(server, exercise.seconds) if taken else b""
            except BrokenPipeError:
                taken, answer = False, b""
            except BaseException:  # an interrupt in mid-answer: the next question must not get this one's answer
                _stop()
                raise
            if answer.endswith(b"\n"):
                return parse_json(answer)
            if taken:  # it has been run, and once is enough
                _stop()
                return {"lines": [], "printed": "", "printed_bytes": 0, "ended": "server", "detail": 0}
            _said.seek(0)
            why = _said.read().decode(errors="replace").strip().splitlines()
            _stop()
    raise RunFailed(_("The process that checks exercises ended: {why}").format(why=why[-1] if why else "?"))


def _answer(server: subprocess.Popen, seconds: int) -> bytes:
    """What the server writes about a function; less than a line when it has ended, or is ended for its silence."""
    limit = threading.Timer(2 * seconds + PATIENCE_S, server.kill)  # the function may have stopped it with a signal
    limit.daemon = True
    limit.start()
    try:
        return server.stdout.readline()
    finally:
        limit.cancel()


def stop() -> None:
    """End the server."""
    with _lock:
        _stop()


def _running() -> subprocess.Popen:
    global _server, _said
    if _server is None or _server.poll() is not None:
        _stop()
        _said = tempfile.TemporaryFile()
        _server = subprocess.Popen(
            [sys.executable, "-m", "paci_lab.classroom.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=_said,
            env={**os.environ, "OMP_NUM_THREADS": "1", _MARK: str(os.getpid())},
            start_new_session=True,  # an interrupt of the kernel is none of the server
        )
    return _server


def _stop() -> None:
    global _server
    if _server is not None:
        _server.stdin.close()
        _server.kill()  # its child dies with it
        _server.wait()
        _server.stdout.close()
        _said.close()
        _end_leftovers()
        for folder in Path(tempfile.gettempdir()).glob(folders_of(_server.pid) + "*"):
            shutil.rmtree(folder, ignore_errors=True)
        _server = None


def folders_of(server: int) -> str:
    """How the names of the folders begin that functions work in, by the server's number."""
    return f"paci-lab-check-{server}-"


def _end_leftovers() -> None:
    """End what functions have started and a server that was killed could not end any more: it has the server's mark."""
    mark = f"{_MARK}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:  # somebody else's, or gone
            continue
