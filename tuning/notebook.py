"""A study from a notebook: start it in a process of its own, watch its table, look at what it found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from paci_lab import InputError, RunFailed
from paci_lab.show.notebook import html_table
from tuning import charts
from tuning.settings import Settings, duration_text
from tuning.study import Study

__all__ = ["RECORDINGS", "Controller", "start", "table", "windows_chart"]

RECORDINGS = Path(__file__).parents[1] / "notebooks" / "studies"
"""Finished studies that come with the lessons."""

_REFRESH_S = 1.0


class Controller:
    """A `paci-tune` process at work on a study, or a study that nobody works on.

    Attributes:
        study: to be asked for trials, status and recommendation at any time.
    """

    def __init__(self, study: Study, process: subprocess.Popen | None = None) -> None:
        self.study, self._process = study, process

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

    def live(self) -> Any:
        """A table of the trials, renewed every second while the controller runs."""
        import ipywidgets

        shown = ipywidgets.HTML(table(self.study))
        if not self.running:
            return shown
        stop = ipywidgets.Button(description="Stop")
        stopped = threading.Event()
        stop.on_click(lambda _: stopped.set())  # a callback only says so: waiting in it would hold up the page

        def follow() -> None:
            while self.running:
                if stopped.is_set():
                    self.stop()
                shown.value = table(self.study)
                time.sleep(_REFRESH_S)
            shown.value = table(self.study)
            stop.disabled = True

        threading.Thread(target=follow, daemon=True, name="study-table").start()
        return ipywidgets.VBox([shown, stop])

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
        on = f"{machine['cpu_cores']} cores of {machine['cpu']}"
        print(f"Training is switched off: {name} is a recorded study, made on {on}.")
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


def table(study: Study) -> str:
    """HTML: what the study has spent and every trial, newest first."""
    rows = [
        [
            study.label(t),
            t.phase,
            str(t.seed),
            t.status,
            "" if t.time_s is None else f"{t.time_s:.1f} s",
            f"{t.training_s:.1f} s" if t.training_s else "",
            Path(t.path).name,
        ]
        for t in reversed(study.trials())
    ]
    spent = f"{duration_text(study.spent_s)} of {duration_text(study.settings.budget_s)} used"
    headings = ["point", "phase", "seed", "outcome", "to target", "trained", "run directory"]
    return f"<p>{spent}</p>{html_table(headings, rows)}"


def windows_chart(study: Study) -> go.Figure:
    """Time to target against window, of all trials so far."""
    trials = [t for t in study.trials() if t.value is not None]
    return charts.time_against_window(trials, study.settings.base.stages, study.label)
