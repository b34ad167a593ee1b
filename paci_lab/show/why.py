"""What every stage does at a moment of a trace, and why it is idle when it is, in sentences. No widgets here."""

from __future__ import annotations

import numpy as np

from paci_lab.schedules import KINDS
from paci_lab.show.bars import duration_text
from paci_lab.trace import COMPUTE, OPS, SAVING, Trace, TraceEvent

__all__ = ["Moments", "flushes", "why_idle"]

_CODE = {op: code for code, op in enumerate(OPS)}
_DONE = ("B", "I")


def why_idle(trace: Trace, stage: int, time_ns: int) -> str:
    """One sentence or two on what `stage` does at `time_ns`: its work, or what keeps it from working."""
    return Moments(trace).sentence(stage, time_ns)


def flushes(trace: Trace) -> bool:
    """True when stage 0 never begins a window before it has made the update of the window before."""
    updates = {e.microbatch: e.end_ns for e in trace.of_kind("U") if e.stage == 0}
    firsts: dict[int, int] = {}
    for event in trace.of_kind("F"):
        if event.stage == 0:
            firsts.setdefault(event.update, event.start_ns)
    pairs = [(firsts[u + 1], end) for u, end in updates.items() if u + 1 in firsts]
    return bool(pairs) and all(first >= end for first, end in pairs)


