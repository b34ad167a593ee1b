"""Refuse a schedule before it runs, with the grid drawn around the operation that is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from paci_lab.errors import InputError
from paci_lab.schedules.op import KINDS, Op
from paci_lab.schedules.schedule import Schedule

__all__ = ["ScheduleError", "dry_run", "inputs_of", "validate"]


class ScheduleError(ValueError):
    """A schedule that cannot run.

    Args:
        code: which rule it breaks, one of "placement", "repeated", "forgotten", "order", "deadlock", "in-flight",
            "window", "version", "message order".
        op: the operation at which it breaks.
        reason: the rule and how it is broken, in words.
        grid: ranks x slots around the operation, as text.
    """

    def __init__(self, code: str, op: Op, reason: str, grid: str) -> None:
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

    def fail(self, code: str, op: Op, reason: str) -> None:
        slots = [*self.grid[-7:], self.next[:]] if op in self.next else self.grid[-8:]
        first = len(self.grid) - min(7, len(self.grid)) if op in self.next else max(0, len(self.grid) - 8)
        raise ScheduleError(code, op, reason, draw_grid(slots, first_slot=first, mark=op))

    def step(self) -> bool:
        """Run every operation that can run in this slot; False when nothing is left."""
        ready = [op for op in self.next if op is not None and self.can_run(op)]
        if not ready:
            waiting = [op for op in self.next if op is not None]
            if waiting:
                needs = "; ".join(f"{op} waits for {_name(self.missing(op))}" for op in waiting)
                self.fail("deadlock", waiting[0], f"no rank can go on: {needs}")
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
            self.fail(
                "placement", op, f"stage must be one of 0..{schedule.stages - 1} and be held by the rank that runs it"
            )
        if kind != "U" and not 0 <= number < schedule.microbatches:
            self.fail("placement", op, f"micro-batch must be one of 0..{schedule.microbatches - 1}")
        local, _ = inputs_of(op, schedule.stages)
        if local is not None and local not in self.made:
            self.fail("order", op, f"it comes before {_name(local)} on its own stage")
        return self.missing(op) is None

    def run(self, op: Op) -> None:
        schedule, (stage, kind, number) = self.schedule, op
        self.done[op] += 1
        if self.done[op] > 1:
            self.fail("repeated", op, "it runs a second time")
        if kind == "F":
            self.held[stage] += 1
            if self.held[stage] > schedule.in_flight(stage):
                self.fail(
                    "in-flight",
                    op,
                    f"stage {stage} would hold {self.held[stage]} unresolved forwards, "
                    f"more than its limit of {schedule.in_flight(stage)}",
                )
            self.forward_version[stage, number] = self.version[stage]
            used = schedule.version_used(number, self.version[stage])
            if used is not None and used > self.version[stage]:
                self.fail("version", op, f"it uses weights after {used} updates, and {self.version[stage]} are made")
        if kind in "BI":
            gap = self.version[stage] - self.forward_version[stage, number]
            if gap > schedule.gap_bound(stage):
                self.fail(
                    "version",
                    op,
                    f"{gap} updates since its forward, more than the bound of {schedule.gap_bound(stage)}",
                )
        if kind in "BW":
            self.held[stage] -= 1
            self.gathered[stage].append(number)
        if kind == "U":
            window = list(schedule.window_microbatches(number))
            if number != self.version[stage]:
                self.fail("window", op, f"the next update of stage {stage} is update {self.version[stage]}")
            if sorted(self.gathered[stage]) != window:
                absent, strange = set(window) - set(self.gathered[stage]), set(self.gathered[stage]) - set(window)
                found = [(absent, "missing"), (strange, "of another window")]
                wrong = "; ".join(f"{_these(those)} {words}" for those, words in found if those)
                self.fail("window", op, f"update {number} must follow the backwards of its window: {wrong}")
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
                f"its message is not the next one from stage {op.stage + step}, "
                f"which sent {sent[len(received) - 1]} first",
            )

    def check_complete(self) -> None:
        schedule = self.schedule
        for stage in range(schedule.stages):
            for microbatch in schedule.stream:
                for kinds in ("F", "B", "IW"):
                    missing = [Op(stage, k, microbatch) for k in kinds if not self.done[Op(stage, k, microbatch)]]
                    split = self.done[Op(stage, "I", microbatch)] > 0
                    if missing and (kinds == "F" or split == (kinds == "IW")):
                        self.fail("forgotten", missing[0], "it never runs")
            if self.version[stage] != schedule.updates:
                self.fail(
                    "forgotten",
                    Op(stage, "U", self.version[stage]),
                    f"it never runs: {schedule.updates} updates are due",
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


def _name(result: tuple[int, str, int] | None) -> str:
    if result is None:
        return "nothing"
    stage, kind, microbatch = result
    return f"{stage}{'F' if kind == 'F' else 'B'}{microbatch}"


def _these(microbatches: set[int]) -> str:
    """ "micro-batch 0 is", "micro-batches 0, 1 and 2 are"."""
    *others, last = map(str, sorted(microbatches))
    return f"micro-batches {', '.join(others)} and {last} are" if others else f"micro-batch {last} is"


def draw_grid(slots: list[list[Op | None]], *, first_slot: int = 0, mark: Op | None = None) -> str:
    """Text grid, a row per rank and a column per slot; `mark` stands in brackets."""
    ranks = len(slots[0]) if slots else 0
    cells = [[("" if op is None else f"[{op}]" if op == mark else str(op)) for op in slot] for slot in slots]
    width = max([6, *(len(cell) + 1 for column in cells for cell in column)])
    lines = ["slot    " + "".join(str(first_slot + i).rjust(width) for i in range(len(slots)))]
    for rank in range(ranks):
        lines.append(f"rank {rank:<3}" + "".join((column[rank] or ".").rjust(width) for column in cells))
    return "\n".join(lines)
