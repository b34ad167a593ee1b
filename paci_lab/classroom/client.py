"""The kernel's end of the check server: starts it, asks it, and starts it again when it has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any

from paci_lab.classroom.exercise import Exercise
from paci_lab.errors import RunFailed
from paci_lab.language import _
from paci_lab.reading import parse_json

__all__ = ["ask", "stop", "warm"]

_lock = threading.Lock()
_server: subprocess.Popen | None = None
_said: IO[bytes] | None = None  # what the server wrote to its standard error


def warm() -> None:
    """Start the server and return at once, so that it is ready when the first function is."""
    with _lock:
        _running()


def ask(exercise: Exercise, source: str, name: str) -> dict[str, Any]:
    """Have `name` of `source` called for every case of `exercise`; the server's answer (see `server`).

    Raises RunFailed when the server cannot be started, with what it wrote.
    """
    asked = {"exercise": exercise.id, "seconds": exercise.seconds, "source": source, "name": name}
    line = json.dumps(asked).encode() + b"\n"
    with _lock:
        for _attempt in range(2):  # an idle server ends by itself, perhaps at this moment
            server = _running()
            try:
                server.stdin.write(line)
                server.stdin.flush()
                answer = server.stdout.readline()
            except BrokenPipeError:
                answer = b""
            except BaseException:  # an interrupt in mid-answer: the next question must not get this one's answer
                _stop()
                raise
            if answer.endswith(b"\n"):
                return parse_json(answer)
            _said.seek(0)
            why = _said.read().decode(errors="replace").strip().splitlines()
            _stop()
    raise RunFailed(_("The process that checks exercises ended: {why}").format(why=why[-1] if why else "?"))


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
            env={**os.environ, "OMP_NUM_THREADS": "1"},
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
        _server = None
