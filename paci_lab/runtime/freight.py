"""A run over hosts without a shared disk: ranks that cannot see the run directory ship what they write to the leader.

Such a rank writes into a folder of its own host, in the same files as any other. A thread beside it sends what these
have gained through torchrun's store, in chunks that the leader writes into the run directory and deletes. The store
and not the process group, for three reasons: a rank that has lost a neighbour can still speak, no collective has to be
set up, and the training's own connections carry nothing but the training.

ships          a line of each rank that ships: its number
ship/<r>/<n>   chunk n of rank r: a line of JSON {"file", "at", "of"}, then the bytes that stand in that file from `at`
               on. `of` is the size of a file that is shown only when it is whole, null for one of appended lines.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paci_lab.runtime.rundir import RunDir
from paci_lab.spec import TrainSpec

__all__ = ["CHUNK_BYTES", "Freight", "Shipper", "own_folder", "sees", "sign"]

CHUNK_BYTES = 4 << 20
"""At most this much in a chunk; the store takes 8 MiB."""

_AHEAD = 16
"""Chunks that may lie in the store: the leader's host holds them in memory until the leader has written them."""

_EVERY_S = 0.2
_LAST_S = 10.0
"""How long a rank that has ended may take to ship its last lines."""

_LATE_S = 2.0
"""A shared file system may show a new file so much later. A rank that gives up too early ships, which is right too."""


def sign(run: RunDir) -> str:
    """On the leader's host: begin the agent's log with a word that no other file has, and return it. The log of a run
    that is started again has one."""
    log = run.path / "log" / "agent.log"
    if log.exists():
        with open(log, encoding="utf-8", errors="replace") as file:
            return file.readline()
    word = f"run {secrets.token_hex(16)}\n"
    log.write_text(word, encoding="utf-8")
    return word


def sees(run: RunDir, word: str) -> bool:
    """Whether this process sees the leader's folder at `run`, not nothing or another one of the same name."""
    deadline = time.monotonic() + _LATE_S
    while True:
        try:
            with open(run.path / "log" / "agent.log", encoding="utf-8") as file:
                return file.read(len(word)) == word and os.access(run.path / "log", os.W_OK)
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                return False
        time.sleep(0.1)


def own_folder(spec: dict[str, Any]) -> RunDir:
    """A new run directory on this host, which `Shipper.finish` removes; TMPDIR chooses where."""
    run = RunDir(tempfile.mkdtemp(prefix="paci-lab-"))
    run.create(TrainSpec.from_dict(spec), {})
    return run


class Shipper(threading.Thread):
    """Sends what the files of one rank gain, five times a second.

    A rank that is killed loses what it wrote since the last time. Whatever goes wrong here ends the shipping and not
    the rank: without the store the leader has gone, and `member.Tie` ends the rank.

    Args:
        store: a connection of its own.
        rank: whose files.
        run: the folder of this host that they are in.
    """

    def __init__(self, store: dist.Store, rank: int, run: RunDir) -> None:
        super().__init__(daemon=True, name="ship-to-the-leader")
        self.store, self.rank, self.folder = store, rank, run.path
        self.chunks = 0
        self.sent: dict[Path, int] = {}  # bytes of each file of lines
        self.now = b""
        self.over = threading.Event()

    def run(self) -> None:
        try:
            self.store.append("ships", f"{self.rank}\n")
            last = False
            while not last:
                last = self.over.wait(_EVERY_S)
                self.ship()
        except dist.DistError as error:
            print(f"what this rank writes cannot be shipped any more: {error}", flush=True)

    def finish(self) -> None:
        """Ship the last lines, and remove the folder. For the end of the rank."""
        self.over.set()
        self.join(_LAST_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ship(self) -> None:
        """Send what is new; lines after the snapshots that they speak of, which are whole before their line is."""
        run, rank = RunDir(self.folder), self.rank
        lines = [run.trace_file(rank), run.updates_file(rank), run.log_file(rank)]
        ends = {path: path.stat().st_size for path in lines if path.exists()}
        for path in sorted(self.folder.glob("snapshots/*/*.safetensors")):
            self.send(path, 0, path.stat().st_size, whole=True)
            path.unlink()
        if (path := run.now_file(rank)).exists() and (now := path.read_bytes()) != self.now:
            self.send(path, 0, len(now), whole=True)
            self.now = now
        for path, end in ends.items():
            if end > self.sent.get(path, -1):  # an empty file too
                self.send(path, self.sent.get(path, 0), end, whole=False)
                self.sent[path] = end

    def send(self, path: Path, start: int, end: int, *, whole: bool) -> None:
        """Bytes `start` to `end` of a file."""
        name = path.relative_to(self.folder).as_posix()
        with open(path, "rb") as file:
            for at in range(start, max(end, start + 1), CHUNK_BYTES):
                file.seek(at)
                head = {"file": name, "at": at, "of": end if whole else None}
                self.put(json.dumps(head).encode() + b"\n" + file.read(min(CHUNK_BYTES, end - at)))

    def put(self, chunk: bytes) -> None:
        while self.store.check([f"ship/{self.rank}/{self.chunks - _AHEAD}"]):  # the leader is behind
            time.sleep(0.05)
        self.store.set(f"ship/{self.rank}/{self.chunks}", chunk)
        self.chunks += 1


class Freight:
    """On the leader's host: takes in what other hosts ship, and writes it where readers look for it.

    Args:
        run: the run directory.
        store: the leader's connection.
    """

    def __init__(self, run: RunDir, store: dist.Store) -> None:
        self.run_dir, self.store = run, store
        self.taken: dict[int, int] = {}  # chunks so far of every rank that ships
        store.set("ships", "")

    def take(self) -> None:
        """Write all that has come. Raises DistError when the store has gone, ValueError for what no rank would ship."""
        for rank in map(int, self.store.get("ships").split()):
            self.taken.setdefault(rank, 0)
            while self.store.check([key := f"ship/{rank}/{self.taken[rank]}"]):
                chunk = self.store.get(key)
                self.taken[rank] += 1
                self.store.delete_key(key)
                head, _, content = chunk.partition(b"\n")
                self.write(rank, json.loads(head), content)

    def write(self, rank: int, head: dict[str, Any], content: bytes) -> None:
        name, at, of = head["file"], head["at"], head["of"]
        own = rf"(trace|updates)/rank{rank}\.jsonl|log/rank{rank}\.(log|now)"
        if not re.fullmatch(rf"{own}|snapshots/update-\d{{1,9}}/stage-\d{{1,7}}\.safetensors", name, re.ASCII):
            raise ValueError(f"rank {rank} shipped {name!r}, a file that is not its own")
        path = self.run_dir.path / name
        path.parent.mkdir(exist_ok=True)
        place = path if of is None else path.with_name(path.name + ".part")
        anew = os.O_TRUNC if at == 0 else 0  # in a run that is started again the log may be there
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | anew, 0o644), "wb") as file:
            file.seek(at)
            file.write(content)
        if of is not None and at + len(content) >= of:
            os.replace(place, path)
