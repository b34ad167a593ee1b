"""Relatives of PACI on live weights: its interleaved form and its bound, and PipeMare's learning rates."""

from __future__ import annotations

import math

import pytest
import torch
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny

import paci_lab
from paci_lab import Costs, InputError, Schedule, simulate, validate
from paci_lab.schedules import PACI, Interleaved, InterleavedPACI, PipeMare

pytestmark = pytest.mark.usefixtures("one_thread")


# -- interleaved PACI ------------------------------


def looped(ranks: int, chunks: int, **sizes: int) -> InterleavedPACI:
    return InterleavedPACI(stages=ranks * chunks, chunks=chunks, **sizes)


def most_between(ranks: int, chunks: int, stage: int, slack: int) -> int:
    """The bound's n, counted in the periodic order rather than worked out: backwards of this chunk among those that the
    rank runs between a forward and its backward, for the worst place in a group."""
    rank, chunk = stage % ranks, stage // ranks
    period = [c for c in reversed(range(chunks)) for _ in range(ranks)]
    share = math.floor(slack * (ranks - 1 - rank) / (ranks - 1) + 0.5)
    distance = 2 * (chunks - 1 - chunk) * ranks + ranks - 1 - rank + share
    own = [5 * len(period) + place for place, c in enumerate(period) if c == chunk]
    return max(sum(period[p % len(period)] == chunk for p in range(at - distance, at)) for at in own)


@pytest.mark.parametrize("ranks, chunks", [(2, 2), (2, 3), (3, 2), (4, 3), (5, 2)])
def test_the_gap_keeps_the_bound_and_reaches_it(ranks, chunks):
    """Any window, any stream; long streams reach the bound on every stage with windows of 1, and with some wider ones:
    others line up with the groups, and stay below it."""
    reached = set()
    for slack in {0, 1, ranks - 1}:
        n = [most_between(ranks, chunks, stage, slack) for stage in range(ranks * chunks)]
        if slack == 0:
            assert n[0] == 2 * ranks - 1 and n[-1] == 0
        for window in (1, 2, 3, 2 * ranks):
            for microbatches in (1, 2 * window + 1, 6 * ranks * chunks + 1):
                schedule = looped(ranks, chunks, window=window, microbatches=microbatches, slack=slack)
                validate(schedule)
                trace = simulate(schedule)
                bounds = [math.ceil(count / window) for count in n]
                assert [schedule.gap_bound(stage) for stage in range(schedule.stages)] == bounds
                found = trace.version_gap_max()
                assert all(gap <= bound for gap, bound in zip(found, bounds, strict=True))
                assert trace.in_flight_peak() == [min(microbatches, count + 1) for count in n]
                assert trace.in_flight_peak() == [schedule.in_flight(stage) for stage in range(schedule.stages)]
                if found == bounds:
                    reached.add(window)
                assert found == bounds or window > 1 or microbatches < 6 * ranks * chunks
    assert max(reached) > 1


def test_one_chunk_less_would_be_paci():
    """The bound with V = 1, which the class leaves to PACI: the same formula gives PACI's own."""
    for ranks in (2, 4, 7):
        for slack in (0, 1, ranks - 1):
            paci = PACI(stages=ranks, window=1, microbatches=99, slack=slack)
            assert [most_between(ranks, 1, rank, slack) for rank in range(ranks)] == list(
                map(paci.gap_bound, range(ranks))
            )


def held_on_ranks(schedule: Schedule) -> list[float]:
    """Most micro-batches of a whole rank held on every rank."""
    most = []
    for rank in range(schedule.ranks):
        held, top = 0, 0
        for op in schedule.ops(rank):
            held += (op.kind == "F") - (op.kind == "B")
            top = max(top, held)
        most.append(top * schedule.ranks / schedule.stages)
    return most


