"""Schedules from and to torch.distributed.pipelining, held against torch's own code."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed.pipelining.schedules as torch_schedules
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny

import paci_lab
from paci_lab import InputError, ScheduleError, build_schedule, simulate, validate
from paci_lab.schedules import from_csv, schedule_classes, to_csv

ROOT = Path(__file__).parents[1]


class MockStage:
    """As much of a PipelineStage as torch asks for when it only lays out a schedule."""

    def __init__(self, ranks: int, stages: int, stage: int = 0) -> None:
        self.group_size, self.num_stages, self.stage_index, self.group_rank = ranks, stages, stage, 0
        self.submod, self.group, self.device, self.is_first, self.is_last = None, None, None, stage == 0, False
        self.has_backward = True


def torch_order(name: str, ranks: int, chunks: int, microbatches: int) -> dict[int, list]:
    """The operations that a schedule class of torch lays out."""
    cls = getattr(torch_schedules, name)
    stages = [MockStage(ranks, ranks * chunks, chunk * ranks) for chunk in range(chunks)]
    return cls(stages, microbatches, loss_fn=lambda output, target: None, scale_grads=False).pipeline_order


def write(path: Path, order: dict[int, list]) -> str:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(order[rank] for rank in sorted(order))
    return str(path)


FROM_TORCH = [
    ("ScheduleInterleaved1F1B", 2),
    ("ScheduleInterleaved1F1B", 3),
    ("ScheduleLoopedBFS", 2),
    ("ScheduleInterleavedZeroBubble", 2),
    ("ScheduleZBVZeroBubble", 2),
]


@pytest.mark.parametrize("name, chunks", FROM_TORCH)
def test_what_torch_lays_out_is_valid_and_simulated_here(tmp_path, name, chunks):
    order = torch_order(name, 4, chunks, 8)
    schedule = from_csv(write(tmp_path / "torch.csv", order), updates=3)
    validate(schedule)
    assert (schedule.ranks, schedule.stages, schedule.window, schedule.updates) == (4, 4 * chunks, 8, 3)
    trace = simulate(schedule)
    assert trace.updates() == [3] * schedule.stages
    assert trace.bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction())
    assert trace.in_flight_peak() == [schedule.in_flight(stage) for stage in range(schedule.stages)]


OURS_AND_TORCHS = [
    *(("interleaved", "ScheduleInterleaved1F1B", *sizes) for sizes in ((2, 2, 4), (4, 2, 8), (4, 3, 12))),
    *(("zb-v", "ScheduleZBVZeroBubble", ranks, 2, window) for ranks in (1, 2, 3, 4, 8) for window in (1, 4, 7, 15, 20)),
]


def test_ours_are_torchs():
    """Operation by operation."""
    for name, theirs_is, ranks, chunks, window in OURS_AND_TORCHS:
        order = torch_order(theirs_is, ranks, chunks, window)
        options = {"chunks": chunks} if name == "interleaved" else {}
        ours = build_schedule(name, stages=ranks * chunks, window=window, microbatches=window, **options)
        for rank in range(ranks):
            theirs = [str(op) for op in order[rank] if op is not None and op.is_compute_op]
            assert [str(op) for op in ours.ops(rank) if op.kind != "U"] == theirs


def test_torch_accepts_ours(tmp_path):
    """Read as torch reads it, checked and lowered to messages by torch's own passes, and no deadlock found."""
    for name, cls in schedule_classes().items():
        if not cls.flushes:
            with pytest.raises(InputError, match="a flush schedule"):
                to_csv(build_schedule(name, stages=4, window=8, microbatches=8))
            continue
        schedule = build_schedule(name, stages=4, window=8, microbatches=32)
        path = tmp_path / f"{name}.csv"
        path.write_text(to_csv(schedule))
        with open(path, newline="") as file:
            order = {
                r: [torch_schedules._Action.from_str(cell) for cell in row] for r, row in enumerate(csv.reader(file))
            }
        rank_of = torch_schedules._validate_schedule(order, schedule.ranks, 4, 8)
        assert rank_of == {stage: schedule.rank_of(stage) for stage in range(4)}
        compute = {rank: [action for action in actions if action is not None] for rank, actions in order.items()}
        lowered = torch_schedules._add_send_recv(compute, lambda stage: rank_of[stage], 4)  # noqa: B023
        torch_schedules._simulate_comms_compute(lowered, lambda stage: rank_of[stage], 4)  # noqa: B023
        # And it comes back as it was, over as many windows as one likes.
        again = from_csv(path, updates=4)
        for rank in range(schedule.ranks):
            ours, read = ([op for op in s.ops(rank) if op.kind != "U"] for s in (schedule, again))
            assert ours == read
        assert simulate(again).bubble_fraction() == pytest.approx(simulate(schedule).bubble_fraction())


