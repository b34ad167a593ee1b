"""On this machine: its cores, or its GPUs."""

from __future__ import annotations

from pathlib import Path

from paci_lab import Run, TrainSpec, launch
from tuning.launchers import State

__all__ = ["Local"]


class Local:
    """Ranks in a process group of their own, which end with the controller, however it ends."""

    name = "local"
    here = True

    def start(self, spec: TrainSpec, run_dir: Path) -> LocalJob:
        return LocalJob(launch(spec, run_dir))

    def cancel(self, job_id: str) -> None:
        """Nothing is left to end: the ranks went with their controller."""


class LocalJob:
    """A `paci_lab.Run` as the tuner sees it."""

    id = ""

    def __init__(self, run: Run) -> None:
        self._run = run

    def state(self) -> State:
        return "running" if self._run.running else "ended"

    def stop(self) -> None:
        self._run.stop()
