"""Who is at work on a study: locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from paci_lab import InputError

__all__ = ["Presence", "alive", "held"]

_BEAT_S = 5.0
_SILENT_S = 60.0


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock `path`; waits for whoever has it. On a shared file system it holds across machines."""
    try:
        file = open(path, "a")
    except OSError as error:
        raise InputError(
            "study", path.parent, "a folder that can be written", f"change its permissions ({error})"
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Presence:
    """Says that this controller is alive, for as long as it is: a locked file whose time is renewed every few seconds.

    Args:
        folder: the study's.
        exclusive: refuse to start beside another controller of this machine, which would disturb its clocks.
    """

    def __init__(self, folder: Path, *, exclusive: bool) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._folder, self._exclusive = folder / "controllers", exclusive
        self._stop = threading.Event()

    def __enter__(self) -> Presence:
        self._folder.mkdir(exist_ok=True)
        with held(self._folder / "entry.lock"):
            others = [name for name in _present(self._folder) if name.startswith(f"{socket.gethostname()}-")]
            if self._exclusive and others:
                pid = others[0].rsplit("-", 2)[1]
                raise InputError(
                    "study",
                    self._folder.parent,
                    "one controller per machine, because two would disturb each other's "
                    f"clocks, and process {pid} is at work here",
                    "wait for it, or add --share-machine when each has devices of its own",
                )
            self._file = open(self._folder / f"{self.id}.lock", "w")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        threading.Thread(target=self._beat, daemon=True, name="controller-presence").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._folder / f"{self.id}.lock")

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(self._folder / f"{self.id}.lock")


def alive(folder: Path) -> set[str]:
    """Ids of the controllers that are at work on the study in `folder`."""
    return set(_present(folder / "controllers"))


def _present(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.glob("*-*.lock")):
        try:
            with open(path) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Nobody holds it, as far as this machine can tell; a file system without shared locks still shows the beat.
            if path.name.startswith(f"{socket.gethostname()}-") or time.time() - path.stat().st_mtime > _SILENT_S:
                path.unlink(missing_ok=True)
                continue
        except BlockingIOError:
            pass
        except FileNotFoundError:
            continue
        found.append(path.name.removesuffix(".lock"))
    return found
