"""A user's own schedule: one file, named wherever a schedule is, and refused with the grid when it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny

from paci_lab import InputError, ScheduleError, TrainSpec, build_schedule, replay, simulate, validate
from paci_lab.commands.compare import parse_contender
from paci_lab.runtime.resolve import resolve

ROOT = Path(__file__).parents[1]

MINE = """
import dataclasses
from paci_lab.schedules import Op, Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Schedule):
    'GPipe with the backwards last in, first out.'
    name = "mine"
    summary = "as GPipe, backwards last in, first out"
    flushes = True

    def ops(self, rank):
        for update in range(self.updates):
            window = self.window_microbatches(update)
            yield from (Op(rank, "F", m) for m in window)
            yield from (Op(rank, "B", m) for m in reversed(window))
            yield Op(rank, "U", update)

    def in_flight(self, stage):
        return min(self.window, self.microbatches)

    def ideal_bubble_fraction(self):
        return 1 - self.microbatches / (self.microbatches + self.updates * (self.stages - 1))


class Deadlock(Mine):
    def ops(self, rank):
        if rank:
            yield from super().ops(rank)
        for m in range(self.microbatches):  # the last stage wants all forwards before its first backward
            yield from (Op(rank, "F", m), Op(rank, "B", m))


class Forgets(Mine):
    def ops(self, rank):
        last = self.microbatches - 1
        return (op for op in super().ops(rank) if op not in (Op(0, "B", last), Op(0, "U", self.updates - 1)))


class TooEarly(Mine):
    def ops(self, rank):
        return (Op(rank, {"F": "B", "B": "F"}.get(op.kind, "U"), op.microbatch) for op in super().ops(rank))


class TooMany(Mine):
    def in_flight(self, stage):
        return 2


class Words(Mine):
    def ops(self, rank):
        return iter(["0F0"])


class Breaks(Mine):
    def ops(self, rank):
        yield Op(rank, "F", 0)
        raise KeyError("lost")


class NoOps(Schedule):
    name, summary, flushes = "no ops", "", True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wants(Mine):
    depth: int


something = 3
"""


@pytest.fixture
def mine(tmp_path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def test_own_schedules_are_simulated_replayed_and_run_by_real_ranks(mine, tmp_path):
    spec = tiny(schedule=f"{mine}:Mine", stages=3, window=3, partition=split_of(3), evaluate_every=6)
    schedule = spec.build_schedule()
    assert schedule == TrainSpec.from_dict(spec.to_dict()).build_schedule()
    validate(schedule)
    assert simulate(schedule).bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction())
    exact = assert_run_is_replay(run_to_end(spec, tmp_path / "run"))
    # The sum of a window's gradients is the same in another order but for rounding: one window later nothing else is.
    plain = replay(spec.replace(schedule="gpipe"))
    assert exact.losses[:3] == plain.losses[:3] and exact.losses[3:6] == pytest.approx(plain.losses[3:6], rel=1e-4)


@pytest.mark.parametrize(
    "name, code, op",
    [
        ("Deadlock", "deadlock", "0B0"),
        ("Forgets", "forgotten", "0B2999"),
        ("TooEarly", "order", "0B0"),
        ("TooMany", "in-flight", "0F2"),
    ],
)
def test_what_cannot_run_is_refused_with_the_grid_before_anything_starts(mine, name, code, op):
    """Forgetting the last micro-batch of a long stream is found too."""
    spec = tiny(
        schedule=f"{mine}:{name}",
        stages=2,
        window=1 if name == "Forgets" else 6,
        updates=None,
        microbatches=3000,
        partition=[2, 4],
    )
    with pytest.raises(ScheduleError) as refusal:
        resolve(spec)
    assert (refusal.value.code, str(refusal.value.op)) == (code, op)
    assert "rank 0" in refusal.value.grid and "rank 1" in refusal.value.grid


@pytest.mark.parametrize(
    "name, words",
    [
        ("something", "derived from paci_lab.Schedule"),
        ("nothing", "has no nothing"),
        ("NoOps", "ideal_bubble_fraction, in_flight, ops"),
        ("Wants", "Give depth a default"),
    ],
)
def test_what_is_no_schedule_is_refused_by_name(mine, name, words):
    with pytest.raises(InputError, match=words):
        build_schedule(f"{mine}:{name}", stages=2, microbatches=2, window=2)


@pytest.mark.parametrize(
    "name, words", [("Words", "operation 0 of rank 0"), ("Breaks", "operation 1 .*KeyError: 'lost'")]
)
def test_operations_that_are_none_and_code_that_breaks_are_named(mine, name, words):
    with pytest.raises(InputError, match=words):
        validate(build_schedule(f"{mine}:{name}", stages=2, microbatches=4, window=2))


def test_a_file_that_is_not_there_or_has_no_slack_is_refused(mine, tmp_path):
    with pytest.raises(InputError, match="FileNotFoundError"):
        build_schedule(f"{tmp_path}/none.py:Mine", stages=2, microbatches=2, window=2)
    with pytest.raises(InputError, match="slack = 2"):
        build_schedule(f"{mine}:Mine", stages=2, microbatches=2, window=2, slack=2)


def test_a_changed_file_is_loaded_again(mine):
    before = build_schedule(f"{mine}:Mine", stages=2, microbatches=2, window=2)
    Path(mine).write_text(MINE.replace('name = "mine"', 'name = "changed"'))
    os.utime(mine, ns=(1, 1))  # another time than before, on a file system that tells seconds only, too
    assert build_schedule(f"{mine}:Mine", stages=2, microbatches=2, window=2).name == "changed" != before.name


def test_the_explorer_takes_one_and_says_why_another_cannot_run(mine):
    from paci_lab.show.explorer import explorer

    shown = explorer(below=f"{mine}:Mine", stages=3, microbatches=6, window=3)
    assert shown.numbers[1].bubble == pytest.approx(shown.numbers[0].bubble)
    with pytest.raises(ScheduleError, match="deadlock"):
        explorer(below=f"{mine}:Deadlock", stages=3, microbatches=6, window=3)


def test_commands_take_one(mine, tmp_path):
    name, spec = parse_contender(f"{mine}:Mine:3", tiny(stages=2))
    assert (name, spec.schedule, spec.window) == ("mine.py-Mine-3", f"{mine}:Mine", 3)
    for wrong in ("paci", "paci:x", f"{mine}:Mine"):
        with pytest.raises(InputError, match="contender"):
            parse_contender(wrong, spec)
    command = [sys.executable, "-m", "paci_lab.cli", "simulate", "--stages", "2", "--window", "3", "--schedule"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for schedule, code, words in (("Mine", 0, "simulated: mine"), ("Deadlock", 2, "[0B0]"), ("Words", 2, "is no Op")):
        done = subprocess.run(
            [*command, f"mine.py:{schedule}"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code and words in done.stderr, done.stderr
