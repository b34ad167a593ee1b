"""Every schedule side by side, from simulation: bubble, throughput, copies of the weights, activations, delay."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paci_lab.errors import InputError
from paci_lab.schedules import Schedule, build_schedule, schedule_classes, validate, weight_copies
from paci_lab.simulate import Costs, simulate

if TYPE_CHECKING:
    from paci_lab.schedule_runs import Measured, Record

__all__ = ["COLUMNS", "Row", "as_markdown", "cells", "columns", "conditions_of", "schedule_table"]

_RULES = {
    "live": "backward on the weights of its moment, up to {gap} newer",
    "stashed": "backward on its forward's weights",
    "double-buffered": "both on the weights before the last update, on all stages",
}

COLUMNS = (
    "schedule",
    "bubble",
    "throughput\nagainst 1f1b",
    "copies of\nthe weights",
    "activations\nheld",
    "update\ndelay",
    "version rule",
)

_MEASURED = {"bubble": "bubble,\nmeasured", "throughput\nagainst 1f1b": "against 1f1b,\nmeasured"}
_KEPT = "weights kept\nbeside"


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule on `ranks` devices.

    Args:
        bubble: idle share of all ranks' time over the stream, its fill and drain included.
        against_flush: throughput as a multiple of 1F1B-flush on as many ranks, with the same micro-batches.
        weight_copies: most copies of its weights on a rank, the live one included.
        activations: most micro-batches held on a rank at once; a stage that is a V-th of a rank counts a V-th.
        update_delay: most updates between the weights a gradient is of (its forward's) and those it is applied to.
        version_rule: in words.
        refusal: why there are no figures, or None.
    """

    schedule: str
    ranks: int
    bubble: float | None = None
    against_flush: float | None = None
    weight_copies: int | None = None
    activations: float | None = None
    update_delay: int | None = None
    version_rule: str = ""
    refusal: str | None = None


def schedule_table(*, ranks: int, window: int, updates: int) -> list[Row]:
    """A row per schedule of the folder, by name; a forward takes 1 and a backward 2 (its halves I and W 1 each).

    A schedule with several stages on a rank has as many times more stages, each as much shorter, so that all train the
    same model on the same ranks. One that cannot have this window says why in its row.
    """
    flush = _build("1f1b", ranks, window, updates)
    flush_ns = simulate(flush, _costs(flush)).makespan_ns
    return [_row(name, flush_ns, ranks, window, updates) for name in schedule_classes()]


def _build(name: str, ranks: int, window: int, updates: int) -> Schedule:
    stages = ranks * schedule_classes()[name].chunks
    return build_schedule(name, stages=stages, window=window, microbatches=window * updates)


def _costs(schedule: Schedule) -> Costs:
    share = schedule.ranks / schedule.stages
    return Costs(forward_ms=share, backward_ms=2 * share, input_ms=share, weight_ms=share)


def _row(name: str, flush_ns: int, ranks: int, window: int, updates: int) -> Row:
    try:
        schedule = _build(name, ranks, window, updates)
    except InputError as refusal:
        return Row(name, ranks, refusal=f"{refusal.what} {refusal.value}: allowed is {refusal.allowed}")
    validate(schedule)
    trace = simulate(schedule, _costs(schedule))
    stages = range(schedule.stages)
    return Row(
        name,
        schedule.ranks,
        bubble=trace.bubble_fraction(),
        against_flush=flush_ns / trace.makespan_ns,
        weight_copies=max(weight_copies(schedule, stage) for stage in stages),
        activations=max(map(_held_on(schedule), range(schedule.ranks))) * schedule.ranks / schedule.stages,
        update_delay=max(_delay(schedule, stage) for stage in stages),
        version_rule="one version: drained before every update"
        if schedule.flushes
        else _RULES[schedule.weight_policy].format(gap=max(trace.version_gap_max())),
    )


def _held_on(schedule: Schedule):
    def most(rank: int) -> int:
        held = top = 0
        for op in schedule.ops(rank):
            held += (op.kind == "F") - (op.kind in "BW")
            top = max(top, held)
        return top

    return most


