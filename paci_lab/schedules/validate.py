"""Refuse a schedule before it runs, with the grid drawn around the operation that is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from paci_lab.errors import InputError
from paci_lab.schedules.op import KINDS, Op
from paci_lab.schedules.schedule import Schedule

__all__ = ["Reason", "ScheduleError", "dry_run", "inputs_of", "validate"]


class Reason(str):
    """A rule and how it is broken, in English words, which `said` gives in another language.

    Args:
        template: one whole sentence with named places, a literal: `paci_lab.catalogue` collects it.
        values: what goes there: numbers, operations, or reasons, said one after the other.
    """

    def __new__(cls, template: str, **values: Any) -> Reason:
        made = super().__new__(cls, _filled(template, values, str))
        made._template, made._values = template, values
        return made

    def said(self, translate: Callable[[str], str]) -> str:
        """The words as `translate` has them, which gets the template."""
        return _filled(translate(self._template), self._values, lambda reason: reason.said(translate))


def _filled(template: str, values: dict[str, Any], said: Callable[[Reason], str]) -> str:
    words = {k: "; ".join(map(said, value)) if isinstance(value, list) else value for k, value in values.items()}
    return template.format(**words)


class ScheduleError(ValueError):
    """A schedule that cannot run.

    Args:
        code: which rule it breaks, one of "placement", "repeated", "forgotten", "order", "deadlock", "in-flight",
            "window", "version", "message order".
        op: the operation at which it breaks.
        reason: the rule and how it is broken, in words.
        grid: ranks x slots around the operation, as text.
    """

    def __init__(self, code: str, op: Op, reason: Reason, grid: str) -> None:
        self.code, self.op, self.reason, self.grid = code, op, reason, grid
        super().__init__(f"{code}: {op}: {reason}\n{grid}")


def inputs_of(op: Op, stages: int) -> tuple[tuple[int, str, int] | None, tuple[int, str, int] | None]:
    """What `op` needs: (made on the same stage, made by a neighbour), each as (stage, "F" | "I" | "B", micro-batch).

    A gradient that a neighbour waits for is written "I" whether a whole backward or its input half makes it.
    """
    stage, kind, microbatch = op
    if kind == "F":
        return None, (stage - 1, "F", microbatch) if stage > 0 else None
    if kind in "BI":
        return (stage, "F", microbatch), (stage + 1, "I", microbatch) if stage < stages - 1 else None
    if kind == "W":
        return (stage, "I", microbatch), None
    return None, None


def validate(schedule: Schedule) -> None:
    """Walk through `schedule` with one operation per rank and slot; raise `ScheduleError` at the first broken rule.

    Checked: every micro-batch passes forward and backward once on every stage, each operation after what it needs, no
    deadlock, the in-flight limit, updates made of exactly their window, the gap bound, and messages between two stages
    consumed in the order they are sent (NCCL ignores tags, so order alone must make it correct).
    """
    dry_run(schedule)


def dry_run(schedule: Schedule, *, unfinished: bool = False) -> list[list[Op | None]]:
    """What `validate` walked through: slots of one operation (or none) per rank.

    With `unfinished`, for a schedule that is still being made: what is there must be right, and may stop anywhere.
    """
    walk = _Walk(schedule)
    while walk.step():
        pass
    if not unfinished:
        walk.check_complete()
    return walk.grid


class _Walk:
    """The state of a dry run: what every stage has done so far, and the grid of who did what in which slot."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.streams = [_only_ops(schedule, rank) for rank in range(schedule.ranks)]
        self.next = [next(stream, None) for stream in self.streams]
        self.grid: list[list[Op | None]] = []
        self.made: set[tuple[int, str, int]] = set()  # results of finished slots
        self.done: Counter[Op] = Counter()
        self.held: Counter[int] = Counter()  # unresolved forwards per stage
        self.version: Counter[int] = Counter(dict.fromkeys(range(schedule.stages), schedule.first_update))
        self.forward_version: dict[tuple[int, int], int] = {}
        self.gathered: dict[int, list[int]] = defaultdict(list)  # backwards since the last update, per stage
        self.order: dict[tuple[int, str], list[int]] = defaultdict(list)  # micro-batches in order of F and of I

    def fail(self, code: str, op: Op, reason: Reason) -> None:
        slots = [*self.grid[-7:], self.next[:]] if op in self.next else self.grid[-8:]
        first = len(self.grid) - min(7, len(self.grid)) if op in self.next else max(0, len(self.grid) - 8)
        raise ScheduleError(code, op, reason, draw_grid(slots, first_slot=first, mark=op))

    def step(self) -> bool:
        """Run every operation that can run in this slot; False when nothing is left."""
        ready = [op for op in self.next if op is not None and self.can_run(op)]
        if not ready:
            waiting = [op for op in self.next if op is not None]
            if waiting:
                needs = [Reason("{op} waits for {other}", op=op, other=_name(self.missing(op))) for op in waiting]
                self.fail("deadlock", waiting[0], Reason("no rank can go on: {needs}", needs=needs))
            return False
        slot: list[Op | None] = [op if op in ready else None for op in self.next]
        for op in ready:
            self.run(op)
        self.grid.append(slot)
        for rank, op in enumerate(slot):
            if op is not None:
                self.made.add((op.stage, "I" if op.kind == "B" else op.kind, op.microbatch))
                self.next[rank] = next(self.streams[rank], None)
        return True

    def missing(self, op: Op) -> tuple[int, str, int] | None:
        _, remote = inputs_of(op, self.schedule.stages)
        return remote if remote is not None and remote not in self.made else None

    def can_run(self, op: Op) -> bool:
        schedule, (stage, kind, number) = self.schedule, op
        if kind not in KINDS or not 0 <= stage < schedule.stages or self.next.index(op) != schedule.rank_of(stage):
            rule = Reason(
                "stage must be one of 0..{last} and be held by the rank that runs it", last=schedule.stages - 1
            )
            self.fail("placement", op, rule)
        if kind != "U" and not 0 <= number < schedule.microbatches:
            last = schedule.microbatches - 1
            self.fail("placement", op, Reason("micro-batch must be one of 0..{last}", last=last))
        local, _ = inputs_of(op, schedule.stages)
        if local is not None and local not in self.made:
            self.fail("order", op, Reason("it comes before {other} on its own stage", other=_name(local)))
        return self.missing(op) is None

    def run(self, op: Op) -> None:
        schedule, (stage, kind, number) = self.schedule, op
        self.done[op] += 1
        if self.done[op] > 1:
            self.fail("repeated", op, Reason("it runs a second time"))
        if kind == "F":
            self.held[stage] += 1
            if self.held[stage] > schedule.in_flight(stage):
                self.fail(
                    "in-flight",
                    op,
                    Reason(
                        "stage {stage} would hold {held} unresolved forwards, more than its limit of {limit}",
                        stage=stage,
                        held=self.held[stage],
                        limit=schedule.in_flight(stage),
                    ),
                )
            self.forward_version[stage, number] = self.version[stage]
            used = schedule.version_used(number, self.version[stage])
            if used is not None and used > self.version[stage]:
                made = self.version[stage]
                reason = Reason("it uses weights after {used} updates, and {made} are made", used=used, made=made)
                self.fail("version", op, reason)
        if kind in "BI":
            gap = self.version[stage] - self.forward_version[stage, number]
            if gap > schedule.gap_bound(stage):
                self.fail(
                    "version",
                    op,
                    Reason(
                        "{gap} updates since its forward, more than the bound of {bound}",
                        gap=gap,
                        bound=schedule.gap_bound(stage),
                    ),
                )
        if kind in "BW":
            self.held[stage] -= 1
            self.gathered[stage].append(number)
        if kind == "U":
            window = list(schedule.window_microbatches(number))
            if number != self.version[stage]:
                due = self.version[stage]
                self.fail(
                    "window", op, Reason("the next update of stage {stage} is update {due}", stage=stage, due=due)
                )
            if sorted(self.gathered[stage]) != window:
                absent, strange = set(window) - set(self.gathered[stage]), set(self.gathered[stage]) - set(window)
                wrong = [Reason("missing: {numbers}", numbers=_listed(absent))] if absent else []
                if strange:
                    wrong.append(Reason("of another window: {numbers}", numbers=_listed(strange)))
                reason = Reason(
                    "update {update} must follow the backwards of its window; micro-batches {wrong}",
                    update=number,
                    wrong=wrong,
                )
                self.fail("window", op, reason)
            self.version[stage] += 1
            self.gathered[stage].clear()
        if kind in "FBI":
            self.check_message_order(op)

    def check_message_order(self, op: Op) -> None:
        flow, step = ("F", -1) if op.kind == "F" else ("I", 1)
        sent, received = self.order[op.stage + step, flow], self.order[op.stage, flow]
        received.append(op.microbatch)
        if 0 <= op.stage + step < self.schedule.stages and sent[len(received) - 1] != op.microbatch:
            self.fail(
                "message order",
                op,
                Reason(
                    "its message is not the next one from stage {stage}, which sent {sent} first",
                    stage=op.stage + step,
                    sent=sent[len(received) - 1],
                ),
            )

    def check_complete(self) -> None:
        schedule = self.schedule
        for stage in range(schedule.stages):
            for microbatch in schedule.stream:
                for kinds in ("F", "B", "IW"):
                    missing = [Op(stage, k, microbatch) for k in kinds if not self.done[Op(stage, k, microbatch)]]
                    split = self.done[Op(stage, "I", microbatch)] > 0
                    if missing and (kinds == "F" or split == (kinds == "IW")):
                        self.fail("forgotten", missing[0], Reason("it never runs"))
            if self.version[stage] != schedule.updates:
                self.fail(
                    "forgotten",
                    Op(stage, "U", self.version[stage]),
                    Reason("it never runs: {due} updates are due", due=schedule.updates),
                )


