"""The search: both sides in turns, each trial claimed in the storage, run, judged and told."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from pathlib import Path

import optuna
from optuna.trial import TrialState

from paci_lab import InputError
from tuning.execute import execute, free_folder
from tuning.launchers import Launcher
from tuning.locks import alive, held
from tuning.race import Seen, lighter, next_point
from tuning.settings import duration_text
from tuning.side import Side, point_key
from tuning.storage import (
    as_frozen,
    distributions,
    finish,
    guarded,
    open_side,
    open_storage,
    propose_for_both,
    seen_trials,
)
from tuning.study import Progress, Study
from tuning.trial import Frozen, Trial, memory_so_far, read_trials

__all__ = ["Search", "rebuild"]

_POLL_S = 0.5


class Search:
    """One controller's part of a search.

    Args:
        me: id of this controller, written into the trials that it runs.
    """

    def __init__(self, study: Study, frozen: Frozen, launcher: Launcher, me: str, progress: Progress) -> None:
        self.study, self.frozen, self.launcher, self.me, self.progress = study, frozen, launcher, me, progress
        # One at a time: two controllers that make the tables of an empty database at once would stop each other.
        with self.guarded(), self.claiming():
            storage = open_storage(study.folder, study.settings.storage)
            self.optuna = {
                name: open_side(storage, study.name, side, study.settings) for name, side in study.sides.items()
            }
            self._enter_baseline()

    def guarded(self):
        return guarded(self.study.folder, self.study.settings.storage)

    def claiming(self):
        """Only one controller decides at a time, so that no two take the same point for the same reason."""
        return held(self.study.folder / "controllers" / "claim.lock")

    def run(self) -> None:
        """Trials until the budget, less what is kept for the confirmation, is used, or nothing is left to try."""
        open_sides = dict(self.study.sides)
        while open_sides:
            side = min(open_sides.values(), key=lambda s: (sum(t.wall_s for t in self.seen(s)), s.name != "paci"))
            left = self.study.settings.budget_s - self.study.spent_s - self.reserve_s()
            needed = self.cap_s(side) + self.overhead_s()
            if left < needed:
                if self.others_at_work():
                    time.sleep(_POLL_S)
                    continue
                self._refuse_a_budget_for_nothing(needed - left)
                self.progress(
                    f"search ends: {duration_text(max(left, 0))} of the budget left for it, the next trial may take "
                    f"{duration_text(needed)}",
                    None,
                )
                return
            with self.guarded():
                claimed = self.claim(side)
            if claimed is not None:
                self.execute(side, *claimed)
            elif self.others_at_work():  # what they find may make a point worth another seed
                time.sleep(_POLL_S)
            else:
                del open_sides[side.name]
        self.progress("search ends: every point has been tried, and the contenders with several seeds", None)

    def others_at_work(self) -> bool:
        """True while another controller runs a trial of the search."""
        here = alive(self.study.folder) - {self.me}
        with self.guarded():
            return any(
                t.state == "RUNNING" and t.controller in here
                for side in self.study.sides.values()
                for t in self.seen(side)
            )

    # -- deciding -------------------------------------------------------------------------------------------------
    def claim(self, side: Side) -> tuple[optuna.Trial, Trial] | None:
        """Take the next trial of `side`, None when there is none. A point that was tried before gets its next seed."""
        study = self.optuna[side.name]
        with self.claiming():
            self._give_up_the_dead(study, side)
            settings = self.study.settings
            proposal = next_point(side, self.seen(side), seeds=settings.seeds, pareto=settings.pareto)
            if proposal == "sample" and settings.pareto:
                proposal = propose_for_both(study, side, settings.sampler)
            if proposal is None:
                return None
            if proposal != "sample":
                study.enqueue_trial(proposal)
            asked = study.ask(distributions(side))
            key = point_key(asked.params)
            seed = sum(t.counts and t.number < asked.number and point_key(t.params) == key for t in self.seen(side))
            trial = Trial(
                side=side.name,
                number=asked.number,
                phase="search",
                params=dict(asked.params),
                seed=seed,
                reason=side.reason(asked.params),
            )
            for name, value in (("controller", self.me), ("seed", seed), ("reason", trial.reason)):
                asked.set_user_attr(name, value)
        return asked, trial

    def seen(self, side: Side) -> list[Seen]:
        return seen_trials(self.optuna[side.name])

    def cap_s(self, side: Side, memory_bytes: float | None = None) -> float:
        """Training time after which a trial of `side` cannot matter. Each side has an incumbent of its own: flush
        gets as good a search as PACI, however far behind it is.

        Args:
            memory_bytes: what the trial needs so far, where memory matters as well as time: a faster trial counts only
                if it needs no more. A peak never falls, so a trial that is stopped would have been beaten in both.
        """
        rivals = [
            t
            for t in self.seen(side)
            if t.feasible and not (memory_bytes is not None and lighter(memory_bytes, t.memory_bytes))
        ]
        best = min((t.value for t in rivals), default=None)
        return self.frozen.time_cap_s if best is None else min(self.study.settings.slack * best, self.frozen.time_cap_s)

    def reserve_s(self) -> float:
        """What the confirmation will take, at most half of the budget."""
        best = min(
            (t.value for side in self.study.sides.values() for t in self.seen(side) if t.feasible),
            default=self.frozen.baseline_s,
        )
        runs = self.study.settings.confirmation_runs
        return min(runs * (best + self.overhead_s()), self.study.settings.budget_s / 2)

    def overhead_s(self) -> float:
        """What a trial takes beyond its training, by those so far."""
        done = [t.wall_s - t.training_s for side in self.study.sides.values() for t in self.seen(side) if t.wall_s]
        return max(statistics.median(done), 0.0) if done else self.frozen.overhead_s

    # -- doing ----------------------------------------------------------------------------------------------------
    def execute(self, side: Side, asked: optuna.Trial, trial: Trial) -> None:
        """Run a claimed trial and tell its outcome."""
        study = self.optuna[side.name]
        label = f"{side.label(trial.params)}, seed {trial.seed}"
        self.progress(f"{label}: running" + (f" ({trial.reason})" if trial.reason else ""), trial)

        run_dir = free_folder(self.study.folder / "trials" / f"{side.name}-{trial.number:04d}")

        def cap_s() -> float:
            return self.cap_s(side, memory_so_far(run_dir) if self.study.settings.pareto else None)

        def prune(step: int, loss: float) -> bool:
            with self.guarded():
                if self.study.settings.pareto:
                    asked.set_user_attr("memory_bytes", memory_so_far(run_dir))
                asked.report(loss, step)
                return asked.should_prune()

        def submitted(job: str) -> None:
            if job:
                with self.guarded():
                    asked.set_user_attr("job", job)

        try:
            done = execute(
                side,
                trial,
                run_dir,
                self.frozen,
                self.launcher,
                cap_s=cap_s,
                prune=prune,
                submitted=submitted,
            )
        except BaseException:
            with self.guarded():
                study.tell(asked, state=TrialState.FAIL)  # it never counts, and its seed is free again
            raise
        with self.guarded():
            finish(study, asked, done)
        self.progress(
            f"{label}: {done.status}" + (f" after {done.value:.1f} s" if done.status == "reached" else f", {done.why}"),
            done,
        )

    # -- keeping order --------------------------------------------------------------------------------------------
    def _give_up_the_dead(self, study: optuna.Study, side: Side) -> None:
        """Trials whose controller is gone are lost; a job that goes on without one is cancelled."""
        here = alive(self.study.folder)
        for trial in seen_trials(study):
            if trial.state == "RUNNING" and trial.controller not in here:
                if trial.job:
                    self.launcher.cancel(trial.job)
                study.tell(trial.number, state=TrialState.FAIL)
                for left in read_trials(self.study.folder):
                    if (left.side, left.number, left.status) == (side.name, trial.number, "running"):
                        dataclasses.replace(left, status="lost").save(Path(left.path))
                self.progress(f"trial {trial.number}: lost, its controller is gone", None)

    def _enter_baseline(self) -> None:
        """The baseline is a trial of flush, if the space has its point."""
        flush = self.study.sides["flush"]
        study = self.optuna["flush"]
        if study.get_trials(deepcopy=False) or flush.base_point() is None:
            return
        for trial in self.study.trials():
            if trial.phase == "baseline":
                study.add_trial(as_frozen(trial, flush))

    def _refuse_a_budget_for_nothing(self, missing_s: float) -> None:
        if not any(t.phase == "search" for t in self.study.trials()):
            least = self.study.settings.budget_s + 2 * missing_s  # half of it may be kept for the confirmation
            raise InputError(
                "budget",
                duration_text(self.study.settings.budget_s),
                f"at least {duration_text(least)}: the baseline "
                f"took {duration_text(self.study.spent_s)}, and a first trial must fit in",
                f"run paci-tune resume {self.study.folder} --budget {least:.0f}s; the baseline is kept",
            )


def rebuild(study: Study) -> int:
    """Make the storage anew from the run directories and return how many trials it holds; nobody may be at work."""
    if found := alive(study.folder):
        raise InputError("--rebuild", study.folder, "a study that nobody works on", f"stop {sorted(found)[0]} first")
    journal = study.folder / "study.journal"
    with guarded(study.folder, study.settings.storage):
        if study.settings.storage is None and journal.exists():
            os.replace(journal, _unused(journal))
        storage = open_storage(study.folder, study.settings.storage)
        count = 0
        for name, side in study.sides.items():
            try:
                optuna.delete_study(study_name=f"{study.name}-{name}", storage=storage)
            except KeyError:
                pass  # it was not there
            made = open_side(storage, study.name, side, study.settings)
            keep = [
                t
                for t in study.trials()
                if t.side == name and t.value is not None and t.phase in ("baseline", "search")
            ]
            for trial in keep:
                if trial.phase == "search" or side.base_point() is not None:
                    made.add_trial(as_frozen(trial, side))
                    count += 1
    return count


def _unused(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    return aside