def _delay(schedule: Schedule, stage: int) -> int:
    """Update j is applied to version j, so a micro-batch of window j is late by j less the version it has seen."""
    made = delay = 0
    for op in schedule.ops(schedule.rank_of(stage)):
        if op.stage == stage and op.kind == "U":
            made += 1
        elif op.stage == stage and op.kind == "F":
            used = schedule.version_used(op.microbatch, made)
            delay = max(delay, schedule.window_of(op.microbatch) - (made if used is None else used))
    return delay


def columns(measured: bool) -> list[str]:
    """Heads of the table: `COLUMNS`, and what real ranks showed beside what is simulated."""
    if not measured:
        return list(COLUMNS)
    heads = [head for column in COLUMNS for head in (column, _MEASURED.get(column)) if head]
    return [*heads[:-1], _KEPT, heads[-1]]


def cells(row: Row, record: Record | None = None) -> list[str]:
    """The row as text, in the order of `columns`; "–" where there is no figure."""
    found = record.schedules.get(row.schedule) if record else None
    bubble, against = ("–" if row.refusal else text for text in (_share(row.bubble), _times(row.against_flush)))
    simulated = [row.weight_copies, row.activations]
    seen = [found.weight_copies, found.activations] if found else simulated
    counts = ["–" if row.refusal else _counted(*pair) for pair in zip(simulated, seen, strict=True)]
    delay, rule = ("–", row.refusal) if row.refusal else (str(row.update_delay), row.version_rule)
    if record is None:
        return [row.schedule, bubble, against, *counts, delay, rule]
    timed = [_share(found.bubble), _times(found.against_flush)] if found else ["–", "–"]
    return [row.schedule, bubble, timed[0], against, timed[1], *counts, delay, _kept(found), rule]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def _counted(simulated: float, measured: float) -> str:
    """One figure where both say the same, as they should."""
    return f"{simulated:g}" if measured == simulated else f"{simulated:g} (measured {measured:g})"


def _kept(found: Measured | None) -> str:
    return "–" if found is None else f"{found.kept_bytes / 1000:.1f} kB"


def conditions_of(record: Record) -> str:
    """What the measured columns of a record come from, in a sentence."""
    about, overruns = record.conditions, sum(one.overruns for one in record.schedules.values())
    operations = sum(one.operations for one in record.schedules.values())
    rounds = "one round" if about["rounds"] == 1 else f"medians of {about['rounds']} rounds in turns"
    return (
        f"Measured: real ranks on paced devices, where a rank's whole forward takes {about['forward_ms']:g} ms and its "
        f"backward {about['backward_ms']:g} ms, however little the work; {rounds}; "
        f"{record.machine}; {overruns} of {operations} operations took longer than stated."
        + (" The machine was busy, and the figures show it." if overruns > operations / 100 else "")
    )


def as_markdown(
    rows: Sequence[Row], record: Record | None = None, *, command: str, ranks: int, window: int, updates: int
) -> str:
    """A page: the table, with the measured figures of `record` in it, and what every schedule says of itself."""
    head = [column.replace("\n", " ") for column in columns(record is not None)]
    about = (
        f"Simulated: {ranks} ranks, {window} micro-batches per update, {updates} updates. "
        "A forward takes 1, a backward 2 (its halves I and W 1 each), messages nothing. Bubble is the idle share of "
        "all ranks' time, fill and drain included. Copies of the weights, activations and update delay are the largest "
        "on any rank. Activations count micro-batches of a whole rank. The update delay counts the updates between the "
        "weights that a forward saw and the weights that its gradient is applied to."
    )
    measured = (
        f"{conditions_of(record)} Copies and activations were counted there too, and are shown twice only where "
        "they differ. Weights kept beside the live ones are the most on any rank, of a model of a few thousand weights."
        if record
        else ""
    )
    lines = [
        "# Schedules",
        "",
        f"Made by `{command}`; a test holds it up to date.",
        "",
        *textwrap.wrap(about, 120),
        "",
        *(textwrap.wrap(measured, 120) + [""] if measured else []),
        "| " + " | ".join(head) + " |",
        "|---" * len(head) + "|",
        *("| " + " | ".join(cells(row, record)) + " |" for row in rows),
        "",
    ]
    for name, cls in schedule_classes().items():
        lines += [
            f"## {name}",
            "",
            *(inspect.getdoc(sys.modules[cls.__module__]) or "").splitlines(),
            "",
            *inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:")[0].rstrip().splitlines(),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"
