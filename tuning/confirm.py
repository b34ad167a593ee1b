"""The confirmation: shared seeds for the best three, then fresh seeds for the winner and its rival, interleaved.

The rival is the best point of the other side: the winner of a search has been lucky as well as good, and fresh seeds
take the luck away. Where memory matters too, the point with least memory runs beside them. Pruning is off here, only
the study's time cap holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuning.execute import execute, free_folder
from tuning.launchers import Launcher
from tuning.locks import held
from tuning.pareto import pareto_front
from tuning.race import median_value
from tuning.settings import duration_text
from tuning.side import point_key
from tuning.study import Progress, Study
from tuning.trial import Frozen, Trial

__all__ = ["FRESH", "finalists", "ranked_points", "run_confirmation"]

FRESH = 1000
"""First seed index of the final rounds: no trial of a search gets that far."""

_BEST = 3


def ranked_points(trials: list[Trial]) -> list[tuple[float, Trial]]:
    """(median value, one trial) of every point that may be recommended, best first, fresh seeds left out.

    Misses count with their penalty.
    """
    points: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.value is not None and trial.seed < FRESH:
            points.setdefault(_key(trial), []).append(trial)
    scored = [
        (median_value(group), group[0])
        for group in points.values()
        if any(t.feasible for t in group) and not any(t.constraints.get("memory", 0) > 0 for t in group)
    ]
    return sorted(scored, key=lambda item: item[0])


def finalists(trials: list[Trial], *, seeds: int) -> tuple[Trial | None, Trial | None]:
    """The winner, and the best point of the other side; None where there is none.

    The winner is chosen among the points that have had all shared seeds, where there are such points.
    """
    ranked = [trial for _, trial in ranked_points(trials)]
    if not ranked:
        return None, None
    had: dict[str, set[int]] = {}
    for trial in trials:
        if trial.value is not None and trial.seed < FRESH:
            had.setdefault(_key(trial), set()).add(trial.seed)
    full = [t for t in ranked if len(had[_key(t)]) >= seeds]
    winner = (full or ranked)[0]
    return winner, next((t for t in ranked if t.side != winner.side), None)


def run_confirmation(
    study: Study, frozen: Frozen, launcher: Launcher, progress: Progress, *, within_budget: bool
) -> None:
    """Run what is missing of it. With `within_budget`, a round that the budget has no room for is left out."""
    with held(study.folder / "controllers" / "confirm.lock"):
        settings = study.settings
        best = [trial for _, trial in ranked_points(study.trials())[:_BEST]]
        for trial in _distinct([*best, *_front(study)]):
            for seed in range(settings.seeds):
                _run(study, frozen, launcher, progress, trial, seed, "shared", within_budget)
        last = _distinct([*finalists(study.trials(), seeds=settings.seeds), *_front(study)[-1:]])
        for round_ in range(settings.confirm_seeds):
            missing = [t for t in last if not _done(study, t, FRESH + round_)]
            needed = sum(t.value for t in missing) + len(missing) * frozen.overhead_s
            left = settings.budget_s - study.spent_s
            if within_budget and missing and left < needed:
                progress(
                    f"confirmation ends after {round_} of {settings.confirm_seeds} rounds: "
                    f"{duration_text(max(left, 0))} of the "
                    f"budget left, a round takes {duration_text(needed)}",
                    None,
                )
                return
            for trial in last if round_ % 2 == 0 else reversed(last):  # a machine that slows down slows all
                _run(study, frozen, launcher, progress, trial, FRESH + round_, "final", False)


def _front(study: Study) -> list[Trial]:
    """The front as the search has left it, least memory last; empty where memory is not asked for."""
    if not study.settings.pareto:
        return []
    searched = [t for t in study.trials() if t.seed < FRESH]
    return [spot.trial for spot in pareto_front(searched)]


def _distinct(trials: Sequence[Trial | None]) -> list[Trial]:
    """One trial of every point among them, in order."""
    found: dict[str, Trial] = {}
    for trial in trials:
        if trial is not None:
            found.setdefault(_key(trial), trial)
    return list(found.values())


def _run(
    study: Study,
    frozen: Frozen,
    launcher: Launcher,
    progress: Progress,
    like: Trial,
    seed: int,
    phase: str,
    within_budget: bool,
) -> None:
    if _done(study, like, seed):
        return
    if within_budget and study.settings.budget_s - study.spent_s < like.value + frozen.overhead_s:
        return
    side = study.sides[like.side]
    trial = Trial(side=like.side, number=seed, phase=phase, params=like.params, seed=seed, reason=like.reason)
    label = f"{phase}: {side.label(like.params)}, seed {seed}"
    progress(f"{label}: running", trial)
    run_dir = free_folder(Path(study.folder) / "confirm" / f"{side.label(like.params)}-seed{seed}")
    done = execute(
        side, trial, run_dir, frozen, launcher, cap_s=lambda: frozen.time_cap_s, prune=lambda step, loss: False
    )
    progress(
        f"{label}: {done.status}" + (f" after {done.value:.1f} s" if done.status == "reached" else f", {done.why}"),
        done,
    )


def _done(study: Study, like: Trial, seed: int) -> bool:
    return any(_same(t, like) and t.seed == seed and t.value is not None for t in study.trials())


def _same(one: Trial, other: Trial) -> bool:
    return one.side == other.side and one.params == other.params


def _key(trial: Trial) -> str:
    return trial.side + point_key(trial.params)
