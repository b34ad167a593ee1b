"""Every formula and check value that is published about GPipe, 1F1B and PACI holds in the simulator."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from paci_lab import PACI, Costs, GPipe, InputError, OneFOneB, Schedule, ScheduleError, simulate
from paci_lab.schedules import inputs_of

MS = 1_000_000


def flush(stages: int, microbatches: int, window: int | None = None) -> OneFOneB:
    return OneFOneB(stages=stages, microbatches=microbatches, window=window or microbatches)


def round_ns(schedule: Schedule, costs: Costs) -> int:
    """Time per N micro-batches in the steady state: between two forwards of stage 0 that are N apart, in the middle."""
    trace = simulate(schedule, costs)
    forwards = trace.of_kind("F")
    starts = forwards.start_ns[forwards.stage == 0]
    middle = len(starts) // 2
    return int(starts[middle + schedule.stages] - starts[middle])


# -- published check values ------------------------------


@pytest.mark.parametrize("forward, backward, makespan", [(1, 2, 33), (1, 1, 22)])
def test_flush_with_4_stages_and_8_microbatches(forward, backward, makespan):
    for cls in (OneFOneB, GPipe):
        trace = simulate(cls(stages=4, microbatches=8, window=8), Costs(forward_ms=forward, backward_ms=backward))
        assert trace.makespan_ns == makespan * MS
        assert trace.bubble_fraction() == pytest.approx(3 / 11, abs=1e-12)
        assert trace.updates() == [1, 1, 1, 1]
        assert trace.in_flight_peak() == ([4, 3, 2, 1] if cls is OneFOneB else [8, 8, 8, 8])


@pytest.mark.parametrize("cls", [OneFOneB, GPipe])
def test_the_bubble_of_a_flush_is_n_minus_1_over_m_plus_n_minus_1(cls):
    for stages in (1, 2, 3, 5, 8):
        for window in (1, 2, 4, 7, 16):
            for updates in (1, 3):
                schedule = cls(stages=stages, microbatches=updates * window, window=window)
                trace = simulate(schedule)
                expected = (stages - 1) / (window + stages - 1)
                assert trace.bubble_fraction() == pytest.approx(expected, abs=1e-9)
                assert schedule.ideal_bubble_fraction() == pytest.approx(expected, abs=1e-12)
                held = window if cls is GPipe else None
                assert trace.in_flight_peak() == [held or min(window, stages - s) for s in range(stages)]
                assert trace.version_gap_max() == [0] * stages


def test_a_stream_that_ends_inside_a_window_pays_one_more_fill_and_drain():
    for cls in (OneFOneB, GPipe):
        schedule = cls(stages=4, microbatches=11, window=4)
        assert simulate(schedule).bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction(), abs=1e-9)
        assert schedule.ideal_bubble_fraction() == pytest.approx(1 - 11 / (11 + 3 * 3), abs=1e-12)
        assert simulate(schedule).updates() == [3] * 4


def test_paci_fills_and_drains_once():
    for window in (1, 3, 8):
        schedule = PACI(stages=4, microbatches=8, window=window)
        trace = simulate(schedule)
        assert trace.bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction(), abs=1e-9) == 3 / 11
        assert trace.in_flight_peak() == [4, 3, 2, 1]


# -- latency and slack ------------------------------


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("forward, backward, latency", [(1, 2, 0), (1, 2, 0.5), (1, 1, 0.25), (2, 3, 2.5)])
def test_the_in_flight_limit_exposes_latency(stages, forward, backward, latency):
    """Utilisation (F+B) / (F+B + 2c(N-1)/N): N micro-batches take a round trip more than their work."""
    costs = Costs(forward_ms=forward, backward_ms=backward, latency_ms=latency)
    schedule = PACI(stages=stages, microbatches=100 * stages, window=4)
    work = forward + backward
    assert round_ns(schedule, costs) == round((stages * work + 2 * latency * (stages - 1)) * MS)
    utilization = simulate(schedule, costs).steady_utilization()
    np.testing.assert_allclose(utilization, work / (work + 2 * latency * (stages - 1) / stages), rtol=2 / 100)


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("forward, backward", [(1, 2), (1, 1)])
def test_slack_n_minus_1_hides_latency_up_to_half_a_microbatch_of_work(stages, forward, backward):
    work = forward + backward
    schedule = PACI(stages=stages, microbatches=100 * stages, window=4, slack=stages - 1)
    for latency in (0.1, work / 4, work / 2):
        costs = Costs(forward_ms=forward, backward_ms=backward, latency_ms=latency)
        assert round_ns(schedule, costs) == round(stages * work * MS)
    beyond = Costs(forward_ms=forward, backward_ms=backward, latency_ms=0.6 * work)
    assert round_ns(schedule, beyond) > round(stages * work * MS)


def test_one_slack_is_enough_for_two_stages_only():
    costs = Costs(latency_ms=0.5)
    for stages, hidden in ((2, True), (3, False), (8, False)):
        per_round = round_ns(PACI(stages=stages, microbatches=100 * stages, window=4, slack=1), costs)
        assert (per_round == stages * 3 * MS) == hidden
        assert per_round <= round_ns(PACI(stages=stages, microbatches=100 * stages, window=4), costs)


def test_slack_costs_activations_and_version_gap():
    trace = simulate(PACI(stages=4, microbatches=64, window=4, slack=3))
    assert trace.in_flight_peak() == [7, 5, 3, 1]
    assert trace.version_gap_max() == [math.ceil(6 / 4), 1, 1, 0]
    assert trace.gap_shares(0) == {1: 0.5, 2: 0.5}  # mean (N-1-s+share)/a = 6/4


# -- version gaps ------------------------------


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("slack", [0, 2])
def test_the_version_gap_is_bounded_and_its_mean_is_known(stages, window, slack):
    schedule = PACI(stages=stages, microbatches=window * 64, window=window, slack=slack)
    trace = simulate(schedule)
    for stage in range(stages):
        ahead = stages - 1 - stage + schedule.slack_of(stage)
        bound = math.ceil(ahead / window)
        assert trace.version_gap_max()[stage] == bound == schedule.gap_bound(stage)
        shares = trace.gap_shares(stage)
        assert sum(shares.values()) == pytest.approx(1)
        assert sum(gap * share for gap, share in shares.items()) == pytest.approx(ahead / window, abs=1e-12)
    assert trace.version_gap_max()[-1] == 0


@pytest.mark.parametrize(
    "window, shares", [(4, {1: 0.25, 2: 0.75}), (8, {0: 0.125, 1: 0.875}), (16, {0: 0.5625, 1: 0.4375})]
)
def test_gap_shares_of_8_stages(window, shares):
    trace = simulate(PACI(stages=8, microbatches=64 * window, window=window))
    assert trace.gap_shares(0) == pytest.approx(shares, abs=1e-12)
    assert trace.window() == window


def test_a_window_of_one_is_naive_asynchronous_1f1b():
    trace = simulate(PACI(stages=8, microbatches=64, window=1))
    for stage in range(8):
        assert trace.gap_shares(stage) == {7 - stage: 1.0}


# -- speed-up ------------------------------


@pytest.mark.parametrize("window, speed_up", [(4, 2.75), (8, 1.875), (16, 1.4375)])
def test_paci_over_flush_is_m_plus_n_minus_1_over_m_in_the_steady_state(window, speed_up):
    costs = Costs()
    one_update = simulate(flush(8, window), costs).makespan_ns
    per_microbatch = round_ns(PACI(stages=8, microbatches=64 * window, window=window), costs) / 8
    assert one_update / window / per_microbatch == speed_up == (window + 7) / window
    whole = simulate(PACI(stages=8, microbatches=64 * window, window=window), costs)
    # With its own fill and drain included, which cost as much as one flush does:
    assert 64 * one_update / whole.makespan_ns == pytest.approx(64 * (window + 7) / (64 * window + 7), abs=1e-12)


# -- what else costs ------------------------------


def longest_path(schedule: Schedule, costs: Costs) -> dict:
    """Start and end in ms of every operation, by the definition: after the one before and after its message."""
    duration = costs.duration_ns(schedule.stages)
    before = {}
    for rank in range(schedule.ranks):
        ops = list(schedule.ops(rank))
        before |= dict(zip(ops[1:], ops, strict=False))
    times: dict = {}
    pending = [op for rank in range(schedule.ranks) for op in schedule.ops(rank)]
    while pending:
        left = []
        for op in pending:
            needed = inputs_of(op, schedule.stages)[1]
            if needed:  # a gradient is made by a whole backward here
                needed = op._replace(stage=needed[0], kind="F" if needed[1] == "F" else "B")
            if (op in before and before[op] not in times) or (needed and needed not in times):
                left.append(op)
                continue
            start = max(
                times[before[op]][1] if op in before else 0.0,
                times[needed][1] + costs.latency_ms * MS if needed else 0.0,
            )
            times[op] = start, start + duration[op.kind][op.stage]
        pending = left
    return times


def test_the_simulator_agrees_with_the_definition():
    """Different costs on every stage, latency, updates and a straggler; size costs nothing, so no link is busy."""
    costs = Costs(
        forward_ms=[1, 2, 0.5, 1.25],
        backward_ms=[2, 2.5, 3, 1],
        update_ms=[0.5, 0, 1, 0.25],
        latency_ms=0.75,
        stragglers={2: 1.5},
    )
    for cls in (GPipe, OneFOneB, PACI):
        for window in (1, 3, 8):
            schedule = cls(stages=4, microbatches=13, window=window)
            expected = longest_path(schedule, costs)
            trace = simulate(schedule, costs).of_kind("F", "B", "U")
            found = {(e.stage, e.op, e.microbatch): (e.start_ns, e.end_ns) for e in trace}
            assert found == {tuple(op): pytest.approx(times) for op, times in expected.items()}


def test_waiting_and_working_fill_the_time_of_a_stage():
    """Every gap between two operations of a stage is an event, so a bubble is seen and not guessed."""
    trace = simulate(PACI(stages=4, microbatches=20, window=3), Costs(latency_ms=0.3, update_ms=0.5))
    ends = {stage: 0 for stage in range(4)}
    for event in trace:
        assert event.start_ns == ends[event.stage]
        ends[event.stage] = event.end_ns
    np.testing.assert_array_equal(trace.busy_ns() + trace.waiting_ns(), [ends[stage] for stage in range(4)])


def test_a_straggler_sets_the_pace():
    schedule = PACI(stages=4, microbatches=200, window=4)
    trace = simulate(schedule, Costs(stragglers={1: 2.0}))
    assert round_ns(schedule, Costs(stragglers={1: 2.0})) == 4 * 6 * MS
    utilization = trace.steady_utilization()
    assert utilization[1] == pytest.approx(1.0, abs=0.01)
    np.testing.assert_allclose(utilization[[0, 2, 3]], 0.5, atol=0.01)


def test_costs_per_stage_are_those_stages():
    trace = simulate(flush(3, 2), Costs(forward_ms=[1, 2, 3], backward_ms=[4, 5, 6], update_ms=7))
    for event in trace.of_kind("F", "B", "U"):
        expected = {"F": [1, 2, 3], "B": [4, 5, 6], "U": [7, 7, 7]}[event.op][event.stage]
        assert event.end_ns - event.start_ns == expected * MS


def test_messages_on_one_link_follow_one_another():
    """Two forwards of 1 ms make messages of 3 ms each: the second waits for the link, then both directions are free."""
    schedule = GPipe(stages=2, microbatches=3, window=3)
    costs = Costs(forward_ms=[1, 0.5], backward_ms=1, message_mb=6, bandwidth_mb_per_ms=2, latency_ms=0.25)
    forwards = simulate(schedule, costs).of_kind("F")
    assert (forwards.start_ns[forwards.stage == 1] / MS).tolist() == [4.25, 7.25, 10.25]
    backwards = simulate(schedule, costs).of_kind("B")
    assert (backwards.start_ns[backwards.stage == 1] / MS).tolist() == [10.75, 11.75, 12.75]
    assert (backwards.start_ns[backwards.stage == 0] / MS).tolist() == [15.0, 18.0, 21.0]


def test_a_link_that_is_fast_enough_costs_its_transfer_time_as_latency():
    schedule = PACI(stages=4, microbatches=80, window=4)
    sized = Costs(message_mb=1, bandwidth_mb_per_ms=4, latency_ms=0.25)
    assert simulate(schedule, sized).makespan_ns == simulate(schedule, Costs(latency_ms=0.5)).makespan_ns
    assert (
        simulate(schedule, Costs(message_mb=0, bandwidth_mb_per_ms=1e-9)).makespan_ns == simulate(schedule).makespan_ns
    )


def test_jitter_keeps_the_mean_and_is_the_same_for_the_same_seed():
    schedule = GPipe(stages=1, microbatches=4000, window=100)
    times = simulate(schedule, Costs(jitter=0.3, seed=1)).of_kind("F")
    seconds = ((times.end_ns - times.start_ns) / MS).tolist()
    assert statistics.fmean(seconds) == pytest.approx(1.0, abs=0.02)
    assert statistics.pstdev(seconds) == pytest.approx(0.3, abs=0.03)
    same, other = (simulate(schedule, Costs(jitter=0.3, seed=seed)).makespan_ns for seed in (1, 2))
    assert same == simulate(schedule, Costs(jitter=0.3, seed=1)).makespan_ns != other


def test_jitter_changes_no_version_gap():
    """The order of operations is fixed by the schedule, never by who arrives first."""
    schedule = PACI(stages=4, microbatches=40, window=3)
    steady, shaken = simulate(schedule), simulate(schedule, Costs(jitter=0.8, latency_ms=0.4, stragglers={0: 3}))
    for stage in range(4):
        assert steady.version_gaps(stage) == shaken.version_gaps(stage)
    assert shaken.in_flight_peak() == [4, 3, 2, 1]


def test_one_stage_never_waits():
    for schedule in (
        flush(1, 6, 3),
        PACI(stages=1, microbatches=6, window=3),
        GPipe(stages=1, microbatches=6, window=3),
    ):
        trace = simulate(schedule, Costs(latency_ms=5, update_ms=0.5))
        assert trace.makespan_ns == (6 * 3 + 2 * 0.5) * MS
        assert trace.bubble_fraction() == 0


# -- refusals ------------------------------


@pytest.mark.parametrize(
    "field, value",
    [
        ("forward_ms", -1),
        ("backward_ms", [1, -2]),
        ("update_ms", float("inf")),
        ("latency_ms", float("nan")),
        ("jitter", -0.1),
        ("message_mb", -1),
        ("bandwidth_mb_per_ms", 0),
        ("stragglers", {1: -2}),
        ("forward_ms", "fast"),
        ("latency_ms", [1, 2]),
        ("forward_ms", None),
        ("forward_ms", []),
        ("jitter", True),
    ],
)
def test_impossible_costs_are_refused(field, value):
    with pytest.raises(InputError) as refusal:
        Costs(**{field: value})
    assert refusal.value.what == field


def test_costs_that_do_not_fit_the_stages_are_refused():
    with pytest.raises(InputError, match="forward_ms"):
        simulate(flush(3, 2), Costs(forward_ms=[1, 2]))
    with pytest.raises(InputError, match="stragglers = 3 .* stages 0..2"):
        simulate(flush(3, 2), Costs(stragglers={3: 2.0}))


def test_a_schedule_that_cannot_run_is_refused_with_its_grid():
    class Deadlock(OneFOneB):
        name = "deadlock"

        def ops(self, rank):
            # Stage 1 wants both forwards first, stage 0 wants a gradient in between.
            return iter(GPipe.ops(self, rank) if rank else OneFOneB(stages=1, microbatches=2, window=2).ops(0))

    with pytest.raises(ScheduleError, match="deadlock: 0B0"):
        simulate(Deadlock(stages=2, microbatches=2, window=2))
