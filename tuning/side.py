"""A side of the search, PACI or flush: its dimensions, and the spec that a point of them stands for."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

from paci_lab import InputError, TrainSpec
from paci_lab.schedules import names_a_file
from tuning.theory import flush_windows, paci_windows

__all__ = ["ENUMERABLE", "SIDES", "Point", "Range", "Side", "flush_schedule", "point_key"]

SIDES = ("paci", "flush")
"""The two families of schedules; each is searched with its own window, learning rate and optimizer."""

ENUMERABLE = 24
"""Up to so many points a side is enumerated and raced; a sampler would propose the same ones again and again."""

Point = dict[str, Any]
"""Values by dimension, as Optuna stores them: numbers and texts."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between two bounds, both included, searched on a logarithmic scale; `whole` for whole numbers."""

    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise InputError("range", str(self), "two numbers above 0, the smaller first", "write it as 2..64")

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


@dataclasses.dataclass(frozen=True)
class Side:
    """One family of schedules: its dimensions, and the spec of a point.

    Attributes:
        name: "paci" or "flush".
        dimensions: values or Range by name.
        reasons: why a window is tried, by window.
    """

    name: str
    base: TrainSpec
    dimensions: Mapping[str, tuple | Range]
    reasons: Mapping[int, str]
    rule: str

    def __post_init__(self) -> None:
        for params in self.points() if self.enumerable else [point for point, _ in self.first()]:
            self.spec(params, 0)

    @property
    def size(self) -> float:
        """Number of points; infinite with a Range."""
        return math.prod(math.inf if isinstance(v, Range) else len(v) for v in self.dimensions.values())

    @property
    def enumerable(self) -> bool:
        return self.size <= ENUMERABLE

    def points(self) -> list[Point]:
        """All points of an enumerable side: those nearest to the base spec and to the window N-1 first.

        N-1 is PACI's smallest window with version gap 1; a good result early caps all that come after it.
        """
        names = list(self.dimensions)
        every = [dict(zip(names, values, strict=True)) for values in itertools.product(*self.dimensions.values())]
        plain, middle = self._plain(), self.base.stages - 1
        return sorted(
            every,
            key=lambda p: (
                sum(p[n] != plain[n] for n in names if n != "window"),
                abs(math.log(p["window"] / middle)),
                -p["window"],
            ),
        )

    def first(self) -> list[tuple[Point, str]]:
        """Points that theory gives, with the reason, to start a sampler from; all else as in the base spec."""
        plain, windows = self._plain(), self.dimensions["window"]
        if isinstance(windows, Range):
            suggest = paci_windows if self.name == "paci" else flush_windows
            found = suggest(self.base.stages, most=self.base.total_microbatches // 2)
            found = {w: why for w, why in found.items() if windows.low <= w <= windows.high}
        else:
            found = dict(self.reasons)
        return [({**plain, "window": window}, why) for window, why in sorted(found.items(), reverse=True)]

    def base_point(self) -> Point | None:
        """The point that is the base spec with this side's schedule; None where the space leaves it out."""
        point = self._plain()
        made, base = self.spec(point, 0), self.base
        names = ("window", "optimizer", "momentum", "microbatch_size", "stages", "partition")
        same = all(getattr(made, n) == getattr(base, n) for n in names) and math.isclose(
            made.learning_rate, base.learning_rate
        )
        return point if same else None

    def reason(self, params: Point) -> str:
        """Why the window of `params` is tried, "" when nothing but the search says so."""
        return self.reasons.get(params["window"], "")

    def spec(self, params: Point, seed: int) -> TrainSpec:
        """The spec of a point and seed index: same tokens and same held-out text as the base spec, whatever varies."""
        base = self.base
        size = params.get("microbatch_size", base.microbatch_size)
        rate = base.learning_rate * params.get("learning_rate_scale", 1.0)
        if self.rule == "sqrt":
            rate *= math.sqrt(params["window"] * size / (base.window * base.microbatch_size))
        changes: dict[str, Any] = {
            name: params[name] for name in ("optimizer", "momentum", "slack", "stages") if name in params
        }
        if "partition" in params:
            changes["partition"] = [int(n) for n in params["partition"].split("-")]
        flush = flush_schedule(base)
        if self.name == "flush":
            changes["slack"] = 0
        return base.replace(
            schedule="paci" if self.name == "paci" else flush,
            window=int(params["window"]),
            microbatch_size=size,
            learning_rate=rate,
            updates=None,
            microbatches=-(-base.total_microbatches * base.microbatch_size // size),
            seed=base.seed + seed,
            **changes,
        )

    def label(self, params: Point) -> str:
        """A point in a few words, for tables and folder names: "paci-8" or "paci-8-optimizer=muon"."""
        rest = [f"{n}={v:.3g}" if isinstance(v, float) else f"{n}={v}" for n, v in params.items() if n != "window"]
        return "-".join([self.name, str(params["window"]), *rest])

    def _plain(self) -> Point:
        """The values of the base spec where a dimension has them, else the first or a middle one."""
        base = self.base
        own = {
            "window": base.window,
            "learning_rate_scale": 1.0,
            "optimizer": base.optimizer,
            "momentum": base.momentum,
            "slack": base.slack,
            "microbatch_size": base.microbatch_size,
            "stages": base.stages,
        }
        point: Point = {}
        for name, values in self.dimensions.items():
            if isinstance(values, Range):
                value = own.get(name)
                if value is None or not values.low <= value <= values.high:
                    value = math.sqrt(values.low * values.high)
                point[name] = round(value) if values.whole else float(value)
            else:
                point[name] = own[name] if own.get(name) in values else values[0]
        return point


def point_key(params: Mapping[str, Any]) -> str:
    """Equal for equal points."""
    return json.dumps(dict(params), sort_keys=True)


def flush_schedule(base: TrainSpec) -> str:
    """Name of the flush schedule to compare with: the base spec's own, if it flushes. Code of the user's own is not
    imported for that, which reading a study would do too: `Study.create` has asked it."""
    if names_a_file(base.schedule) or base.build_schedule().flushes:
        return base.schedule
    if base.schedule != "paci":
        raise InputError(
            "schedule",
            base.schedule,
            "paci, or a flush schedule to hold it against: a study compares these two",
            "use paci-lab compare for others",
        )
    return "1f1b"
