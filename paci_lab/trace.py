"""`Trace`: what every stage did and when, the one thing that simulator, replay and real ranks all produce."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paci_lab.errors import InputError
from paci_lab.reading import MOST, parse_json

__all__ = ["COMPUTE", "OPS", "SAVING", "WAITS", "Trace", "TraceEvent"]

COMPUTE = ("F", "B", "I", "W", "U")
"""Kinds of work, as in `paci_lab.schedules.KINDS`."""

WAITS = ("wait-F", "wait-B", "wait-U")
"""Waiting for the message a forward or a backward needs, and for the other replicas' gradients before an update."""

SAVING = ("snapshot", "checkpoint")
"""Saving weights for evaluation, and saving all that a run needs to go on from there."""

OPS = (*COMPUTE, *WAITS, *SAVING)
"""Every event: work, waiting and saving."""

_CODE = {op: code for code, op in enumerate(OPS)}
_BACKWARD = (_CODE["B"], _CODE["I"])
_RELEASE = (_CODE["B"], _CODE["W"])


class TraceEvent(NamedTuple):
    """One event of one stage.

    Args:
        stage, rank: where.
        op: one of `OPS`.
        microbatch: the micro-batch worked on or waited for; for U, wait-U, snapshot and checkpoint the number of the
            update.
        start_ns, end_ns: nanoseconds since training began, on a clock that all ranks share.
        version: updates this stage had made when the event began.
        update: the update that this event's work goes into.
    """

    stage: int
    rank: int
    op: str
    microbatch: int
    start_ns: int
    end_ns: int
    version: int
    update: int


