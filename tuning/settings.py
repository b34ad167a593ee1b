"""`Settings`: what a study is asked to do, as a file that makes a resumed study the same study."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from paci_lab import InputError, TrainSpec
from paci_lab.reading import read_toml
from tuning.space import Space

__all__ = ["SAMPLERS", "Settings", "duration_text", "parse_duration"]

SAMPLERS = ("tpe", "gp")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A study in a nutshell.

    Args:
        base: the spec that the search starts from. Its `target_loss`, where given, is the target; else the target
            is what its flush run has reached after three quarters of its stream. No trial trains longer than its
            stream.
        space: what may vary.
        budget_s: seconds of trials' wall-clock time, start-up included, baseline and confirmation included, summed over
            all controllers.
        slack: a trial is stopped when it is this many times slower than the best of its side, at the target or
            on the way.
        seeds: how many seeds a contender gets in the search.
        confirm_seeds: how many fresh seeds the last two get.
        memory: most memory a device may use: bytes, or a share such as "90%"; None for no limit.
        hang_s: a trial that says nothing for so long is stopped; None: 30 s, or 20 updates of the baseline if longer.
        launcher: how a trial is started: a name, or file.py:Class.
        launcher_options: further keyword arguments of the launcher.
        pareto: look for little memory as well as for little time: no trial is stopped that needs less memory than
            every faster one, and the result is the front of both.
        sampler: of a space that is too large to be enumerated: "tpe" or "gp", which needs scipy.
        storage: an Optuna storage URL; None for a journal file in the study's folder.
        price: of one device for an hour, in whatever currency; None when money is not asked for.
    """

    base: TrainSpec
    space: Space = dataclasses.field(default_factory=Space)
    budget_s: float = 1800.0
    slack: float = 1.5
    seeds: int = 3
    confirm_seeds: int = 5
    memory: str | int | None = None
    hang_s: float | None = None
    launcher: str = "local"
    launcher_options: dict = dataclasses.field(default_factory=dict)
    pareto: bool = False
    sampler: str = "tpe"
    storage: str | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        numbers = (
            ("budget_s", self.budget_s, 0),
            ("slack", self.slack, 1),
            ("hang_s", self.hang_s, 0),
            ("price", self.price, 0),
        )
        for name, value, above in numbers:
            if value is not None and not (
                isinstance(value, int | float) and not isinstance(value, bool) and value > above
            ):
                raise InputError(name, value, f"a number above {above}", "see --help")
        for name in ("seeds", "confirm_seeds"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "a whole number from 1", "try 3")
        if not isinstance(self.pareto, bool):
            raise InputError("pareto", self.pareto, "true or false", "leave it out to look for little time alone")
        if self.sampler not in SAMPLERS:
            raise InputError("sampler", self.sampler, " | ".join(SAMPLERS), "use tpe")
        for name, plain in (("engine", "paci-lab"), ("checkpoint_every", 0)):
            if (value := getattr(self.base, name)) != plain:
                raise InputError(name, value, f"{plain} in a study, whose trials are compared", f"leave {name} out")
        memory_share(self.memory)
        for side in ("paci", "flush"):
            self.space.side(side, self.base)

    @property
    def confirmation_runs(self) -> int:
        """How many runs the confirmation needs room for: fresh seeds of the last two (with `pareto`, of the point with
        least memory too) and some of the shared seeds."""
        return (3 if self.pareto else 2) * self.confirm_seeds + 3

    def replace(self, **changes: Any) -> Settings:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) is not None}
        return {"schema": 1, **values, "base": self.base.to_dict(), "space": self.space.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "settings") -> Settings:
        """The reverse of `to_dict`; raises InputError for an unknown key or a newer schema."""
        if not isinstance(values, Mapping):
            raise InputError(where, values, "a table of settings", "start the study again")
        values = dict(values)
        if (schema := values.pop("schema", 1)) != 1:
            raise InputError(f"{where}: schema", schema, "1", "update paci_lab")
        names = {field.name for field in dataclasses.fields(cls)}
        for key in values:
            if key not in names:
                raise InputError(f"{where}: key", key, ", ".join(sorted(names)), "remove it")
        if "base" not in values:
            raise InputError(where, "no base", "a table [base] with the spec", "add it")
        base = TrainSpec.from_dict(values.pop("base"), where=f"{where} [base]")
        return cls(base=base, space=Space.from_dict(values.pop("space", {})), **values)

    def save(self, path: Path) -> None:
        path.write_text(tomli_w.dumps(self.to_dict()), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read a study.toml; raises InputError when it cannot be."""
        return cls.from_dict(read_toml(path, what="study"), where=str(path))


def memory_share(memory: str | int | None) -> float | None:
    """0.9 for "90%", None for bytes or no limit; raises InputError for anything else."""
    if memory is None or (isinstance(memory, int) and not isinstance(memory, bool) and memory > 0):
        return None
    if isinstance(memory, str) and memory.endswith("%"):
        try:
            if 0 < (share := float(memory[:-1]) / 100) <= 1:
                return share
        except ValueError:
            pass
    raise InputError("memory", memory, "bytes, or a share of the device such as 90%", "try 90%")


def parse_duration(text: str) -> float:
    """Seconds of "90", "90s", "5m", "1.5h" or "2d".

    >>> parse_duration("1.5h")
    5400.0
    """
    number, unit = (text[:-1], text[-1]) if text and text[-1] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError("duration", text, "a time such as 90s, 5m or 1.5h", "try 10m")
    return seconds


def duration_text(seconds: float) -> str:
    """A duration for people.

    >>> duration_text(12.34), duration_text(312), duration_text(9000)
    ('12.3 s', '5 min 12 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