class Moments:
    """The events of a trace by stage and by operation, to be asked about many moments.

    Attributes:
        work: all work, in order of its start: the steps that a reader goes through one by one.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.flushes = flushes(trace)
        self.work: list[TraceEvent] = []
        self._of_stage: list[list[TraceEvent]] = [[] for _ in range(trace.stages)]
        self._event: dict[tuple[int, str, int], TraceEvent] = {}
        for event in trace:
            self._of_stage[event.stage].append(event)
            if event.op in COMPUTE:
                self.work.append(event)
                self._event[event.stage, "B" if event.op in _DONE else event.op, event.microbatch] = event
        self._starts = [np.array([e.start_ns for e in events], dtype=np.int64) for events in self._of_stage]

    def at(self, stage: int, time_ns: int) -> TraceEvent | None:
        """What `stage` is doing at a moment: work, waiting or a snapshot; None between two events and outside all."""
        position = int(np.searchsorted(self._starts[stage], time_ns, side="right")) - 1
        while position >= 0:  # events of no length may stand in front
            event = self._of_stage[stage][position]
            if event.end_ns > time_ns:
                return event
            if event.end_ns > event.start_ns:
                return None
            position -= 1
        return None

    def sentence(self, stage: int, time_ns: int) -> str:
        """See `why_idle`."""
        event = self.at(stage, time_ns)
        if event is None:
            return self._outside(stage, time_ns)
        if event.op in COMPUTE or event.op in SAVING:
            return f"Stage {stage} {self._work(event)}."
        if event.op == "wait-U":
            return (
                f"Stage {stage} is idle: it waits for the gradients of the other replicas, which go into update "
                f"{event.microbatch}."
            )
        return f"Stage {stage} is idle: it waits for {self._awaited(event, time_ns)}.{self._reason(event, time_ns)}"

    def sentences(self, time_ns: int) -> list[str]:
        """One sentence per stage."""
        return [self.sentence(stage, time_ns) for stage in range(self.trace.stages)]

    def journey(self, microbatch: int) -> list[TraceEvent]:
        """Forwards and backwards of one micro-batch through all stages, in order of time."""
        found = [self._event.get((stage, kind, microbatch)) for kind in "FB" for stage in range(self.trace.stages)]
        return sorted((event for event in found if event is not None), key=lambda event: event.start_ns)

    def versions(self, stage: int, microbatch: int) -> str:
        """The weight versions that one micro-batch meets on one stage, in words."""
        forward, backward = (self._event.get((stage, kind, microbatch)) for kind in "FB")
        if forward is None:
            return "its forward is not in view"
        if backward is None:
            return f"forward with weight version {forward.version}; its backward is still to come"
        gap = backward.version - forward.version
        same = "the same weights both times" if gap == 0 else f"a version gap of {gap}"
        return f"forward with weight version {forward.version}, backward with {backward.version}: {same}"

    # -- the parts of a sentence ----------------------------------------------------------------------------------
    def _work(self, event: TraceEvent) -> str:
        if event.op == "snapshot":
            return f"saves its weights after update {event.microbatch}, to be evaluated off the clock"
        if event.op == "checkpoint":
            return f"saves its part of the checkpoint after update {event.microbatch}"
        if event.op == "U":
            return f"makes update {event.microbatch}: weight version {event.version} becomes {event.version + 1}"
        return f"runs {_short(event)} ({self.versions(event.stage, event.microbatch)})"

    def _awaited(self, event: TraceEvent, time_ns: int) -> str:
        what, kind, step = ("activation", "F", -1) if event.op == "wait-F" else ("gradient", "B", 1)
        words = f"the {what} of micro-batch {event.microbatch} from stage {event.stage + step}"
        source, there = event.stage + step, None
        while (
            0 <= source < self.trace.stages
        ):  # the neighbour may itself wait for the same micro-batch: find where it is
            there = self.at(source, time_ns)
            if there is None or (there.op, there.microbatch) != (event.op, event.microbatch):
                break
            source += step
        far = f"; it has come as far as stage {source}, which" if source != event.stage + step else ", which"
        made = self._event.get((source, kind, event.microbatch))
        if made is None:
            return f"{words}{far} has not shown that work yet"
        if made.end_ns <= time_ns:
            return f"{words}{far} has sent it: the message is on its way"
        if made.start_ns <= time_ns:
            return f"{words}{far} is computing it for {duration_text(made.end_ns - time_ns)} more"
        if there is None:
            return f"{words}{far} has not begun it"
        if there.op == "wait-U":
            return f"{words}{far} waits itself for the gradients of the other replicas"
        if there.op.startswith("wait"):
            other = "activation" if there.op == "wait-F" else "gradient"
            return f"{words}{far} waits itself for the {other} of micro-batch {there.microbatch}"
        doing = "saving weights" if there.op in SAVING else f"busy with {_short(there)}"
        return f"{words}{far} is still {doing}"

    def _reason(self, event: TraceEvent, time_ns: int) -> str:
        """Why the stage has nothing else to do meanwhile."""
        here = [e for e in self._of_stage[event.stage] if e.op in COMPUTE]
        before = [e for e in here if e.end_ns <= time_ns]
        if event.op == "wait-F":
            if not before:
                return " The pipeline is filling: nothing has reached this stage yet."
            if self.flushes and before[-1].op == "U":
                return (
                    " The pipeline was drained for the update and is filling again: this is the bubble of a flush "
                    "schedule."
                )
            return ""
        held = sum(e.op == "F" for e in before) - sum(e.op in _DONE for e in before)
        later = [e for e in here if e.op == "F" and e.start_ns > time_ns]
        if not later:
            return " No forward is left to run: the stream ends and the pipeline drains."
        if self.flushes and later[0].update > event.update:
            return (
                f" All forwards of window {event.update} are done, and a flush schedule admits none of the next window "
                "before the update: the pipeline drains."
            )
        many = f"{held} micro-batch" if held == 1 else f"{held} micro-batches"
        return f" It holds the activations of {many}, as many as its schedule lets it have in flight."

    def _outside(self, stage: int, time_ns: int) -> str:
        events = self._of_stage[stage]
        if not events or time_ns < events[0].start_ns:
            return f"Stage {stage} has not begun."
        if time_ns >= events[-1].end_ns:
            return f"Stage {stage} is idle: it has done all its work, and the pipeline drains behind it."
        return f"Stage {stage} is between two operations: the engine's own time, no message is missing."


def _short(event: TraceEvent) -> str:
    if event.op == "U":
        return f"update {event.microbatch}"
    kind = "forward" if event.op == "F" else "backward" if event.op == "B" else KINDS[event.op].split(",")[0]
    return f"the {kind} of micro-batch {event.microbatch}"
