"""The search space of a study: what may vary, as the user gives it, checked against the base spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from paci_lab import InputError, TrainSpec
from tuning.side import Range, Side
from tuning.theory import flush_windows, paci_windows

__all__ = ["Space"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Space:
    """What may vary: per dimension a tuple of values, or a `Range` where that makes sense.

    A dimension that is left out keeps the value of the base spec.

    Args:
        windows: of PACI; when None, the windows that theory suggests.
        flush_windows: of the flush schedule; when None, likewise, with the base spec's own.
        learning_rate_scales: factors on the learning rate that the rule gives.
        learning_rate_rule: "sqrt": the base spec's learning rate times sqrt(sequences per update / the base spec's);
            "constant": the base spec's for every window.
        optimizers, momenta, microbatch_sizes, stages: values of the spec's fields.
        slacks: of PACI alone.
        partitions: layers per stage, a list each.
    """

    windows: tuple[int, ...] | Range | None = None
    flush_windows: tuple[int, ...] | Range | None = None
    learning_rate_scales: tuple[float, ...] | Range = ()
    learning_rate_rule: str = "sqrt"
    optimizers: tuple[str, ...] = ()
    momenta: tuple[float, ...] | Range = ()
    slacks: tuple[int, ...] = ()
    microbatch_sizes: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    partitions: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.learning_rate_rule not in ("sqrt", "constant"):
            raise InputError("learning_rate_rule", self.learning_rate_rule, "sqrt | constant", "use sqrt")
        for name in ("windows", "flush_windows"):
            if (values := getattr(self, name)) == ():
                raise InputError(name, "nothing", "at least one window", f"leave {name} out to take theory's")
            if isinstance(values, tuple) and not all(isinstance(v, int) and v >= 1 for v in values):
                raise InputError(name, _text(values), "whole numbers from 1", "try 2,4,8,16")
        if not isinstance(self.learning_rate_scales, Range) and any(v <= 0 for v in self.learning_rate_scales):
            raise InputError("learning_rate_scales", _text(self.learning_rate_scales), "factors above 0", "try 0.5,1,2")

    # -- files ----------------------------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what is not searched; a range is the text "2..64"."""

        def plain(value: Any) -> Any:
            return (
                str(value)
                if isinstance(value, Range)
                else [plain(v) for v in value]
                if isinstance(value, tuple)
                else value
            )

        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: plain(value) for name, value in values.items() if value not in (None, ())}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Space:
        """The reverse; an unknown key or a value of the wrong kind raises InputError."""
        fields = {field.name for field in dataclasses.fields(cls)}
        made: dict[str, Any] = {}
        for name, value in values.items():
            if name not in fields:
                raise InputError("space: key", name, ", ".join(sorted(fields)), "remove it")
            made[name] = value if name == "learning_rate_rule" else _dimension(name, value)
        return cls(**made)

    # -- the two sides --------------------------------------------------------------------------------------------
    def side(self, side: str, base: TrainSpec) -> Side:
        """One side's dimensions over `base`; raises InputError when they contradict each other or the base spec."""
        _check_base(self, base)
        counts = self.stages or (base.stages,)
        reasons: dict[int, str] = {}
        windows = self.windows if side == "paci" else self.flush_windows
        if windows is None:
            suggest = paci_windows if side == "paci" else flush_windows
            for stages in counts:
                reasons = suggest(stages, most=base.total_microbatches // 8) | reasons
            if side == "flush":
                reasons.setdefault(base.window, "the base spec's own")
            windows = tuple(sorted(reasons))
        elif isinstance(windows, tuple):
            known = (paci_windows if side == "paci" else flush_windows)(max(counts), most=base.total_microbatches)
            reasons = {w: known.get(w, "given") for w in windows}
        widest = windows.high if isinstance(windows, Range) else max(windows)
        if widest > base.total_microbatches // 2:
            raise InputError(
                "windows" if side == "paci" else "flush_windows",
                f"{widest:g}",
                f"at most half of the stream of {base.total_microbatches} micro-batches",
                "drop the widest windows, or train longer",
            )
        dimensions: dict[str, tuple | Range] = {"window": windows}
        for name, values in (
            ("learning_rate_scale", self.learning_rate_scales),
            ("optimizer", self.optimizers),
            ("momentum", self.momenta),
            ("slack", self.slacks if side == "paci" else ()),
            ("microbatch_size", self.microbatch_sizes),
            ("stages", self.stages),
            ("partition", tuple("-".join(map(str, p)) for p in self.partitions)),
        ):
            if values:
                dimensions[name] = values if isinstance(values, Range) else tuple(dict.fromkeys(values))
        return Side(side, base, dimensions, reasons, self.learning_rate_rule)


def _check_base(space: Space, base: TrainSpec) -> None:
    if base.stages < 2 or any(s < 2 for s in space.stages):
        raise InputError(
            "stages",
            min([base.stages, *space.stages]),
            "2 or more: one stage has nothing to wait for",
            "give --stages 2 or more",
        )
    if base.evaluate != "during":
        raise InputError(
            "evaluate", base.evaluate, "during: a trial is stopped by the validation loss it has so far", "use during"
        )
    if space.microbatch_sizes and base.paced:
        raise InputError(
            "microbatch_sizes",
            _text(space.microbatch_sizes),
            "none with paced devices, whose stated time is per micro-batch whatever its size",
            "remove the paces, or the micro-batch sizes",
        )
    if space.stages and (space.partitions or base.partition != "auto"):
        raise InputError("stages", _text(space.stages), "one number where a partition is given", "use partition auto")
    if space.stages and (isinstance(base.pace_forward_ms, list) or isinstance(base.pace_backward_ms, list)):
        raise InputError(
            "stages", _text(space.stages), "one number where paces are given per stage", "give one pace for all stages"
        )


def _dimension(name: str, value: Any) -> Any:
    if isinstance(value, str) and ".." in value:
        if name not in ("windows", "flush_windows", "learning_rate_scales", "momenta"):
            raise InputError(name, value, "a list of values", "write it as a list")
        try:
            low, high = (float(part) for part in value.split(".."))
        except ValueError:
            raise InputError(name, value, "a range such as 2..64", "write it as low..high") from None
        whole = name.endswith("windows")
        return Range(int(low), int(high), True) if whole else Range(low, high)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(name, value, "a list of values, or a range such as 2..64", "write it as a list")
    kind = str if name == "optimizers" else list if name == "partitions" else int | float
    if not all(isinstance(v, kind) and not isinstance(v, bool) for v in value):
        raise InputError(
            name,
            _text(value),
            "texts" if kind is str else "lists of layers" if kind is list else "numbers",
            "check the list",
        )
    if name == "learning_rate_scales":
        return tuple(map(float, value))
    return tuple(tuple(v) if isinstance(v, list) else v for v in value)


def _text(values: Any) -> str:
    return str(values) if isinstance(values, Range) else ",".join(map(str, values))
