"""Every case through every framework, and every gradient against the hand-written loop's, number by number."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from torch import Tensor

from paci_lab.errors import InputError, RunFailed
from paci_lab.frameworks.case import Case
from paci_lab.frameworks.probe import Result
from paci_lab.frameworks.registry import FRAMEWORKS, installed_version
from paci_lab.frameworks.run import run
from paci_lab.machine import cpu_model

__all__ = ["CASES", "Comparison", "ROUNDING", "Row", "compare", "difference"]

ROUNDING = 1e-5
"""Below it two gradients in float32 are equal but for the order in which sums were taken."""

_BIG = Case(name="float32", model="pico", rows=4, microbatches=4, window=2, measured=True)
_SEGMENT = Case(name="", rows=2, window=16, microbatches=16)
CASES = (
    Case(name="equal"),
    Case(name="unequal", unequal=True),
    Case(name="unequal, naive", unequal=True, naive="loss"),
    Case(name="partial", microbatches=10),
    Case(name="partial, naive", microbatches=10, naive="loss"),
    Case(name="clip", clip=0.5),
    Case(name="clip, naive", clip=0.5, naive="clip"),
    Case(name="schedule", microbatches=16, window=2),
    Case(name="schedule, naive", microbatches=16, window=2, naive="schedule"),
    _SEGMENT.replace(name="BatchNorm", model="unet-batchnorm"),
    _SEGMENT.replace(name="GroupNorm", model="unet-groupnorm"),
    _BIG,
    _BIG.replace(name="bf16", bf16=True),
    _BIG.replace(name="checkpointing", checkpointing=True),
    _BIG.replace(name="both", bf16=True, checkpointing=True),
    _BIG.replace(name="float32, naive", naive="exchange"),
)
"""What lesson 08 compares."""


@dataclass(kw_only=True)
class Row:
    """One case through one framework, against the hand-written loop used right.

    Attributes:
        differences: per update, the largest difference of two numbers of a parameter's gradient, divided by that
            parameter's largest number; of all parameters the worst, named in `worst`. Empty when there is no result.
        expected_updates: what one pass over the data has; `unused` micro-batches went into none.
        schedule: whether every update used the learning rate it should.
        why: when there is no result, the reason.
        recorded: made earlier, on another machine, and shipped with the lessons.
    """

    framework: str
    case: str
    version: str = ""
    differences: list[float] = field(default_factory=list)
    worst: str = ""
    expected_updates: int = 0
    unused: int = 0
    learning_rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    schedule: bool = False
    seconds: float | None = None
    peak_bytes: int | None = None
    collectives: dict[str, int] = field(default_factory=dict)
    why: str = ""
    recorded: bool = False

    @property
    def right(self) -> bool:
        """All updates were made, with the hand-written loop's gradients."""
        return len(self.differences) == self.expected_updates > 0 and max(self.differences) < ROUNDING


@dataclass
class Comparison:
    """Rows of a comparison. `table(cases, show)` has a line per framework and a column per case.

    Printed, it is a table of the gradients of all cases that are not measured.
    """

    rows: list[Row]
    machine: str

    def row(self, framework: str, case: str) -> Row:
        """Raises InputError for a framework or case that was not compared."""
        for row in self.rows:
            if (row.framework, row.case) == (framework, case):
                return row
        known = sorted({f"{r.framework}/{r.case}" for r in self.rows})
        raise InputError("row", f"{framework}/{case}", ", ".join(known), "choose one of them")

    def table(self, *cases: str, show: Callable[[Row], str] | None = None) -> str:
        """Lines of text; `show` makes a cell of a row, the gradient's difference if none is given."""
        lines = [["", "version", *cases]]
        notes = []
        for name in dict.fromkeys(row.framework for row in self.rows):
            rows = [self.row(name, case) for case in cases]
            mark = " (recorded)" if rows[0].recorded else ""
            cells = ["-" if row.why else (show or gradient)(row) for row in rows]
            lines.append([FRAMEWORKS[name].title + mark, rows[0].version.split("+")[0], *cells])
            notes += [f"{FRAMEWORKS[name].title}: {why}" for why in dict.fromkeys(row.why for row in rows) if why]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*(line.rstrip() for line in text), *notes])

    def save(self, path: Path) -> None:
        said = {"machine": self.machine, "rows": [asdict(row) for row in self.rows]}
        path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Comparison:
        """A comparison that was saved; all its rows are marked as recorded."""
        said = json.loads(path.read_text(encoding="utf-8"))
        return cls([Row(**row | {"recorded": True}) for row in said["rows"]], said["machine"])