class Trace:
    """A sequence of events with what can be read off them. Columns are numpy arrays, one entry per event.

    Args:
        events: the events, in any order; they are kept sorted by start.
        source: where it comes from, in words a chart can print: "simulated", "replayed", "measured", …
        stages: number of stages; the largest seen plus one when not given.
    """

    def __init__(self, events: Iterable[TraceEvent | tuple], *, source: str, stages: int | None = None) -> None:
        rows = list(events)
        columns = list(zip(*rows, strict=True)) or [()] * len(TraceEvent._fields)
        self._set(
            [
                np.array([_CODE[op] for op in column] if i == 2 else column, dtype=np.int64)
                for i, column in enumerate(columns)
            ],
            source,
            stages,
        )

    @classmethod
    def from_columns(cls, columns: list, *, source: str, stages: int | None = None) -> Trace:
        """Columns in the order of `TraceEvent`, `op` as its position in `OPS`; for producers in a hurry."""
        trace = cls.__new__(cls)
        trace._set([np.asarray(column, dtype=np.int64) for column in columns], source, stages)
        return trace

    def _set(self, columns: list[np.ndarray], source: str, stages: int | None) -> None:
        order = np.argsort(columns[4], kind="stable")
        (self.stage, self.rank, self.op, self.microbatch, self.start_ns, self.end_ns, self.version, self.update) = (
            column[order] for column in columns
        )
        self.source = source
        self.stages = stages if stages is not None else int(self.stage.max(initial=-1)) + 1

    def __len__(self) -> int:
        return len(self.stage)

    def __iter__(self) -> Iterator[TraceEvent]:
        columns = (
            self.stage,
            self.rank,
            self.op,
            self.microbatch,
            self.start_ns,
            self.end_ns,
            self.version,
            self.update,
        )
        for stage, rank, op, *rest in zip(*(column.tolist() for column in columns), strict=True):
            yield TraceEvent(stage, rank, OPS[op], *rest)

    def _take(self, mask: np.ndarray, start_ns: np.ndarray | None = None, end_ns: np.ndarray | None = None) -> Trace:
        columns = [
            self.stage,
            self.rank,
            self.op,
            self.microbatch,
            self.start_ns if start_ns is None else start_ns,
            self.end_ns if end_ns is None else end_ns,
            self.version,
            self.update,
        ]
        return Trace.from_columns([column[mask] for column in columns], source=self.source, stages=self.stages)

    def between(self, start_ns: int, end_ns: int) -> Trace:
        """The part of every event that lies inside the interval."""
        start, end = np.maximum(self.start_ns, start_ns), np.minimum(self.end_ns, end_ns)
        return self._take(end > start, start, end)

    def of_kind(self, *ops: str) -> Trace:
        """Only the events of these kinds."""
        return self._take(np.isin(self.op, [_CODE[op] for op in ops]))

    # -- time -----------------------------------------------------------------------------------------------------
    @property
    def begin_ns(self) -> int:
        """Start of the first work."""
        work = self.op < len(COMPUTE)
        return int(self.start_ns[work].min()) if work.any() else 0

    @property
    def makespan_ns(self) -> int:
        """From the start of the first work to the end of the last."""
        work = self.op < len(COMPUTE)
        return int(self.end_ns[work].max()) - self.begin_ns if work.any() else 0

    def busy_ns(self) -> np.ndarray:
        """Time every stage spent working (forward, backward, update): shape (stages,)."""
        work = self.op < len(COMPUTE)
        spent = self.end_ns[work] - self.start_ns[work]
        return np.bincount(self.stage[work], spent, self.stages).astype(np.int64)

    def waiting_ns(self, *ops: str) -> np.ndarray:
        """Time every stage spent waiting, for `ops` of `WAITS` or for all of them: shape (stages,)."""
        waits = np.isin(self.op, [_CODE[op] for op in ops or WAITS])
        spent = self.end_ns[waits] - self.start_ns[waits]
        return np.bincount(self.stage[waits], spent, self.stages).astype(np.int64)

    def utilization(self) -> np.ndarray:
        """Working share of the makespan per stage, fill and drain included: shape (stages,).

        Of its rank, where a rank holds several stages: what one of them leaves idle another may use.
        """
        return self._busy_of_rank() / max(self.makespan_ns, 1)

    def _busy_of_rank(self) -> np.ndarray:
        """For every stage the time that its rank worked: shape (stages,)."""
        busy, rank_of = self.busy_ns(), np.arange(self.stages)
        rank_of[self.stage] = self.rank
        return np.bincount(rank_of, busy)[rank_of].astype(np.int64)

    def bubble_fraction(self) -> float:
        """Share of all stages' time in which a stage did not work: idle over total, as in (N-1)/(m+N-1)."""
        return 1.0 - float(self.utilization().mean()) if len(self) else 0.0

    def steady(self) -> Trace:
        """The part after the fill and before the drain: from the first stage's first backward to its last forward.
        Empty when the stream is too short to have such a part."""
        first_stage = self.stage == 0
        backward = first_stage & np.isin(self.op, _BACKWARD)
        forward = first_stage & (self.op == _CODE["F"])
        if not backward.any() or not forward.any():
            return self._take(np.zeros(len(self), bool))
        return self.between(int(self.start_ns[backward].min()), int(self.end_ns[forward].max()))

    def steady_utilization(self) -> np.ndarray:
        """Working share per stage in the steady part: shape (stages,); zeros when there is none."""
        part = self.steady()
        if not len(part):
            return np.zeros(self.stages)
        return part._busy_of_rank() / (int(part.end_ns.max()) - int(part.start_ns.min()))

    # -- versions and memory --------------------------------------------------------------------------------------
    def version_gaps(self, stage: int) -> dict[int, int]:
        """Updates `stage` made between forward and backward, by micro-batch, for those that have had both."""
        here = self.stage == stage
        forward, backward = here & (self.op == _CODE["F"]), here & np.isin(self.op, _BACKWARD)
        at_forward = dict(zip(self.microbatch[forward].tolist(), self.version[forward].tolist(), strict=True))
        at_backward = zip(self.microbatch[backward].tolist(), self.version[backward].tolist(), strict=True)
        return {
            microbatch: version - at_forward[microbatch]
            for microbatch, version in at_backward
            if microbatch in at_forward
        }

    def gap_shares(self, stage: int) -> dict[int, float]:
        """Share of micro-batches by version gap, over the steady part of the stream on `stage`.

        The first micro-batches, which met a filling pipeline, and the last, which met no new window, are left out: the
        share is taken over whole windows in between.
        """
        gaps = self.version_gaps(stage)
        width = self.window()
        count = (max(gaps, default=-1) + 1 - min(gaps, default=0)) // width - 2 * (-(-self.stages // width) + 1)
        first = min(gaps, default=0) + (-(-self.stages // width) + 1) * width
        values = [gaps[m] for m in range(first, first + max(count, 0) * width) if m in gaps]
        return {int(gap): float(n) / len(values) for gap, n in zip(*np.unique(values, return_counts=True), strict=True)}

    def window(self) -> int:
        """Micro-batches per update, read off the first update's work."""
        first = (self.update == self.update.min(initial=2**62)) & np.isin(self.op, _BACKWARD)
        first &= self.stage == self.stage.min(initial=0)
        return max(int(first.sum()), 1)

    def version_gap_max(self) -> list[int]:
        """Largest gap per stage."""
        return [max(self.version_gaps(stage).values(), default=0) for stage in range(self.stages)]

    def version_gap_mean(self) -> list[float]:
        """Mean gap per stage over the whole stream."""
        gaps = [list(self.version_gaps(stage).values()) for stage in range(self.stages)]
        return [float(np.mean(values)) if values else 0.0 for values in gaps]

    def in_flight(self, stage: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps of the activations held on `stage`: (times in ns, micro-batches held from then on).

        A micro-batch is held from the start of its forward to the end of its backward (of W when it is split).
        """
        here = self.stage == stage
        starts = self.start_ns[here & (self.op == _CODE["F"])]
        ends = self.end_ns[here & np.isin(self.op, _RELEASE)]
        times = np.concatenate([ends, starts])  # a release at the same instant counts before an admission
        change = np.concatenate([-np.ones(len(ends), np.int64), np.ones(len(starts), np.int64)])
        order = np.argsort(times, kind="stable")
        return times[order], np.cumsum(change[order])

    def in_flight_peak(self) -> list[int]:
        """Most micro-batches held at once, per stage."""
        return [int(self.in_flight(stage)[1].max(initial=0)) for stage in range(self.stages)]

    def updates(self) -> list[int]:
        """Updates made per stage."""
        return np.bincount(self.stage[self.op == _CODE["U"]], minlength=self.stages).tolist()

    # -- files ----------------------------------------------------------------------------------------------------
    def save(self, path: str | Path) -> None:
        """Write one JSON object a line, the format of `trace/rank<r>.jsonl`."""
        with open(path, "w", encoding="utf-8") as file:
            for event in self:
                file.write(json.dumps(event._asdict()) + "\n")

    @classmethod
    def load(cls, *paths: str | Path, source: str, stages: int | None = None) -> Trace:
        """Read files written by `save` or by ranks; a line cut short at the end of a file is left out.

        Raises InputError, naming file and line, for a line that is not an event.
        """
        events = [event for path in paths for event in read_events(path)]
        return cls(events, source=source, stages=stages)

    def chrome_events(self) -> list[dict]:
        """Complete events of the Trace Event format (Chrome, Perfetto): a thread per stage, times in microseconds."""
        rows: list[dict] = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": stage, "args": {"name": f"stage {stage}"}}
            for stage in range(self.stages)
        ]
        for e in self:
            what = "waiting" if e.op.startswith("wait") else "U" if e.op == "U" else e.op
            rows.append(
                {
                    "name": f"{what} {e.microbatch}",
                    "cat": e.op,
                    "ph": "X",
                    "pid": 0,
                    "tid": e.stage,
                    "ts": e.start_ns / 1e3,
                    "dur": (e.end_ns - e.start_ns) / 1e3,
                    "args": {"rank": e.rank, "microbatch": e.microbatch, "version": e.version, "update": e.update},
                }
            )
        return rows

    def save_chrome(self, path: str | Path) -> None:
        """Write a file that https://ui.perfetto.dev and chrome://tracing open."""
        document = {"traceEvents": self.chrome_events(), "displayTimeUnit": "ms", "otherData": {"source": self.source}}
        Path(path).write_text(json.dumps(document), encoding="utf-8")


def read_events(path: str | Path, *, offset: int = 0, stages: int | None = None, replicas: int = 1) -> list[TraceEvent]:
    """Events of one file from byte `offset` on, up to its last complete line; of a run with so many `stages`."""
    with open(path, "rb") as file:
        file.seek(offset)
        text = file.read()
    events = []
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
        try:
            row = parse_json(line)
            event = TraceEvent(**row)
            if event.op not in _CODE or not all(
                isinstance(v, int) and abs(v) < MOST for i, v in enumerate(event) if i != 2
            ):
                raise ValueError("a field has a value that no event has")
            if min(event.stage, event.rank, event.microbatch, event.version, event.update) < 0:
                raise ValueError("a field is below 0")
            if not (stages is None or (event.stage < stages and event.rank < stages * replicas)):
                raise ValueError(f"the run has {stages} stages")
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path} line {number}",
                line[:80].decode(errors="replace"),
                "a trace event as JSON",
                f"remove the line ({error})",
            ) from None
        events.append(event)
    return events
