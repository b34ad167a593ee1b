"""Interpreter 1: run a schedule on a clock instead of on hardware, and see its `Trace`."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

from paci_lab.errors import InputError
from paci_lab.schedules import Schedule
from paci_lab.schedules.validate import inputs_of
from paci_lab.trace import OPS, Trace

__all__ = ["Costs", "simulate"]

PerStage = float | list[float] | tuple[float, ...]

_CODE = {op: code for code, op in enumerate(OPS)}
_WAIT = {"F": _CODE["wait-F"], "B": _CODE["wait-B"], "I": _CODE["wait-B"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What operations and messages take.

    Args:
        forward_ms, backward_ms: milliseconds per micro-batch, one number or one per stage.
        input_ms, weight_ms: the halves I and W of a split backward; half of `backward_ms` each when not given.
        update_ms: milliseconds per optimizer update.
        latency_ms: one-way message latency c.
        message_mb, bandwidth_mb_per_ms: size of a message and speed of a link (0 MB: size costs nothing). Messages on
            one link in one direction follow one another.
        jitter: relative standard deviation of every operation's duration (log-normal, mean kept).
        stragglers: factor on all operations of a stage, by stage.
        seed: of the jitter.
    """

    forward_ms: PerStage = 1.0
    backward_ms: PerStage = 2.0
    input_ms: PerStage | None = None
    weight_ms: PerStage | None = None
    update_ms: PerStage = 0.0
    latency_ms: float = 0.0
    message_mb: float = 0.0
    bandwidth_mb_per_ms: float = 1.0
    jitter: float = 0.0
    stragglers: Mapping[int, float] = dataclasses.field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        per_stage = ("forward_ms", "backward_ms", "input_ms", "weight_ms", "update_ms")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if field.name == "stragglers":
                numbers = list(value.values()) if isinstance(value, Mapping) else [value]
            else:
                numbers = value if field.name in per_stage and isinstance(value, list | tuple) and value else [value]
            if not all(
                isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < float("inf") for n in numbers
            ):
                raise InputError(field.name, value, "numbers from 0", "costs cannot be negative or infinite")
        if self.bandwidth_mb_per_ms == 0:
            raise InputError(
                "bandwidth_mb_per_ms", 0, "a number above 0", "use message_mb=0 to leave size out of account"
            )

    def duration_ns(self, stages: int) -> dict[str, list[float]]:
        """Nanoseconds by kind and stage, stragglers included, jitter not."""

        def spread(name: str, value: PerStage) -> list[float]:
            values = list(value) if isinstance(value, list | tuple) else [value] * stages
            if len(values) != stages:
                raise InputError(
                    name, value, f"one number, or {stages} of them (one per stage)", "give as many as there are stages"
                )
            return [v * 1e6 * self.stragglers.get(stage, 1.0) for stage, v in enumerate(values)]

        for stage in self.stragglers:
            if not 0 <= stage < stages:
                raise InputError("stragglers", stage, f"stages 0..{stages - 1}", "name an existing stage")
        backward = spread("backward_ms", self.backward_ms)
        half = [value / 2 for value in backward]
        return {
            "F": spread("forward_ms", self.forward_ms),
            "B": backward,
            "I": half if self.input_ms is None else spread("input_ms", self.input_ms),
            "W": half if self.weight_ms is None else spread("weight_ms", self.weight_ms),
            "U": spread("update_ms", self.update_ms),
        }


def simulate(schedule: Schedule, costs: Costs | None = None) -> Trace:
    """Simulate `schedule` and return its trace, in nanoseconds from the start of the first operation.

    Every rank runs its operations in the given order, each as soon as the one before is over and its message is there.
    Ranks are advanced as far as they can go in turn, which gives the same times as a global event queue because no
    order depends on time. The schedule must be valid: a deadlock raises the `ScheduleError` of `validate`.
    """
    costs = costs or Costs()
    duration = costs.duration_ns(schedule.stages)
    latency = costs.latency_ms * 1e6
    transfer = costs.message_mb / costs.bandwidth_mb_per_ms * 1e6
    draw = _jitter(costs)
    last_stage = schedule.stages - 1
    window = schedule.window

    streams = [schedule.ops(rank) for rank in range(schedule.ranks)]
    blocked = [next(stream, None) for stream in streams]
    clock = [0.0] * schedule.ranks
    version = [schedule.first_update] * schedule.stages
    link_free: dict[tuple[int, str], float] = {}
    arrived: dict[tuple[int, str, int], float] = {}  # when a message of (stage, F | I, micro-batch) is at the neighbour
    awaited: dict[tuple[int, str, int], int] = {}  # which rank stands still for it
    columns: list[list] = [[] for _ in range(8)]
    add_stage, add_rank, add_op, add_microbatch, add_start, add_end, add_version, add_update = (
        c.append for c in columns
    )

    def record(stage: int, rank: int, code: int, microbatch: int, start: float, end: float, update: int) -> None:
        add_stage(stage)
        add_rank(rank)
        add_op(code)
        add_microbatch(microbatch)  # noqa: E702
        add_start(round(start))
        add_end(round(end))
        add_version(version[stage])
        add_update(update)  # noqa: E702

    ready = list(range(schedule.ranks - 1, -1, -1))
    while ready:
        rank = ready.pop()
        op, stream, now = blocked[rank], streams[rank], clock[rank]
        while op is not None:
            stage, kind, microbatch = op
            update = microbatch if kind == "U" else microbatch // window
            needed = inputs_of(op, schedule.stages)[1]
            if needed is not None:
                there = arrived.pop(needed, None)
                if there is None:
                    awaited[needed] = rank
                    break
                if there > now:
                    record(stage, rank, _WAIT[kind], microbatch, now, there, update)
                    now = there
            end = now + duration[kind][stage] * draw()
            record(stage, rank, _CODE[kind], microbatch, now, end, update)
            now = end
            if kind == "U":
                version[stage] += 1
            elif kind != "W" and (stage < last_stage if kind == "F" else stage > 0):
                result = (stage, "F" if kind == "F" else "I", microbatch)
                goes_to = stage + 1 if kind == "F" else stage - 1
                sent = max(end, link_free.get(result[:2], 0.0)) + transfer
                link_free[result[:2]] = sent
                arrived[result] = end if schedule.rank_of(goes_to) == rank else sent + latency
                if result in awaited:
                    ready.append(awaited.pop(result))
            op = next(stream, None)
        blocked[rank], clock[rank] = op, now
    if any(op is not None for op in blocked):
        from paci_lab.schedules import validate

        validate(schedule)
        raise AssertionError("the simulator stood still on a schedule that validate accepts")
    return Trace.from_columns(columns, source="simulated", stages=schedule.stages)


def _jitter(costs: Costs):
    if costs.jitter == 0:
        return lambda: 1.0
    spread = random.Random(costs.seed)
    sigma = costs.jitter
    return lambda: spread.lognormvariate(-sigma * sigma / 2, sigma)
