"""`Study`: a folder with everything a search has asked, measured and found."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paci_lab import InputError
from paci_lab.reading import read_json
from paci_lab.schedules import is_own
from tuning.baseline import run_baseline
from tuning.launchers import Launcher, open_launcher
from tuning.locks import Presence, alive, held
from tuning.settings import Settings
from tuning.side import SIDES, Side
from tuning.trial import Frozen, Trial, frozen_from, read_trials

__all__ = ["Progress", "Study"]

Progress = Callable[[str, Trial | None], None]
"""Told what happens: (a sentence, the trial it is about)."""


def _silent(sentence: str, trial: Trial | None) -> None:
    """Progress of a study that nobody watches."""


class Study:
    """A study in its folder:

        study.toml         the settings
        frozen.json        what the baseline has settled: target, time cap, machine
        baseline/          its run directory
        trials/<side>-<n>/ run directories of the search, each with a trial.json
        confirm/           run directories of the confirmation
        study.id           its name in Optuna's storage
        study.journal      Optuna's storage, unless the settings name another
        controllers/       who is at work
        report.html, trials.csv, recommended.toml

    Attributes:
        settings: as given.
        frozen: None until the baseline has run.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        self.sides: dict[str, Side] = {name: settings.space.side(name, settings.base) for name in SIDES}

    @classmethod
    def create(cls, folder: str | Path, settings: Settings) -> Study:
        """A new study; raises InputError when the folder holds one already, or cannot be written."""
        folder, base = Path(folder), settings.base
        # Asked here alone: to open a study must not import what it names.
        if is_own(base.schedule) and not base.build_schedule().flushes:
            settings = settings.replace(base=base.replace(schedule="1f1b"))
        open_launcher(settings.launcher, settings.launcher_options)  # refused before anything is written
        if settings.sampler != "tpe":
            from tuning.storage import made_sampler

            made_sampler(settings.sampler)  # likewise, with the packages that it lacks
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "study.toml").exists() and any(folder.iterdir()):
                raise InputError("study", folder, "a new or empty folder", "name another one")
            with open(folder / "study.toml", "x", encoding="utf-8"):
                pass  # the one who makes the file is the one who made the study
            settings.save(folder / "study.toml")
            made = cls(folder, settings)
            made.name  # noqa: B018 - it is drawn now, before a second controller can ask for it
        except FileExistsError:
            same = _same(folder, settings)
            raise InputError(
                "study",
                folder,
                "a new folder"
                if same
                else "a new folder: this one holds a study made for another spec or with other settings",
                f"run paci-tune resume {folder} to go on with it, or name another folder",
            ) from None
        except OSError as error:
            raise InputError(
                "study", folder, "a folder that can be written", f"choose another ({error.strerror or error})"
            ) from None
        return made

    @classmethod
    def open(cls, folder: str | Path) -> Study:
        """A study that is there; raises InputError when there is none. A lost study.toml is read off the baseline."""
        folder = Path(folder)
        try:
            if not (folder / "study.toml").exists() and (folder / "baseline" / "trial.json").exists():
                values = read_json(folder / "baseline", folder / "baseline" / "trial.json") or {}
                Settings.from_dict(values.get("settings")).save(folder / "study.toml")
            if not (folder / "study.toml").exists():
                raise InputError("study", folder, "a folder with a study.toml", "start one with paci-tune run")
        except OSError as error:
            raise InputError("study", folder, "a folder that can be read", f"check its permissions ({error})") from None
        return cls(folder, Settings.load(folder / "study.toml"))

    # -- what is known --------------------------------------------------------------------------------------------
    @property
    def frozen(self) -> Frozen | None:
        for path, key in ((self.folder / "frozen.json", None), (self.folder / "baseline" / "trial.json", "frozen")):
            values = read_json(path.parent, path)
            values = values if key is None or values is None else values.get(key)
            if values is not None:
                return frozen_from(values, str(path))
        return None

    def trials(self) -> list[Trial]:
        """Every trial, from the run directories; one whose controller is gone is "lost"."""
        found = read_trials(self.folder)
        if any(t.status == "running" for t in found) and not alive(self.folder):
            found = [dataclasses.replace(t, status="lost") if t.status == "running" else t for t in found]
        return found

    @property
    def spent_s(self) -> float:
        """Wall-clock seconds of all trials so far, baseline and confirmation included."""
        return sum(trial.wall_s for trial in read_trials(self.folder))

    def label(self, trial: Trial) -> str:
        """The point of a trial in a few words."""
        return self.sides[trial.side].label(trial.params)

    def status(self) -> dict[str, Any]:
        """What the study has done and found, as figures."""
        trials, frozen = self.trials(), self.frozen
        counts: dict[str, int] = {}
        for trial in trials:
            counts[trial.status] = counts.get(trial.status, 0) + 1
        good = [t for t in trials if t.feasible and t.phase != "baseline"]
        best = {side: min((t for t in good if t.side == side), key=lambda t: t.value, default=None) for side in SIDES}
        return {
            "study": str(self.folder),
            "spent_s": self.spent_s,
            "budget_s": self.settings.budget_s,
            "controllers": sorted(alive(self.folder)),
            "trials": counts,
            "target_loss": frozen.target_loss if frozen else None,
            "baseline_s": frozen.baseline_s if frozen else None,
            "best": {
                side: {"point": self.label(t), "time_to_target_s": t.value, "run": t.path} if t else None
                for side, t in best.items()
            },
        }

    # -- doing ----------------------------------------------------------------------------------------------------
    def run(self, *, progress: Progress = _silent, share_machine: bool = False, confirm: bool = True) -> dict[str, Any]:
        """Search until the budget is used or nothing is left to learn, confirm, report; returns the recommendation.

        Goes on where an earlier run stopped, however it stopped, and shares the work with other controllers.

        Args:
            share_machine: allow a second controller on this machine, when each has devices of its own.
            confirm: run the confirmation as well, in the room that the budget has kept for it.
        """
        from tuning.confirm import run_confirmation
        from tuning.report import write_all
        from tuning.search import Search

        launcher = self.launcher()
        with self._writing(), Presence(self.folder, exclusive=launcher.here and not share_machine) as presence:
            frozen = self.freeze(launcher, progress)
            Search(self, frozen, launcher, presence.id, progress).run()
            if confirm:
                run_confirmation(self, frozen, launcher, progress, within_budget=True)
        return write_all(self)

    def confirm(self, *, progress: Progress = _silent, share_machine: bool = False) -> dict[str, Any]:
        """Run what is left of the confirmation, whatever the budget says; returns the recommendation."""
        from tuning.confirm import run_confirmation
        from tuning.report import write_all

        launcher, frozen = self.launcher(), self.frozen
        if frozen is None:
            raise InputError("study", self.folder, "a study that has searched", "run paci-tune resume first")
        with self._writing(), Presence(self.folder, exclusive=launcher.here and not share_machine):
            run_confirmation(self, frozen, launcher, progress, within_budget=False)
        return write_all(self)

    def report(self) -> dict[str, Any]:
        """Write report.html, trials.csv and recommended.toml; returns the recommendation."""
        from tuning.report import write_all

        return write_all(self)

    def recommendation(self) -> dict[str, Any]:
        """What to use, with the evidence; see `tuning.recommend.recommend`."""
        from tuning.recommend import recommend

        return recommend(self)

    def set_budget(self, budget_s: float) -> None:
        """Give the study more time, or less."""
        self.settings = self.settings.replace(budget_s=budget_s)
        part = self.folder / "study.toml.part"
        self.settings.save(part)
        os.replace(part, self.folder / "study.toml")

    def launcher(self) -> Launcher:
        return open_launcher(self.settings.launcher, self.settings.launcher_options)

    @property
    def name(self) -> str:
        """Of the Optuna studies: unique in a storage that holds many, and the same wherever its folder is."""
        path = self.folder / "study.id"
        if not path.exists():
            with contextlib.suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
                file.write(f"{self.folder.resolve().name}-{uuid.uuid4().hex[:8]}\n")
        return path.read_text(encoding="utf-8").strip()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn a folder that cannot be written any more into one message; what is in it stays good."""
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            fix = f"free space or change permissions ({error.strerror or error}), then resume {self.folder}"
            raise InputError("study", self.folder, "a folder that can be written", fix) from None

    def freeze(self, launcher: Launcher, progress: Progress) -> Frozen:
        """The baseline's findings; runs it if nobody has, while other controllers wait."""
        with held(self.folder / "controllers" / "baseline.lock"):
            frozen = self.frozen
            if frozen is None:
                progress("baseline: one flush run that settles the target", None)
                flush = self.sides["flush"]
                params = flush.base_point() or {"window": self.settings.base.window}
                frozen = run_baseline(self.folder, self.settings, launcher, params)
                progress(
                    f"target: validation loss {frozen.target_loss:.4f}, which flush reaches after "
                    f"{frozen.baseline_s:.1f} s",
                    None,
                )
            part = self.folder / "frozen.json.part"
            part.write_text(json.dumps(dataclasses.asdict(frozen), indent=1) + "\n", encoding="utf-8")
            os.replace(part, self.folder / "frozen.json")
        return frozen


def _same(folder: Path, settings: Settings) -> bool:
    try:
        return Settings.load(folder / "study.toml") == settings
    except InputError:
        return False
