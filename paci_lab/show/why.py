"""What every stage does at a moment of a trace, and why it is idle when it is, in sentences. No widgets here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paci_lab.language import _, ngettext
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
            return self._work(event)
        if event.op == "wait-U":
            words = _(
                "Stage {stage} is idle: it waits for the gradients of the other replicas, which go into update "
                "{number}."
            )
            return words.format(stage=stage, number=event.microbatch)
        return " ".join(filter(None, [*self._awaited(event, time_ns), self._reason(event, time_ns)]))

    def sentences(self, time_ns: int) -> list[str]:
        """One sentence per stage."""
        return [self.sentence(stage, time_ns) for stage in range(self.trace.stages)]

    def journey(self, microbatch: int) -> list[TraceEvent]:
        """Forwards and backwards of one micro-batch through all stages, in order of time."""
        found = [self._event.get((stage, kind, microbatch)) for kind in "FB" for stage in range(self.trace.stages)]
        return sorted((event for event in found if event is not None), key=lambda event: event.start_ns)

    def versions(self, stage: int, microbatch: int) -> str:
        """The weight versions that one micro-batch meets on one stage, in a sentence."""
        forward, backward = (self._event.get((stage, kind, microbatch)) for kind in "FB")
        if forward is None:
            return _("Its forward is not in view.")
        if backward is None:
            return _("Forward with weight version {forward}; its backward is still to come.").format(
                forward=forward.version
            )
        gap = backward.version - forward.version
        words = (
            _("Forward with weight version {forward}, backward with {backward}: a version gap of {gap}.")
            if gap
            else _("Forward with weight version {forward}, backward with {backward}: the same weights both times.")
        )
        return words.format(forward=forward.version, backward=backward.version, gap=gap)

    # -- the sentences ---------------------------------------------------------------------------------------------
    def _work(self, event: TraceEvent) -> str:
        words = {
            "snapshot": _("Stage {stage} saves its weights after update {number}, to be evaluated off the clock."),
            "checkpoint": _("Stage {stage} saves its part of the checkpoint after update {number}."),
            "U": _("Stage {stage} makes update {number}: weight version {before} becomes {after}."),
            "F": _("Stage {stage} runs the forward of micro-batch {number}. {versions}"),
            "B": _("Stage {stage} runs the backward of micro-batch {number}. {versions}"),
            "I": _("Stage {stage} runs the input gradient of micro-batch {number}. {versions}"),
            "W": _("Stage {stage} runs the weight gradient of micro-batch {number}. {versions}"),
        }[event.op]
        return words.format(
            stage=event.stage,
            number=event.microbatch,
            before=event.version,
            after=event.version + 1,
            versions=self.versions(event.stage, event.microbatch) if event.op not in ("U", *SAVING) else "",
        )

    def _awaited(self, event: TraceEvent, time_ns: int) -> Iterator[str]:
        """What is waited for, where that is, and what keeps it there: a sentence each."""
        if event.op == "wait-F":
            words = _("Stage {stage} is idle: it waits for the activation of micro-batch {number} from stage {source}.")
            kind, step = "F", -1
        else:
            words = _("Stage {stage} is idle: it waits for the gradient of micro-batch {number} from stage {source}.")
            kind, step = "B", 1
        source, there = event.stage + step, None
        yield words.format(stage=event.stage, number=event.microbatch, source=source)
        while 0 <= source < self.trace.stages:  # the neighbour may wait for it itself: find where it is
            there = self.at(source, time_ns)
            if there is None or (there.op, there.microbatch) != (event.op, event.microbatch):
                break
            source += step
        if source != event.stage + step:
            yield _("It has come as far as stage {source}.").format(source=source)
        made = self._event.get((source, kind, event.microbatch))
        if made is None:
            yield _("Stage {source} has not shown that work yet.").format(source=source)
        elif made.end_ns <= time_ns:
            yield _("Stage {source} has sent it: the message is on its way.").format(source=source)
        elif made.start_ns <= time_ns:
            left = duration_text(made.end_ns - time_ns)
            yield _("Stage {source} is computing it for {time} more.").format(source=source, time=left)
        elif there is None:
            yield _("Stage {source} has not begun it.").format(source=source)
        else:
            yield _busy_with(there.op).format(source=source, number=there.microbatch)

    def _reason(self, event: TraceEvent, time_ns: int) -> str:
        """Why the stage has nothing else to do meanwhile."""
        here = [e for e in self._of_stage[event.stage] if e.op in COMPUTE]
        before = [e for e in here if e.end_ns <= time_ns]
        if event.op == "wait-F":
            if not before:
                return _("The pipeline is filling: nothing has reached this stage yet.")
            if self.flushes and before[-1].op == "U":
                return _(
                    "The pipeline was drained for the update and is filling again: this is the bubble of a flush "
                    "schedule."
                )
            return ""
        held = sum(e.op == "F" for e in before) - sum(e.op in _DONE for e in before)
        later = [e for e in here if e.op == "F" and e.start_ns > time_ns]
        if not later:
            return _("No forward is left to run: the stream ends and the pipeline drains.")
        if self.flushes and later[0].update > event.update:
            return _(
                "All forwards of window {window} are done, and a flush schedule admits none of the next window "
                "before the update: the pipeline drains."
            ).format(window=event.update)
        return ngettext(
            "It holds the activations of one micro-batch, as many as its schedule lets it have in flight.",
            "It holds the activations of {held} micro-batches, as many as its schedule lets it have in flight.",
            held,
        ).format(held=held)

    def _outside(self, stage: int, time_ns: int) -> str:
        events = self._of_stage[stage]
        if not events or time_ns < events[0].start_ns:
            words = _("Stage {stage} has not begun.")
        elif time_ns >= events[-1].end_ns:
            words = _("Stage {stage} is idle: it has done all its work, and the pipeline drains behind it.")
        else:
            words = _("Stage {stage} is between two operations: the engine's own time, no message is missing.")
        return words.format(stage=stage)


def _busy_with(op: str) -> str:
    """What keeps a stage from what another waits for."""
    return {
        "F": _("Stage {source} is still busy with the forward of micro-batch {number}."),
        "B": _("Stage {source} is still busy with the backward of micro-batch {number}."),
        "I": _("Stage {source} is still busy with the input gradient of micro-batch {number}."),
        "W": _("Stage {source} is still busy with the weight gradient of micro-batch {number}."),
        "U": _("Stage {source} is still busy with update {number}."),
        "snapshot": _("Stage {source} is still saving weights."),
        "checkpoint": _("Stage {source} is still saving weights."),
        "wait-F": _("Stage {source} waits itself for the activation of micro-batch {number}."),
        "wait-B": _("Stage {source} waits itself for the gradient of micro-batch {number}."),
        "wait-U": _("Stage {source} waits itself for the gradients of the other replicas."),
    }[op]
