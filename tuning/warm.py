"""Warm start: what an older study, for another depth or batch size, says about which windows are not worth a trial."""

from __future__ import annotations

import dataclasses
import math

from paci_lab import InputError
from tuning.confirm import ranked_points
from tuning.race import STOPPED
from tuning.settings import Settings
from tuning.side import SIDES
from tuning.study import Study

__all__ = ["warm_start"]

_SLOW = 1.25
"""A window this many times slower than the best of its side in the old study is left out of the new one."""

_NEAR = 1.5


def warm_start(settings: Settings, old: Study) -> tuple[Settings, str]:
    """Settings with fewer windows, and what was left out, in words.

    Windows of different depths are compared by window / (N-1): that decides PACI's mean version gap (N-1)/a as well as
    the bubble (N-1)/(m+N-1) of a flush schedule. The nearest window of the old study speaks for a new one, if it is
    within a factor of 1.5.
    """
    if old.frozen is None:
        raise InputError(
            "--warm-start", old.folder, "a study whose baseline has run", "leave it out, or finish that study"
        )
    kept, dropped = {}, {}
    for name in SIDES:
        side = settings.space.side(name, settings.base)
        windows = side.dimensions["window"]
        if not isinstance(windows, tuple):
            raise InputError(
                "--warm-start",
                old.folder,
                "a list of windows to choose from, not a range",
                "give the windows as a list",
            )
        seen = _slow_by_ratio(old, name)
        keep = tuple(w for w in windows if not _was_slow(seen, w / (settings.base.stages - 1)))
        kept[name] = keep or windows
        dropped[name] = [w for w in windows if w not in kept[name]]
    others = {
        name: settings.space.side(name, settings.base).size
        / len(settings.space.side(name, settings.base).dimensions["window"])
        for name in SIDES
    }
    saved = sum(len(dropped[name]) * others[name] for name in SIDES)
    space = dataclasses.replace(settings.space, windows=kept["paci"], flush_windows=kept["flush"])
    gone = "; ".join(f"{name}: {', '.join(map(str, dropped[name]))}" for name in SIDES if dropped[name])
    told = (
        f"Warm start from {old.folder}: {saved:.0f} points saved (windows left out, {gone})."
        if gone
        else f"Warm start from {old.folder}: it saves no trial, no window here is near one that was slow there."
    )
    return settings.replace(space=space), told


def _slow_by_ratio(old: Study, name: str) -> dict[float, bool]:
    """window / (N-1) of the old study's windows -> whether it was slow, or was never seen to reach the target."""
    trials = [t for t in old.trials() if t.side == name and t.value is not None]
    after = old.settings.base.stages - 1
    fastest: dict[int, float] = {}
    for median, trial in ranked_points(trials):
        fastest.setdefault(trial.params["window"], median)
    best = min(fastest.values(), default=math.inf)
    tried = {t.params["window"] for t in trials if t.status in ("reached", *STOPPED)} if fastest else set()
    return {w / after: fastest.get(w, math.inf) > _SLOW * best for w in tried}


def _was_slow(seen: dict[float, bool], ratio: float) -> bool:
    """What the nearest window of the old study says, if it is near enough to say anything."""
    nearest = min(seen, key=lambda other: abs(math.log(other / ratio)), default=None)
    return nearest is not None and abs(math.log(nearest / ratio)) < math.log(_NEAR) and seen[nearest]
