"""Every schedule side by side, from simulation: bubble, throughput, copies of the weights, activations, delay."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Sequence

from paci_lab.errors import InputError
from paci_lab.schedules import Schedule, build_schedule, schedule_classes, validate, weight_copies
from paci_lab.simulate import Costs, simulate

__all__ = ["COLUMNS", "Row", "as_markdown", "cells", "schedule_table"]

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


def cells(row: Row) -> list[str]:
    """The row as text, in the order of `COLUMNS`."""
    if row.refusal:
        return [row.schedule, "–", "–", "–", "–", "–", row.refusal]
    return [
        row.schedule,
        f"{100 * row.bubble:.1f} %",
        f"{row.against_flush:.2f}×",
        str(row.weight_copies),
        f"{row.activations:g}",
        str(row.update_delay),
        row.version_rule,
    ]


def as_markdown(rows: Sequence[Row], *, command: str, ranks: int, window: int, updates: int) -> str:
    """A page: the table, and what every schedule says of itself."""
    head = [column.replace("\n", " ") for column in COLUMNS]
    about = (
        f"Simulated: {ranks} ranks, {window} micro-batches per update, {updates} updates. "
        "A forward takes 1, a backward 2 (its halves I and W 1 each), messages nothing. Bubble is the idle share of "
        "all ranks' time, fill and drain included. Copies of the weights, activations and update delay are the largest "
        "on any rank. Activations count micro-batches of a whole rank. The update delay counts the updates between the "
        "weights that a forward saw and the weights that its gradient is applied to."
    )
    lines = [
        "# Schedules",
        "",
        f"Made by `{command}`; a test holds it up to date.",
        "",
        *textwrap.wrap(about, 120),
        "",
        "| " + " | ".join(head) + " |",
        "|---" * len(head) + "|",
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
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