def _only_ops(schedule: Schedule, rank: int) -> Iterator[Op]:
    """The operations of `rank`; InputError, naming the one that is none, for a schedule that gives something else."""
    number = 0
    try:
        for op in schedule.ops(rank):
            if not isinstance(op, Op):
                raise TypeError(f"{op!r} is no Op")
            yield op
            number += 1
    except Exception as error:  # whatever somebody's own schedule raises is why it cannot be used
        raise InputError(
            f"{schedule.name}: operation {number} of rank {rank}",
            f"{type(error).__name__}: {error}",
            "an Op for every step",
            "correct the `ops` of this schedule",
        ) from error


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _name(result: tuple[int, str, int]) -> str:
    stage, kind, microbatch = result
    return f"{stage}{'F' if kind == 'F' else 'B'}{microbatch}"


def draw_grid(slots: list[list[Op | None]], *, first_slot: int = 0, mark: Op | None = None) -> str:
    """Text grid, a row per rank and a column per slot; `mark` stands in brackets."""
    ranks = len(slots[0]) if slots else 0
    cells = [[("" if op is None else f"[{op}]" if op == mark else str(op)) for op in slot] for slot in slots]
    width = max([6, *(len(cell) + 1 for column in cells for cell in column)])
    lines = ["slot    " + "".join(str(first_slot + i).rjust(width) for i in range(len(slots)))]
    for rank in range(ranks):
        lines.append(f"rank {rank:<3}" + "".join((column[rank] or ".").rjust(width) for column in cells))
    return "\n".join(lines)
