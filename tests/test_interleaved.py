"""Interleaved 1F1B: the published bubble, plain gradients, and ranks that hold several stages."""

from __future__ import annotations

import numpy as np
import pytest
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny

import paci_lab
from paci_lab import InputError, build_schedule, simulate, validate
from paci_lab.commands.compare import parse_contender
from paci_lab.schedules import Interleaved, OneFOneB


def test_the_order_is_megatrons():
    """Two ranks, two chunks: rank 0 warms up with 2(R-1-r) + (V-1)R = 4 forwards, rank 1 with 2."""
    schedule = Interleaved(stages=4, microbatches=4, window=4)
    first, second = (" ".join(map(str, schedule.ops(rank))) for rank in range(2))
    assert first == "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3 0U0 2U0"
    assert second == "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 1U0 3U0"
    assert [schedule.rank_of(stage) for stage in range(4)] == [0, 1, 0, 1] and schedule.ranks == 2


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_the_bubble_is_as_published(ranks, chunks):
    for windows in (1, 3):
        for window in (ranks, 4 * ranks):
            schedule = Interleaved(stages=ranks * chunks, chunks=chunks, window=window, microbatches=windows * window)
            validate(schedule)
            trace = simulate(schedule)
            expected = (ranks - 1) / (window * chunks + ranks - 1)
            assert schedule.ideal_bubble_fraction() == pytest.approx(expected)
            # Every rank is busy with V chunks of every micro-batch, one of them 3 ms.
            idle = 1 - 3e6 * chunks * window * windows / trace.makespan_ns
            assert idle == pytest.approx(expected) and trace.bubble_fraction() == pytest.approx(expected)
            assert np.ptp(trace.utilization()) == pytest.approx(0)
            assert trace.in_flight_peak() == [schedule.in_flight(stage) for stage in range(schedule.stages)]


@pytest.mark.parametrize("ranks, chunks", [(2, 2), (4, 2), (8, 2), (4, 4)])
def test_activations_are_one_plus_r_minus_1_over_rv_times_those_of_1f1b(ranks, chunks):
    """Section 2.2 of the source, on rank 0, where a chunk's activations are a V-th of a rank's."""
    schedule = Interleaved(stages=ranks * chunks, chunks=chunks, window=4 * ranks, microbatches=4 * ranks)
    held = most = 0
    for op in schedule.ops(0):
        held += (op.kind == "F") - (op.kind == "B")
        most = max(most, held)
    in_1f1b = OneFOneB(stages=ranks, window=4 * ranks, microbatches=4 * ranks).in_flight(0)
    assert most / chunks == in_1f1b * (1 + (ranks - 1) / (ranks * chunks))


@pytest.mark.parametrize("changes", [{"stages": 4, "window": 4}, {"stages": 6, "window": 2, "chunks": 3}])
def test_real_ranks_are_replay_and_replay_is_plain_accumulation(tmp_path, changes):
    spec = tiny(schedule="interleaved", partition=split_of(changes["stages"]), dropout=0.1, evaluate_every=4, **changes)
    run = run_to_end(spec, tmp_path / "run")
    exact = assert_run_is_replay(run)
    plain = paci_lab.replay(tiny(schedule="1f1b", stages=1, window=spec.window, dropout=0.1, evaluate_every=4))
    assert exact.losses == plain.losses and exact.validation == plain.validation
    result = run.result()
    assert result["ranks"] == 2 and len(result["utilization"]) == len(result["weight_copies"]) == spec.stages
    assert result["utilization"][0] == result["utilization"][2] <= 1


@pytest.mark.parametrize(
    "what, changes",
    [
        ("chunks", {"chunks": 1}),
        ("stages", {"stages": 5}),
        ("stages", {"stages": 2}),
        ("window", {"window": 3}),
        ("window", {"microbatches": 11}),
    ],
)
def test_sizes_that_cannot_be_interleaved_are_refused(what, changes):
    with pytest.raises(InputError) as refusal:
        Interleaved(**{"stages": 4, "window": 4, "microbatches": 8, **changes})
    assert refusal.value.what == what


def test_chunks_belong_to_interleaved_only():
    assert build_schedule("interleaved", stages=6, window=4, microbatches=8, chunks=3).ranks == 2
    with pytest.raises(InputError, match="chunks = 2"):
        build_schedule("1f1b", stages=6, window=4, microbatches=8, chunks=2)


def test_compare_gives_it_the_same_ranks_and_the_same_paces():
    base = tiny(stages=2, microbatches=16, updates=None, pace_forward_ms=4, pace_backward_ms=[8, 6], chunks=0)
    _, cut = parse_contender("interleaved:4", base.replace(partition=[5, 5], stages=2))
    assert cut.partition == "auto" and cut.stages == 4  # a cut for the ranks is none for their stages
    _, spec = parse_contender("interleaved:4", base)
    assert (spec.build_schedule().ranks, spec.stages, spec.total_microbatches) == (2, 4, 16)
    assert spec.pace_forward_ms == 2 and spec.pace_backward_ms == [4, 3, 4, 3]
    threes = base.replace(schedule="interleaved", chunks=3, stages=6, window=2, pace_backward_ms=9)
    _, spec = parse_contender("interleaved-paci:4:1", threes)
    assert (spec.stages, spec.chunks, spec.slack, spec.pace_backward_ms) == (18, 3, 1, 3)
    _, spec = parse_contender("zb-v:4", base)
    assert (spec.build_schedule().ranks, spec.stages, spec.chunks) == (2, 4, 0)
    assert spec.pace_backward_ms == [4, 3, 3, 4]
