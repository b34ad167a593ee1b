"""Exact replays side by side, one process a core; each is kept as a file, so a command that was stopped goes on later.

As a program: reads {"spec", "file"} a line, writes the file, answers with a line, and ends when its input does.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paci_lab.errors import RunFailed
from paci_lab.spec import TrainSpec

__all__ = ["replay_all"]


def replay_all(
    specs: Mapping[str, TrainSpec], folder: Path, *, said: Callable[[str], None] = lambda name: None
) -> dict[str, list[tuple[float, float]]]:
    """Loss curves by name: (share of the run's tokens, validation loss) at every evaluation.

    Args:
        specs: by name.
        folder: where `<name>.json` is kept, and found again when its spec is the same.
        said: told the name of each that is done.

    Raises RunFailed with the end of what a replay said when one fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name, spec in specs.items():
        if _kept(folder / f"{name}.json", spec) is None:
            waiting.put(name)
        else:
            said(name)
    failed: list[str] = []
    processes = [_start() for _ in range(min(_cores(), waiting.qsize()))]
    workers = [
        threading.Thread(target=_feed, args=(process, waiting, specs, folder, said, failed)) for process in processes
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if failed:
        raise RunFailed(failed[0])
    return {name: _kept(folder / f"{name}.json", spec) for name, spec in specs.items()}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "paci_lab.claims.replays"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C is for the one who asked
    )


def _feed(
    process: subprocess.Popen,
    waiting: queue.SimpleQueue,
    specs: Mapping[str, TrainSpec],
    folder: Path,
    said: Callable[[str], None],
    failed: list[str],
) -> None:
    """Give `process` a replay after the other until none is left or one has failed."""
    while not failed:
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            return
        request = {"spec": specs[name].to_dict(), "file": str(folder / f"{name}.json")}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, so it answers nothing
        if process.stdout.readline():
            said(name)
        else:
            failed.append(f"the replay {name} ended early: its error is above")


def _kept(file: Path, spec: TrainSpec) -> list[tuple[float, float]] | None:
    """The curve in `file`; None when it is not there or of another spec."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return [tuple(point) for point in found["curve"]] if found["spec"] == spec.to_dict() else None
    except (OSError, ValueError, KeyError):
        return None


def main() -> None:
    """Replay for as long as the one who asks lives."""
    from paci_lab.exact_replay import replay
    from paci_lab.runtime.rundir import write_json

    asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            asked.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True, name="end-with-parent").start()
    while True:
        request = asked.get()
        spec = TrainSpec.from_dict(request["spec"])
        found = replay(spec)
        curve = [(microbatches / spec.total_microbatches, loss) for microbatches, _, loss in found.validation]
        write_json(Path(request["file"]), {"spec": spec.to_dict(), "curve": curve, "train": found.losses})
        print("done", flush=True)


if __name__ == "__main__":
    main()