def test_what_it_has_over_paci_and_what_not():
    """As its description says: a shorter fill; without slack a latency costs more; with slack R-1 both hide it, all
    ranks hold the same together, and the fullest holds less."""
    ranks, chunks, stream = 4, 2, {"window": 8, "microbatches": 256}

    def busy(schedule: Schedule, latency_ms: float) -> float:
        share = schedule.ranks / schedule.stages
        costs = Costs(forward_ms=share, backward_ms=2 * share, latency_ms=latency_ms)
        return 1 - simulate(schedule, costs).bubble_fraction()

    paci, ours = PACI(stages=ranks, **stream), looped(ranks, chunks, **stream)
    assert busy(ours, 0) == pytest.approx(1 - 3 / (256 * 2 + 3)) and busy(paci, 0) == pytest.approx(1 - 3 / 259)
    assert held_on_ranks(paci) == [4, 3, 2, 1] and held_on_ranks(ours) == [4, 3.5, 3, 2.5]
    assert busy(ours, 0.2) < busy(paci, 0.2) - 0.05
    paci = PACI(stages=ranks, slack=ranks - 1, **stream)
    ours = looped(ranks, chunks, slack=ranks - 1, **stream)
    assert busy(ours, 0.4) > 0.98 and busy(paci, 0.4) > 0.98
    assert held_on_ranks(paci) == [7, 5, 3, 1] and held_on_ranks(ours) == [5.5, 4.5, 3.5, 2.5]
    flush = Interleaved(stages=ranks * chunks, window=64, microbatches=64)
    assert held_on_ranks(ours) == held_on_ranks(flush)


@pytest.mark.parametrize(
    "changes", [{"stages": 4, "window": 1, "microbatches": 9}, {"stages": 6, "window": 4, "chunks": 3, "slack": 1}]
)
def test_interleaved_paci_on_real_ranks_is_replay(tmp_path, changes):
    length = {} if "microbatches" in changes else {"microbatches": 13}
    spec = tiny(
        **{"schedule": "interleaved-paci", "updates": None, "dropout": 0.1, "evaluate_every": 4, **length, **changes},
        partition=split_of(changes["stages"]),
    )
    run = run_to_end(spec, tmp_path / "run")
    exact = assert_run_is_replay(run)
    assert run.result()["ranks"] == 2 and max(run.result()["version_gap_max"]) == max(exact.trace.version_gap_max()) > 0


def test_sizes_that_it_cannot_have_are_refused():
    with pytest.raises(InputError, match="slack = 4 .* up to 3"):
        looped(4, 2, window=2, microbatches=9, slack=4)
    with pytest.raises(InputError, match="slack = -1"):
        looped(4, 2, window=2, microbatches=9, slack=-1)
    with pytest.raises(InputError, match="stages = 5"):
        InterleavedPACI(stages=5, window=2, microbatches=9)


# -- PipeMare ------------------------------


def test_rates_are_divided_by_the_delay_at_first():
    schedule = PipeMare(stages=8, window=2, microbatches=400)
    delays = [max((7 - stage) / 2, 1) for stage in range(8)]
    assert [schedule.learning_rate_factor(stage, 0) for stage in range(8)] == pytest.approx([1 / d for d in delays])
    # Half-way through the annealing the exponent is a half; after it, and where the delay is below one update, none.
    assert schedule.learning_rate_factor(0, 0.125) == pytest.approx(3.5**-0.5)
    assert all(schedule.learning_rate_factor(stage, share) == 1 for stage in range(8) for share in (0.25, 0.7, 1))
    assert all(schedule.learning_rate_factor(stage, 0) == 1 for stage in (5, 6, 7))
    # It is the mean gap that the order really has.
    assert simulate(schedule).version_gap_mean()[:5] == pytest.approx(delays[:5], abs=0.05)


def test_pipemare_is_paci_with_other_rates(tmp_path):
    """Real ranks are replay, rates included; with a rate that needs no division it is PACI to the last bit."""
    spec = tiny(
        schedule="pipemare", stages=4, window=1, updates=None, microbatches=16, partition=split_of(4), warmup=0.0,
        learning_rate_schedule="constant", dropout=0.1,
    )  # fmt: skip
    exact = assert_run_is_replay(run_to_end(spec, tmp_path / "run"))
    for stage, records in enumerate(exact.updates):
        delay = max(3 - stage, 1)
        expected = [1e-3 * delay ** -max(1 - (number + 1) / 4, 0) for number in range(16)]
        assert [record.learning_rate for record in records] == pytest.approx(expected)
    paci = paci_lab.replay(spec.replace(schedule="paci"))
    assert paci.losses[:2] == exact.losses[:2] and paci.losses != exact.losses
    wide, plain = (paci_lab.replay(spec.replace(schedule=name, window=3)) for name in ("pipemare", "paci"))
    assert wide.losses == plain.losses
    assert all(torch.equal(wide.parameters[name], tensor) for name, tensor in plain.parameters.items())
