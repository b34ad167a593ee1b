"""From a `Trace` to the arrays that a Gantt chart draws: no figure here, so that every number can be tested."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from paci_lab.language import _
from paci_lab.show.palette import FORWARD
from paci_lab.trace import OPS, SAVING, WAITS, Trace

__all__ = [
    "CYCLE",
    "DRAWN",
    "STRIPS",
    "Lookup",
    "Rows",
    "bar_arrays",
    "duration_text",
    "fitting_numbers",
    "held_steps",
    "version_spans",
    "working_share",
]

DRAWN = ("wait", "F", "B", "I", "W", "U", "snapshot")
"""Kinds of bars, in the order they are drawn; all kinds of waiting are one, and both of saving."""

STRIPS = ("in-flight", "version")
"""What can be drawn under the work of a stage."""

CYCLE = len(FORWARD)

_AXIS_PX, _DIGIT_PX, _PADDING_PX = 1100, 8, 6

_CODE = {op: code for code, op in enumerate(OPS)}
_SEVERAL = {"wait": WAITS, "snapshot": SAVING}
_CODES = {kind: [_CODE[op] for op in _SEVERAL.get(kind, (kind,))] for kind in DRAWN}
_BACKWARD = [_CODE["B"], _CODE["I"]]


@dataclasses.dataclass(frozen=True)
class Rows:
    """How the row of one stage, one unit high, is shared out from top to bottom.

    Args:
        parts: which of "work", "predicted", "in-flight" and "version" are drawn.
    """

    parts: tuple[str, ...]

    WEIGHT: ClassVar[dict[str, float]] = {"work": 1.0, "predicted": 0.5, "in-flight": 0.6, "version": 0.8}
    FILLED: ClassVar[float] = 0.88  # of a row; the rest is air between stages

    @property
    def weight(self) -> float:
        """Height in units of a row that shows work alone."""
        return sum(self.WEIGHT[part] for part in self.parts)

    def band(self, part: str) -> tuple[float, float]:
        """(centre, height) of `part`, counted downwards from the middle of the row."""
        above = self.parts[: self.parts.index(part)]
        share = self.FILLED / self.weight
        top = share * sum(self.WEIGHT[other] for other in above) - self.FILLED / 2
        height = share * self.WEIGHT[part]
        return top + height / 2, height * 0.94


def bar_arrays(trace: Trace, context: Trace, *, origin_ns: int, unit_ns: float) -> dict[str, dict[str, np.ndarray]]:
    """Columns of the bars of `trace`, by kind of `DRAWN`; arrays are empty where there are none.

    Args:
        trace: what is drawn (perhaps a part of a run).
        context: the run it is a part of, in which versions and waits are looked up.
        origin_ns, unit_ns: zero and unit of the time axis.

    Returns per kind: stage, microbatch, start and length (in units) and words (one hover text a bar).
    """
    look = Lookup(context)
    found = {}
    for kind in DRAWN:
        mask = np.isin(trace.op, _CODES[kind])
        stage, microbatch = trace.stage[mask], trace.microbatch[mask]
        length = trace.end_ns[mask] - trace.start_ns[mask]
        found[kind] = {
            "stage": stage,
            "microbatch": microbatch,
            "start": (trace.start_ns[mask] - origin_ns) / unit_ns,
            "length": length / unit_ns,
            "words": _words(kind, trace.of_kind(*(OPS[code] for code in _CODES[kind])), look),
        }
    return found


def _words(kind: str, trace: Trace, look: Lookup) -> np.ndarray:
    """The hover text of every bar of one kind: a title and a line or two, whose words are looked up once."""
    stages, numbers = trace.stage.tolist(), trace.microbatch.tolist()
    takes = _("takes {time}")
    took = [takes.format(time=duration_text(ns)) for ns in (trace.end_ns - trace.start_ns).tolist()]
    if kind == "U":
        title = "<b>" + _("stage {stage}: optimizer update {number}") + "</b><br>"
        version = _("weight version {before} becomes {after}")
        texts = [
            f"{title.format(stage=s, number=n)}{t}<br>{version.format(before=v, after=v + 1)}"
            for s, n, t, v in zip(stages, numbers, took, trace.version.tolist(), strict=True)
        ]
    elif kind == "snapshot":
        snapshot, checkpoint = (
            _("stage {stage}: weights saved after update {number}, to be evaluated off the clock"),
            _("stage {stage}: checkpoint saved after update {number}"),
        )
        texts = [
            f"<b>{(snapshot if code == _CODE['snapshot'] else checkpoint).format(stage=s, number=n)}</b><br>{t}"
            for s, n, t, code in zip(stages, numbers, took, trace.op.tolist(), strict=True)
        ]
    elif kind == "wait":
        title = "<b>" + _("stage {stage} waits") + "</b><br>"
        awaited = {
            _CODE["wait-F"]: _("for the activation of micro-batch {number} from stage {before}"),
            _CODE["wait-B"]: _("for the gradient of micro-batch {number} from stage {after}"),
            _CODE["wait-U"]: _("for the gradients of the other replicas, for update {number}"),
        }
        texts = [
            f"{title.format(stage=s)}{awaited[code].format(number=n, before=s - 1, after=s + 1)}<br>{t}"
            for s, n, t, code in zip(stages, numbers, took, trace.op.tolist(), strict=True)
        ]
    else:
        title = "<b>" + _titles()[kind] + "</b><br>"
        texts = [
            f"{title.format(stage=s, number=n)}{t}{waited}<br>{versions}"
            for s, n, t, waited, versions in zip(
                stages, numbers, took, look.waited(kind, trace), look.versions(trace), strict=True
            )
        ]
    return np.array(texts, dtype=object)


def _titles() -> dict[str, str]:
    return {
        "F": _("stage {stage}: forward of micro-batch {number}"),
        "B": _("stage {stage}: backward (input and weight gradient together) of micro-batch {number}"),
        "I": _("stage {stage}: input gradient, the half of a backward that is waited for, of micro-batch {number}"),
        "W": _("stage {stage}: weight gradient, the other half of a backward, of micro-batch {number}"),
    }


class Lookup:
    """Versions at forward and backward, and waits, of every (stage, micro-batch) of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.first = int(trace.microbatch.min(initial=0))
        self.width = int(trace.microbatch.max(initial=0)) - self.first + 1
        size = max(trace.stages, 1) * self.width
        key = self._key(trace.stage, trace.microbatch)
        self.version = {}
        for name, codes in (("forward", [_CODE["F"]]), ("backward", _BACKWARD)):
            mask = np.isin(trace.op, codes)
            self.version[name] = np.full(size, -1, dtype=np.int64)
            self.version[name][key[mask]] = trace.version[mask]
        self.wait = {}
        for kind in ("F", "B"):
            mask = trace.op == _CODE[f"wait-{kind}"]
            self.wait[kind] = np.zeros(size, dtype=np.int64)
            np.add.at(self.wait[kind], key[mask], trace.end_ns[mask] - trace.start_ns[mask])

    def _key(self, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
        return stage * self.width + np.clip(microbatch - self.first, 0, self.width - 1)

    def pair(self, stage: int, microbatch: int) -> tuple[int, int]:
        """The weight versions at forward and at backward; -1 for one that is not in the trace."""
        key = stage * self.width + min(max(microbatch - self.first, 0), self.width - 1)
        return int(self.version["forward"][key]), int(self.version["backward"][key])

    def versions(self, trace: Trace) -> list[str]:
        """The weight versions of both passes and the gap, in words, for every event of `trace`."""
        key = self._key(trace.stage, trace.microbatch)
        pairs = zip(self.version["forward"][key].tolist(), self.version["backward"][key].tolist(), strict=True)
        said: dict[tuple[int, int], str] = {}
        return [said.get(pair) or said.setdefault(pair, _versions_text(*pair)) for pair in pairs]

    def waited(self, kind: str, trace: Trace) -> list[str]:
        """What each operation of one kind waited for, in words; empty where it did not wait (W never does)."""
        if kind == "W":
            return [""] * len(trace)
        waits = self.wait["F" if kind == "F" else "B"][self._key(trace.stage, trace.microbatch)].tolist()
        if kind == "F":
            words, step = _("after waiting {time} for its activation from stage {stage}"), -1
        else:
            words, step = _("after waiting {time} for its gradient from stage {stage}"), 1
        return [
            "<br>" + words.format(time=duration_text(ns), stage=at + step) if ns else ""
            for ns, at in zip(waits, trace.stage.tolist(), strict=True)
        ]


def _versions_text(forward: int, backward: int) -> str:
    if forward < 0:
        words = _("weight version {backward} at backward (its forward is not in view)")
    elif backward < 0:
        words = _("weight version {forward} at forward, backward still to come")
    else:
        words = _("weight version {forward} at forward, {backward} at backward: gap {gap}")
    return words.format(forward=forward, backward=backward, gap=backward - forward)


def duration_text(ns: int) -> str:
    """A duration with three figures and a unit."""
    if ns >= 1_000_000_000:
        return f"{ns / 1e9:.3g} s" if ns < 100_000_000_000 else f"{ns / 1e9:.0f} s"
    if ns >= 1_000_000:
        return f"{ns / 1e6:.3g} ms" if ns < 999_500_000 else "1 s"
    return f"{ns / 1e3:.3g} µs" if ns < 999_500 else "1 ms"


def fitting_numbers(microbatch: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The text of every bar: its number where it fits into a bar that takes `share` of the axis, "" elsewhere.

    Left to the browser, which measures each text, this is what takes longest in drawing a chart.
    """
    texts = microbatch.astype(str)
    fits = share * _AXIS_PX >= _DIGIT_PX * np.char.str_len(texts) + _PADDING_PX
    return np.where(fits, texts, "")


def working_share(trace: Trace, start_ns: int, end_ns: int) -> float:
    """Share of all stages' time between the two moments that is work: 1 minus the bubble of what is drawn."""
    return float(trace.between(start_ns, end_ns).busy_ns().sum()) / (max(end_ns - start_ns, 1) * max(trace.stages, 1))


def held_steps(trace: Trace, start_ns: int, end_ns: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per stage, (times, micro-batches held from then on) between two moments, first and last moment included."""
    steps = []
    for stage in range(trace.stages):
        times, held = trace.in_flight(stage)
        here = trace.stage == stage
        begun, done = (
            set(trace.microbatch[here & np.isin(trace.op, codes)].tolist()) for codes in ([_CODE["F"]], _BACKWARD)
        )
        held = held + len(done - begun)  # a trace that begins within a run: their forwards came before it
        before = np.searchsorted(times, start_ns, side="right")
        inside = slice(before, np.searchsorted(times, end_ns, side="right"))
        first = held[before - 1] if before else len(done - begun)
        values = np.concatenate([[first], held[inside]])
        steps.append((np.concatenate([[start_ns], times[inside], [end_ns]]), np.append(values, values[-1])))
    return steps


def version_spans(trace: Trace, start_ns: int, end_ns: int) -> dict[str, np.ndarray]:
    """Spans during which a stage's weights stand still, between two moments: stage, start_ns, end_ns, version."""
    parts = []
    update = trace.op == _CODE["U"]
    for stage in range(trace.stages):
        here = update & (trace.stage == stage)
        made, after = trace.end_ns[here], trace.version[here] + 1
        if len(after):
            first = after[0] - 1
        else:
            first = trace.version[trace.stage == stage].min(initial=2**62)
            if first == 2**62:  # a stage that has said nothing yet
                continue
        starts = np.concatenate([[start_ns], made])
        ends = np.concatenate([made, [end_ns]])
        version = np.concatenate([[first], after])
        starts, ends = np.maximum(starts, start_ns), np.minimum(ends, end_ns)
        keep = ends > starts
        parts.append(np.stack([np.full(keep.sum(), stage), starts[keep], ends[keep], version[keep]]))
    rows = np.concatenate(parts, axis=1) if parts else np.zeros((4, 0), np.int64)
    return dict(zip(("stage", "start_ns", "end_ns", "version"), rows, strict=True))