def gradient(row: Row) -> str:
    """ "right 2.1e-07", "WRONG 0.5", with what is missing."""
    missing = row.expected_updates - len(row.differences)
    note = f", {missing} update missing" if missing else ""
    return f"{'right' if row.right else 'WRONG'} {max(row.differences):.1e}{note}"


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> tuple[float, str]:
    """The largest difference of two numbers over the largest number of the parameter, and the parameter where."""
    return max((float((one[name] - g).abs().max() / g.abs().max()), name) for name, g in other.items())


def compare(
    cases: Sequence[Case] = CASES,
    frameworks: Sequence[str] = tuple(FRAMEWORKS),
    *,
    recorded: Comparison | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Train every case with every framework, one framework after the other.

    A framework that is not installed or fails is given the rows of `recorded`, or rows that say why there are none.
    Raises InputError for an unknown name, RunFailed when the hand-written loop itself fails.
    """
    for name in frameworks:
        installed_version(name)  # refuses an unknown one before anything is trained
    by_hand = [_same(case).replace(naive="", measured=False) for case in cases]
    if "hand" in frameworks:
        by_hand += [_same(case) for case in _cases_of("hand", cases)]
    by_hand = list(dict.fromkeys(by_hand))
    known = dict(zip(by_hand, run("hand", by_hand), strict=True))
    rows: list[Row] = []
    for name in frameworks:
        say(f"{FRAMEWORKS[name].title} ...")
        try:
            own = _cases_of(name, cases)
            if name == "hand":
                results = [replace(known[_same(case)], case=case) for case in own]
            else:
                results = run(name, own)
        except (InputError, RunFailed) as error:
            say(str(error))
            rows += _instead(name, cases, recorded, str(error))
            continue
        for result in results:
            rows.append(_row(name, result, known[_same(result.case).replace(naive="", measured=False)]))
    return Comparison(rows, f"{os.cpu_count()} cores of {cpu_model()}")


def _same(case: Case) -> Case:
    """The case by what is trained, whatever it is called."""
    return case.replace(name="")


def _cases_of(name: str, cases: Sequence[Case]) -> list[Case]:
    """Without several ranks there is no exchange that could be used wrongly."""
    return [case for case in cases if case.naive != "exchange" or FRAMEWORKS[name].ranks > 1]


def _instead(name: str, cases: Sequence[Case], recorded: Comparison | None, why: str) -> list[Row]:
    known = {row.case: row for row in recorded.rows if row.framework == name} if recorded else {}
    return [known.get(case.name) or Row(framework=name, case=case.name, why=why) for case in _cases_of(name, cases)]


def _row(name: str, result: Result, reference: Result) -> Row:
    pairs = [difference(a, b) for a, b in zip(result.gradients, reference.gradients, strict=False)]
    rates = zip(result.learning_rates, reference.learning_rates, strict=False)
    return Row(
        framework=name,
        case=result.case.name,
        version=result.version,
        differences=[value for value, _ in pairs],
        worst=max(pairs)[1] if pairs else "",
        expected_updates=result.case.updates,
        unused=result.unused,
        learning_rates=result.learning_rates,
        losses=result.losses,
        schedule=all(abs(a - b) < 1e-9 for a, b in rates),
        seconds=result.seconds,
        peak_bytes=result.peak_bytes,
        collectives=result.collectives,
    )
