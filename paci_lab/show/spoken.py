"""A Gantt chart in words, for readers who cannot see it: a paragraph, and a table of its operations.

`summary(trace)` is the text alternative of a figure, `table_html(trace)` its table, `details_html` both, folded away.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from paci_lab.language import _, direction, language, ngettext
from paci_lab.show.bars import Lookup, duration_text, held_steps, working_share
from paci_lab.show.words import kind_words, source_words
from paci_lab.trace import COMPUTE, OPS, SAVING, Trace, TraceEvent

__all__ = ["MOST_ROWS", "Spoken", "details_html", "summary", "table_html"]

MOST_ROWS = 120
"""Operations in one table: a reader goes through them one by one. What follows is said in words."""

_MOST_STAGES = 8  # told one by one
_STYLE = (
    ".paci-lab-spoken{font-size:15px;line-height:1.5}.paci-lab-spoken summary{cursor:pointer}"
    ".paci-lab-spoken table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    ".paci-lab-spoken :is(caption,th,td){text-align:start;padding:2px 0;padding-inline-end:20px;font-weight:400}"
    ".paci-lab-spoken :is(th,td){white-space:nowrap}"
    ".paci-lab-spoken :is(caption,thead th){font-weight:600}.paci-lab-spoken div{max-height:360px;overflow:auto}"
    ".paci-lab-spoken :is(summary,div):focus-visible{outline:3px solid #1f6fb8;outline-offset:2px}"
)


class Spoken(NamedTuple):
    """A chart to be put into words.

    Args:
        trace: what it draws. name: what it is called, if it is one of several.
        between_ms, origin_ns: as in `gantt`.
    """

    trace: Trace
    name: str | None = None
    between_ms: tuple[float, float] | None = None
    origin_ns: int | None = None

    @property
    def origin(self) -> int:
        """Zero of the time axis, in nanoseconds."""
        return self.trace.begin_ns if self.origin_ns is None else self.origin_ns

    @property
    def options(self) -> dict[str, Any]:
        """What `summary` and `table_html` take beside the trace."""
        return {"name": self.name, "between_ms": self.between_ms, "origin_ns": self.origin_ns}

    def span(self) -> tuple[int, int]:
        """(start, end) of what is shown, in nanoseconds; an end after the last event is moved there."""
        last = int(self.trace.end_ns.max(initial=self.origin))
        first, end = (0, last - self.origin) if self.between_ms is None else (round(ms * 1e6) for ms in self.between_ms)
        start = self.origin + first
        return start, max(min(self.origin + end, last), start + 1)


def summary(
    trace: Trace,
    *,
    name: str | None = None,
    between_ms: tuple[float, float] | None = None,
    origin_ns: int | None = None,
) -> str:
    """What the Gantt chart of `trace` shows, in one paragraph of plain text."""
    shown = Spoken(trace, name, between_ms, origin_ns)
    start, end = shown.span()
    heading = ngettext(
        "Gantt chart of one stage, {source}, from {start} to {end}.",
        "Gantt chart of {stages} stages, {source}, from {start} to {end}.",
        trace.stages,
    ).format(
        stages=trace.stages,
        source=source_words(trace.source),
        start=duration_text(start - shown.origin),
        end=duration_text(end - shown.origin),
    )
    sentences = [f"{name}: {heading}" if name else heading]
    work = trace.of_kind(*COMPUTE, *SAVING)
    kinds = [OPS[code] for code in work.op[_inside(work, start, end)].tolist()]
    if not kinds:
        return " ".join([*sentences, _("No operation is shown.")])
    counts = [(kinds.count(op), kind_words(op)) for op in (*COMPUTE, *SAVING) if op in kinds]
    told = ", ".join(_("{number} × {kind}").format(number=number, kind=kind) for number, kind in counts)
    sentences.append(_("Operations: {counts}.").format(counts=told))
    share = f"{100 * working_share(trace, start, end):.1f} %"
    sentences.append(_("The stages work {share} of this time.").format(share=share))
    sentences += _stages_in_words(trace.between(start, end), end - start)
    return " ".join([*sentences, *_versions_in_words(trace, start, end)])


def table_html(
    trace: Trace,
    *,
    name: str | None = None,
    between_ms: tuple[float, float] | None = None,
    origin_ns: int | None = None,
) -> str:
    """The operations of the Gantt chart of `trace` as an HTML table, by stage and time, with the first `MOST_ROWS`."""
    shown = Spoken(trace, name, between_ms, origin_ns)
    start, end = shown.span()
    work = trace.of_kind(*COMPUTE, *SAVING)
    inside = _inside(work, start, end)
    told = sorted(itertools.islice(itertools.compress(work, inside), MOST_ROWS), key=lambda e: (e.stage, e.start_ns))
    left = work.start_ns[inside][MOST_ROWS:]
    head = "".join(
        f'<th scope="col">{escape(words)}</th>'
        for words in (
            _("stage"),
            _("operation"),
            _("number"),
            _("start"),
            _("duration"),
            _("idle before it"),
            _("weight version"),
        )
    )
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in _rows(told, Lookup(trace), shown.origin, start)
    )
    caption = _("Operations by stage and time") if name is None else _("Operations by stage and time: {name}")
    rest = ""
    if len(left):
        words = ngettext(
            "One more operation, after {time}, is not in this table.",
            "{number} more operations, after {time}, are not in this table.",
            len(left),
        ).format(number=len(left), time=duration_text(int(left[0]) - shown.origin))
        rest = f"<p>{escape(words)}</p>"
    return (
        f"<table><caption>{escape(caption.format(name=name))}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
    )


def details_html(charts: Sequence[Spoken], *, note: str = "") -> str:
    """Summaries and tables of a figure's charts, folded away behind one line that the keyboard reaches.

    Without charts there is the `note` in their place: they move, or nobody has asked for them yet.
    """
    paragraphs = "".join(f"<p>{escape(summary(chart.trace, **chart.options))}</p>" for chart in charts)
    paragraphs += f"<p>{escape(note)}</p>" if note else ""
    tables = "".join(table_html(chart.trace, **chart.options) for chart in charts)
    if tables:
        label = escape(_("Table of operations"))
        tables = f'<div tabindex="0" role="region" aria-label="{label}">{tables}</div>'
    return (
        f'<details class="paci-lab-spoken" lang="{language().replace("_", "-")}" dir="{direction()}">'
        f"<style>{_STYLE}</style><summary>{escape(_('The chart in words'))}</summary>{paragraphs}{tables}</details>"
    )


def _inside(work: Trace, start_ns: int, end_ns: int) -> np.ndarray:
    """Mask of what is shown; updates that take no time count, while `Trace.between` leaves them out."""
    return (work.start_ns < end_ns) & (work.end_ns > start_ns) | (work.start_ns == work.end_ns) & (
        (start_ns <= work.start_ns) & (work.start_ns <= end_ns)
    )


def _stages_in_words(part: Trace, length_ns: int) -> list[str]:
    shares = [f"{100 * busy / length_ns:.0f} %" for busy in part.busy_ns().tolist()]
    if part.stages > 1 and len(set(shares)) == 1:
        return [_("Every stage works {share}.").format(share=shares[0])]
    if part.stages <= _MOST_STAGES:
        return [_("Stage {stage} works {share}.").format(stage=s, share=share) for s, share in enumerate(shares)]
    most, least = int(part.busy_ns().argmax()), int(part.busy_ns().argmin())
    return [
        _("Stage {stage} works most, {share}.").format(stage=most, share=shares[most]),
        _("Stage {stage} works least, {share}.").format(stage=least, share=shares[least]),
    ]


def _versions_in_words(trace: Trace, start_ns: int, end_ns: int) -> list[str]:
    held = [int(steps.max(initial=0)) for times, steps in held_steps(trace, start_ns, end_ns)]
    gaps = trace.version_gap_max()
    full, wide = int(np.argmax(held)), int(np.argmax(gaps))
    return [
        ngettext(
            "Stage {stage} holds most: one micro-batch in flight.",
            "Stage {stage} holds most: {held} micro-batches in flight.",
            held[full],
        ).format(stage=full, held=held[full]),
        _("The largest version gap is {gap}, on stage {stage}.").format(gap=gaps[wide], stage=wide)
        if gaps[wide]
        else _("No version gap: every backward uses the weight version of its forward."),
    ]


def _rows(events: Sequence[TraceEvent], look: Lookup, origin_ns: int, start_ns: int) -> Iterator[Sequence[str]]:
    """Cells of every operation; `events` are in order of stage and start."""
    stage, free = -1, start_ns
    for event in events:
        if event.stage != stage:
            stage, free = event.stage, start_ns
        yield (
            str(event.stage),
            kind_words(event.op),
            str(event.microbatch),
            duration_text(max(event.start_ns - origin_ns, 0)),
            duration_text(event.end_ns - event.start_ns),
            duration_text(max(event.start_ns - free, 0)),
            _version(event, look),
        )
        free = event.end_ns


def _version(event: TraceEvent, look: Lookup) -> str:
    if event.op == "U":
        return _("{before} becomes {after}").format(before=event.version, after=event.version + 1)
    forward, backward = look.pair(event.stage, event.microbatch)
    if event.op == "F" or event.op in SAVING or forward < 0 or backward < 0:
        return str(event.version)
    return _("{forward} at forward, {backward} at backward, gap {gap}").format(
        forward=forward, backward=backward, gap=backward - forward
    )