def test_the_cells_are_slots():
    assert to_csv(build_schedule("1f1b", stages=2, window=2, microbatches=6)) == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize("name", ["ScheduleZBVZeroBubble", "ScheduleInterleavedZeroBubble"])
def test_real_ranks_run_torchs_schedules_and_give_plain_gradients(tmp_path, name):
    """ZB-V holds the first and the last stage on one rank, and sends the middle's messages to itself."""
    path = write(tmp_path / "torch.csv", torch_order(name, 2, 2, 4))
    spec = tiny(schedule=path, stages=4, window=4, updates=3, partition=split_of(4), dropout=0.1)
    exact = assert_run_is_replay(run_to_end(spec, tmp_path / "run"))
    assert exact.losses == paci_lab.replay(tiny(schedule="1f1b", stages=1, window=4, updates=3, dropout=0.1)).losses


# -- refusals ------------------------------


@pytest.mark.parametrize(
    "text, where, cell",
    [
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1X1,1B1\n", "line 2 column 3", "1X1"),
        ("0F0,,F1\n", "line 1 column 3", "F1"),
        ("0F0,(0F1;0Q1)OVERLAP_F_B\n", "line 1 column 2", "0Q1"),
        ("0F0,0B0,0U0\n", "line 1 column 3", "0U0"),
    ],
)
def test_an_unknown_cell_is_named_by_line_and_column(tmp_path, text, where, cell):
    (tmp_path / "wrong.csv").write_text(text)
    with pytest.raises(InputError) as refusal:
        from_csv(tmp_path / "wrong.csv")
    assert refusal.value.what.endswith(f"wrong.csv {where}") and cell in str(refusal.value.value)


def test_files_that_hold_no_schedule_are_refused(tmp_path):
    for text, words in (("", "a line of operations per rank"), ("0F0,0B0\n2F0,2B0\n", "add stage 1")):
        (tmp_path / "wrong.csv").write_text(text)
        with pytest.raises(InputError, match=f"(?i){words}"):
            from_csv(tmp_path / "wrong.csv")
    with pytest.raises(InputError, match="a readable CSV file"):
        from_csv(tmp_path / "none.csv")
    (tmp_path / "wrong.csv").write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    with pytest.raises(ScheduleError, match="deadlock: 0B0"):
        validate(from_csv(tmp_path / "wrong.csv"))
    for what, sizes in (
        ("stages", {"stages": 3}),
        ("window", {"window": 4}),
        ("microbatches", {"microbatches": 3}),
    ):
        with pytest.raises(InputError) as refusal:
            build_schedule(str(tmp_path / "wrong.csv"), **{"stages": 2, "window": 2, "microbatches": 4, **sizes})
        assert refusal.value.what == what


def test_together_messages_and_sharding_are_read_as_their_operations(tmp_path):
    (tmp_path / "torch.csv").write_text("0UNSHARD,0F0,0SEND_F0,(0F1;0B0)OVERLAP_F_B,0B1,0REDUCE_GRAD\n")
    assert " ".join(map(str, from_csv(tmp_path / "torch.csv").ops(0))) == "0F0 0F1 0B0 0B1 0U0"


def test_commands_export_and_import(tmp_path):
    def command(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "paci_lab.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    done = command("export", "mine.csv", "--schedule", "zb-h1", "--stages", "3", "--window", "4")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.csv").read_text() == to_csv(build_schedule("zb-h1", stages=3, window=4, microbatches=4))
    done = command("simulate", "--csv", "mine.csv", "--updates", "2")
    assert done.returncode == 0 and "simulated: csv, 3 stages, window 4, 2 updates" in done.stderr
    assert command("export", "-", "--schedule", "paci").returncode == 2
    (tmp_path / "mine.csv").write_text("0F0,oops\n")
    done = command("simulate", "--csv", "mine.csv")
    assert done.returncode == 2 and "mine.csv line 1 column 2 = 'oops'" in done.stderr
