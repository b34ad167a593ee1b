"""Schedules are data: what they say, what they promise, and how a wrong one is refused."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paci_lab import schedules
from paci_lab.errors import InputError
from paci_lab.schedules import (
    PACI,
    ZBH1,
    ZBH2,
    ZBV,
    GPipe,
    Interleaved,
    InterleavedPACI,
    OneFOneB,
    Op,
    PipeDream,
    PipeDream2BW,
    PipeMare,
    Schedule,
    ScheduleError,
    build_schedule,
    schedule_classes,
    validate,
)
from paci_lab.simulate import Costs, simulate

BUILT_IN = (
    *(OneFOneB, GPipe, Interleaved, ZBH1, ZBH2, ZBV),
    *(PACI, InterleavedPACI, PipeMare, PipeDream, PipeDream2BW),
)


def text(schedule: Schedule, rank: int) -> str:
    return " ".join(map(str, schedule.ops(rank)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written(Schedule):
    """A schedule written out by hand, one line per rank."""

    lines: tuple[str, ...]
    limit: int = 9

    name = "written"
    summary = "by hand"
    flushes = True

    def ops(self, rank: int) -> Iterator[Op]:
        return map(Op.parse, self.lines[rank].split())

    def in_flight(self, stage: int) -> int:
        return self.limit

    def ideal_bubble_fraction(self) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitBackward(OneFOneB):
    """1F1B whose backward is split: W comes one slot after I, so that the stage before is served first (as ZB-H1)."""

    name = "split"

    def ops(self, rank: int) -> Iterator[Op]:
        for op in super().ops(rank):
            yield Op(rank, "I", op.microbatch) if op.kind == "B" else op
            if op.kind == "B":
                yield Op(rank, "W", op.microbatch)


# -- operations ------------------------------


def test_an_operation_and_its_text_form_are_one():
    for op in (Op(2, "F", 0), Op(0, "B", 17), Op(12, "I", 3), Op(1, "W", 4), Op(7, "U", 100)):
        assert Op.parse(str(op)) == op
    assert str(Op(2, "F", 0)) == "2F0"
    assert Op.parse(" 1U3\n") == Op(1, "U", 3)


@pytest.mark.parametrize("wrong", ["", "F0", "2F", "2X0", "2f0", "-1F0", "2F0B", "2 F 0"])
def test_what_is_no_operation_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match="is not an operation") as refusal:
        Op.parse(wrong)
    assert repr(wrong) in str(refusal.value)


# -- the built-in schedules ------------------------------


def test_gpipe_runs_all_forwards_then_all_backwards():
    schedule = GPipe(stages=2, microbatches=5, window=3)
    assert text(schedule, 0) == "0F0 0F1 0F2 0B0 0B1 0B2 0U0 0F3 0F4 0B3 0B4 0U1"
    assert [schedule.in_flight(stage) for stage in range(2)] == [3, 3]


def test_1f1b_alternates_and_drains_every_window():
    schedule = OneFOneB(stages=3, microbatches=8, window=4)
    assert text(schedule, 0) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3 0U0 0F4 0F5 0F6 0B4 0F7 0B5 0B6 0B7 0U1"
    assert text(schedule, 2) == "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2U0 2F4 2B4 2F5 2B5 2F6 2B6 2F7 2B7 2U1"
    assert [schedule.in_flight(stage) for stage in range(3)] == [3, 2, 1]


def test_paci_never_drains_between_windows():
    schedule = PACI(stages=3, microbatches=7, window=2)
    assert text(schedule, 0) == "0F0 0F1 0F2 0B0 0F3 0B1 0U0 0F4 0B2 0F5 0B3 0U1 0F6 0B4 0B5 0U2 0B6 0U3"
    assert [schedule.in_flight(stage) for stage in range(3)] == [3, 2, 1]


def test_slack_falls_linearly_to_none_at_the_last_stage():
    schedule = PACI(stages=5, microbatches=100, window=4, slack=4)
    assert [schedule.slack_of(stage) for stage in range(5)] == [4, 3, 2, 1, 0]
    assert [schedule.in_flight(stage) for stage in range(5)] == [9, 7, 5, 3, 1]
    assert [schedule.gap_bound(stage) for stage in range(5)] == [2, 2, 1, 1, 0]
    assert PACI(stages=1, microbatches=4, window=2, slack=3).in_flight(0) == 1


NEED_A_WINDOW = (
    "pipedream-2bw",
    "interleaved",
    "interleaved-paci",
    "zb-v",
)  # schedules that state what windows and stages they can have


def test_every_built_in_schedule_is_valid():
    """Streams end inside a window, at its end, and before the first one is full."""
    checked = 0
    for name, cls in schedule_classes().items():
        for stages in range(1, 9):
            for window in range(1, 10):
                for microbatches in {1, window, 2 * window + 1, 2 * window + stages}:
                    for slack in (0, 1, stages) if cls is PACI else (0,):
                        try:
                            schedule = build_schedule(
                                name, stages=stages, microbatches=microbatches, window=window, slack=slack
                            )
                        except InputError as refusal:
                            assert cls.name in NEED_A_WINDOW and refusal.what in ("window", "stages")
                            continue
                        validate(schedule)
                        checked += 1
    assert checked > 1000


def test_held_forwards_reach_the_limit_and_no_more():
    for stages in (1, 2, 4, 8):
        for schedule in (
            OneFOneB(stages=stages, microbatches=40, window=20),
            PACI(stages=stages, microbatches=40, window=3),
            PACI(stages=stages, microbatches=40, window=3, slack=5),
            GPipe(stages=stages, microbatches=40, window=8),
        ):
            limits = [schedule.in_flight(stage) for stage in range(stages)]
            assert simulate(schedule).in_flight_peak() == limits
            if schedule.name != "gpipe" and not getattr(schedule, "slack", 0):
                assert limits == [stages - stage for stage in range(stages)]


def test_a_schedule_of_the_folder_is_found_by_name():
    assert schedule_classes() == {cls.name: cls for cls in BUILT_IN}  # not the ones of this test
    with pytest.raises(InputError, match=r"schedule = zigzag .* 1f1b \| gpipe \| .* \| my_file.py:MySchedule"):
        build_schedule("zigzag", stages=2, microbatches=2, window=2)
    with pytest.raises(InputError, match="slack = 1 is not possible"):
        build_schedule("1f1b", stages=2, microbatches=2, window=2, slack=1)


@pytest.mark.parametrize("field", ["stages", "microbatches", "window", "slack"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "2", None])
def test_sizes_that_are_none_are_refused(field, value):
    with pytest.raises(InputError) as refusal:
        PACI(**{"stages": 2, "microbatches": 2, "window": 2, "slack": 0, field: value})
    assert refusal.value.what == field and refusal.value.value == value


# -- refusals ------------------------------

GOOD = ("0F0 0F1 0B0 0B1 0U0", "1F0 1B0 1F1 1B1 1U0")


def broken(code: str, first: str | None = None, second: str | None = None, **fields) -> ScheduleError:
    sizes = {"stages": 2, "microbatches": 2, "window": 2, **fields}
    schedule = Written(lines=(first or GOOD[0], second or GOOD[1]), **sizes)
    with pytest.raises(ScheduleError) as refusal:
        validate(schedule)
    assert refusal.value.code == code, refusal.value
    return refusal.value


def test_the_schedule_that_the_broken_ones_differ_from_is_valid():
    validate(Written(lines=GOOD, stages=2, microbatches=2, window=2))


@pytest.mark.parametrize(
    "code, op, first, second",
    [
        ("placement", "1F0", "1F0 0F1 0B0 0B1 0U0", None),  # held by the other rank
        ("placement", "2F0", "2F0 0F1 0B0 0B1 0U0", None),  # no such stage
        ("placement", "0F2", "0F0 0F1 0F2 0B0 0B1 0U0", None),  # no such micro-batch
        ("repeated", "0F0", "0F0 0F0 0B0 0B1 0U0", None),
        ("repeated", "1B0", None, "1F0 1B0 1B0 1F1 1B1 1U0"),
        ("order", "1B0", None, "1B0 1F0 1F1 1B1 1U0"),
        ("deadlock", "0B0", "0F0 0B0 0F1 0B1 0U0", "1F0 1F1 1B0 1B1 1U0"),
        ("window", "1U0", None, "1F0 1B0 1U0 1F1 1B1"),  # too early: half of its window
        ("window", "0U1", "0F0 0F1 0B0 0B1 0U1", None),  # the wrong number
        ("window", "0U0", "0F0 0F1 0B0 0U0", None),  # a backward of its window is missing
        ("message order", "1F1", None, "1F1 1F0 1B0 1B1 1U0"),
    ],
)
def test_a_broken_rule_is_named_and_drawn(code, op, first, second):
    error = broken(code, first, second)
    assert str(error.op) == op
    assert str(error).startswith(f"{code}: {op}: {error.reason}\nslot ")
    rows = error.grid.splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["rank", "0"], ["rank", "1"]]
    assert f"[{op}]" in error.grid


@pytest.mark.parametrize(
    "op, first, second",
    [
        ("0B1", "0F0 0B0 0U0 0F1", "1F0 1B0 1U0 1F1 1B1 1U1"),
        ("1U1", "0F0 0B0 0U0 0F1 0B1 0U1", "1F0 1B0 1U0 1F1 1B1"),
        ("0W1", "0F0 0I0 0W0 0U0 0F1 0I1", "1F0 1B0 1U0 1F1 1B1 1U1"),
    ],
)
def test_what_never_runs_is_forgotten(op, first, second):
    """It has no place in the grid, which shows the last slots instead."""
    error = broken("forgotten", first, second, window=1)
    assert str(error.op) == op and "it never runs" in error.reason


def test_a_backward_on_weights_too_new_breaks_the_version_rule():
    """A flush schedule promises gap 0, so an update between a forward and its backward breaks it."""
    lines = ("0F0 0F1 0B0 0U0 0B1 0U1", "1F0 1B0 1U0 1F1 1B1 1U1")
    error = broken("version", *lines, window=1)
    assert str(error.op) == "0B1" and "1 updates since its forward, more than the bound of 0" in error.reason


def test_more_forwards_than_the_limit_are_refused():
    error = broken("in-flight", limit=1)
    assert (
        str(error.op) == "0F1" and "stage 0 would hold 2 unresolved forwards, more than its limit of 1" in error.reason
    )


def test_an_update_without_its_whole_window_names_what_is_missing():
    rule = "update 0 must follow the backwards of its window; micro-batches "
    assert broken("window", None, "1F0 1B0 1F1 1U0").reason == rule + "missing: 1"
    assert broken("window", None, "1F0 1F1 1U0").reason == rule + "missing: 0, 1"
    strange = "missing: 0; of another window: 1"
    lines = ("0F0 0F1 0B0 0U0 0B1 0U1", "1F0 1F1 1B1 1U0 1B0 1U1")
    assert broken("window", *lines, window=1).reason == rule + strange
    assert broken("window", "0F0 0F1 0B0 0B1 0U1").reason == "the next update of stage 0 is update 0"


def test_a_deadlock_says_who_waits_for_whom():
    error = broken("deadlock", "0F0 0B0 0F1 0B1 0U0", "1F0 1F1 1B0 1B1 1U0")
    assert "0B0 waits for 1B0" in error.reason and "1F1 waits for 0F1" in error.reason


def test_the_grid_shows_the_last_slots_around_a_late_fault():
    good = OneFOneB(stages=2, microbatches=40, window=4)
    lines = [" ".join(map(str, good.ops(rank))) for rank in range(2)]
    late = Written(lines=(lines[0], lines[1].replace("1B30", "1B29")), stages=2, microbatches=40, window=4)
    with pytest.raises(ScheduleError) as refusal:
        validate(late)
    head, *rows = refusal.value.grid.splitlines()
    assert len(head.split()) - 1 == 8 and int(head.split()[-1]) > 40
    assert "[1B29]" in rows[1]


# -- split backward ------------------------------


def test_a_split_backward_is_valid_and_shortens_the_drain():
    """W takes no message, so the stage before may go on after I: the drain costs I per stage instead of B."""
    whole, split = (cls(stages=4, microbatches=8, window=8) for cls in (OneFOneB, SplitBackward))
    validate(split)
    costs = Costs(forward_ms=1, backward_ms=2, input_ms=1, weight_ms=1)
    assert simulate(whole, costs).makespan_ns == 33_000_000
    assert simulate(split, costs).makespan_ns == 30_000_000
    assert simulate(split, costs).in_flight_peak() == [4, 3, 2, 1]


def test_a_split_backward_needs_both_halves_in_order():
    assert str(broken("order", None, "1F0 1W0 1I0 1F1 1I1 1W1 1U0").op) == "1W0"
    assert str(broken("window", None, "1F0 1I0 1F1 1I1 1W1 1U0").op) == "1U0"


def test_the_package_imports_the_standard_library_only():
    """And what it is part of brings no torch along, so that a command which only simulates starts at once."""
    for path in Path(schedules.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                own = name in ("paci_lab.errors", "paci_lab.objects") or name.startswith("paci_lab.schedules")
                assert own or name.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"
    code = (
        "import sys, paci_lab; paci_lab.simulate(paci_lab.PACI(stages=4, microbatches=9, window=2)); "
        "paci_lab.TrainSpec(); assert not {'torch', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
