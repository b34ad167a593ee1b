"""A study from a notebook: start it in a process of its own, watch its table, look at what it found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from paci_lab import InputError, RunFailed
from paci_lab.language import _
from tuning import charts
from tuning.settings import Settings
from tuning.study import Study
from tuning.trial_view import StudyView, table

__all__ = ["RECORDINGS", "Controller", "start", "table", "windows_chart"]

RECORDINGS = Path(__file__).parents[1] / "notebooks" / "studies"
"""Finished studies that come with the lessons."""


class Controller:
    """A `paci-tune` process at work on a study, or a study that nobody works on.

    Attributes:
        study: to be asked for trials, status and recommendation at any time.
    """

    def __init__(self, study: Study, process: subprocess.Popen | None = None) -> None:
        self.study, self._process = study, process
        self._view: StudyView | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self) -> dict[str, Any]:
        """Until the controller has ended; returns the recommendation. A KeyboardInterrupt stops it in order.

        Raises RunFailed with what the controller said when it ended without one.
        """
        if self._process is not None:
            try:
                self._process.wait()
            except KeyboardInterrupt:
                self.stop()
                raise
            if self._process.returncode not in (0, 1):
                raise RunFailed(
                    (self.study.folder / "controller.log").read_text(encoding="utf-8").strip().splitlines()[-1]
                )
        return self.study.recommendation()

    def stop(self) -> None:
        """End it and its ranks; the running trial is lost, and `start` or paci-tune resume goes on."""
        if self.running:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def live(self) -> StudyView:
        """A table of the trials, renewed every second while the controller runs; a click on a row shows the Gantt chart
        of that trial under it, while it runs as well. A second view of the study closes the first."""
        if self._view is not None:
            self._view.close()
        self._view = StudyView(self)
        return self._view

    def __repr__(self) -> str:
        return f"<study {self.study.folder}: {'running' if self.running else 'nobody works on it'}>"


def start(name: str, settings: Settings, folder: str | Path = "tune") -> Controller:
    """Make or go on with the study `folder`/`name`: start a controller on it and return at once.

    With PACI_LAB_TRAIN=0 in the environment, the recording `name` that came with the lessons is opened instead. The
    controller goes on when the notebook is closed; paci-tune status and resume find its study.

    Raises InputError when the settings are not those of the study that is there.
    """
    if os.environ.get("PACI_LAB_TRAIN") == "0":
        if not (RECORDINGS / name).is_dir():
            raise InputError(
                "recording", name, "a study that came with the lessons", "unset PACI_LAB_TRAIN to run it instead"
            )
        study = Study.open(RECORDINGS / name)
        machine = study.frozen.machine
        words = _("Training is switched off: {name} is a recorded study, made on {cores} cores of {cpu}.")
        print(words.format(name=name, cores=machine["cpu_cores"], cpu=machine["cpu"]))
        return Controller(study)
    path = Path(folder) / name
    there = (path / "study.toml").exists()
    study = Study.open(path) if there else Study.create(path, settings)
    if study.settings != settings:
        raise InputError("study", path, "a study with these settings, this one has others", "choose another name")
    with open(path / "controller.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tuning.cli", "resume", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Controller(study, process)


def windows_chart(study: Study) -> go.Figure:
    """Time to target against window, of all trials so far."""
    trials = [t for t in study.trials() if t.value is not None]
    return charts.time_against_window(trials, study.settings.base.stages, study.label)
