"""Real ranks: the numbers of replay, to the last bit, and a run directory that says what happened."""

from __future__ import annotations

import json

import pytest
import torch
from engine_helpers import (
    PATIENCE_S,
    assert_run_is_replay,
    assert_trace_is_simulated,
    order_of,
    processes_of,
    run_to_end,
    split_of,
    tiny,
    wait_until,
)

import paci_lab
from paci_lab import TrainSpec
from paci_lab.optimizers import OPTIMIZERS
from paci_lab.runtime import guard

RESULT_FIELDS = {  # of the design, and what the engine adds
    "schema",
    "schedule",
    "stages",
    "window",
    "updates",
    "microbatch_size",
    "device_kind",
    "backend",
    "precision",
    "tokens",
    "wall_time_s",
    "tokens_per_second",
    "utilization",
    "bubble_fraction",
    "version_gap_max",
    "version_gap_mean",
    "in_flight_peak",
    "weight_copies",
    "peak_memory_bytes",
    "final_train_loss",
    "final_val_loss",
    "target_loss",
    "reached",
    "time_to_target_s",
    "updates_to_target",
    "seconds_per_update",
}


# -- exactness ------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {
            "schedule": "paci",
            "stages": 4,
            "window": 3,
            "updates": None,
            "microbatches": 13,
            "slack": 2,
            "dropout": 0.2,
            "optimizer": "muon",
            "evaluate_every": 6,
        },
        {
            "schedule": "paci",
            "stages": 2,
            "window": 1,
            "updates": 8,
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
        },
        {"schedule": "1f1b", "stages": 4, "window": 8, "updates": 2, "optimizer": "sgd", "evaluate": "after"},
        {"schedule": "gpipe", "stages": 2, "window": 3, "updates": None, "microbatches": 7, "evaluate_every": 2},
        {"schedule": "paci", "stages": 1, "window": 2, "updates": 3, "threads": 2},
    ],
    ids=lambda changes: f"{changes['schedule']}-{changes['stages']}x{changes['window']}",
)
def test_real_ranks_are_replay_to_the_last_bit(tmp_path, changes):
    spec = tiny(partition=split_of(changes["stages"]), **changes)
    run = run_to_end(spec, tmp_path / "run")
    exact = assert_run_is_replay(run)
    result = run.result()
    assert result["in_flight_peak"] == [spec.build_schedule().in_flight(stage) for stage in range(spec.stages)]
    assert result["weight_copies"] == [1.0] * spec.stages
    assert result["version_gap_max"] == exact.trace.version_gap_max()
    assert result["final_train_loss"] == pytest.approx(
        sum(exact.updates[-1][-1].losses) / len(exact.updates[-1][-1].losses)
    )
    assert processes_of(run.path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("window", [1, 2, 3, 8])
@pytest.mark.parametrize("schedule, slack", [("gpipe", 0), ("1f1b", 0), ("paci", 0), ("paci", 2)])
def test_the_whole_matrix_is_replay_to_the_last_bit(tmp_path, schedule, slack, stages, window):
    spec = tiny(
        schedule=schedule,
        slack=slack,
        stages=stages,
        window=window,
        updates=None,
        microbatches=3 * window + 1,
        partition=split_of(stages),
        evaluate_every=2 * window,
    )
    assert_run_is_replay(run_to_end(spec, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 8, 16])
def test_measured_gaps_are_the_simulators(tmp_path, stages, window):
    spec = tiny(
        schedule="paci",
        model="gpt:blocks=8,width=16,heads=1,context=16",
        stages=stages,
        window=window,
        updates=None,
        microbatches=4 * max(window, stages),
        partition=split_of(stages, 10),
    )
    run = run_to_end(spec, tmp_path / "run")
    assert_trace_is_simulated(run.trace(), spec)
    schedule = spec.build_schedule()
    assert run.trace().version_gap_max() == [schedule.gap_bound(stage) for stage in range(stages)]
    assert run.trace().in_flight_peak() == [stages - stage for stage in range(stages)]


# -- the run directory ------------------------------


@pytest.fixture(scope="module")
def paced(tmp_path_factory) -> paci_lab.Run:
    """A short run on paced devices with its measured partition left to the engine, and evaluations."""
    spec = tiny(
        schedule="paci",
        stages=3,
        window=2,
        updates=6,
        pace_forward_ms=4,
        pace_backward_ms=[8, 12, 8],
        evaluate_every=4,
        seed=3,
    )
    return run_to_end(spec, tmp_path_factory.mktemp("runs") / "paced")


def test_the_result_has_every_field(paced):
    result = json.loads((paced.path / "result.json").read_text(), parse_constant=pytest.fail)
    assert RESULT_FIELDS <= result.keys()
    assert result == paced.result()
    assert (result["schedule"], result["stages"], result["window"], result["updates"]) == ("paci", 3, 2, 6)
    assert (result["device_kind"], result["backend"], result["precision"]) == ("cpu-paced", "gloo", "fp32")
    assert result["tokens"] == 12 * 16 and result["target_loss"] is None and result["reached"] is None
    assert result["time_to_target_s"] is None and result["updates_to_target"] is None
    for name in (
        "utilization",
        "version_gap_max",
        "version_gap_mean",
        "in_flight_peak",
        "weight_copies",
        "peak_memory_bytes",
    ):
        assert len(result[name]) == 3
    assert all(0 < share <= 1 for share in result["utilization"])
    assert all(size > 10_000_000 for size in result["peak_memory_bytes"])
    trace, metrics = paced.trace(), paced.dir.metrics()
    assert result["bubble_fraction"] == trace.bubble_fraction()
    assert result["wall_time_s"] == pytest.approx(trace.of_kind("U").end_ns.max() / 1e9)
    assert result["tokens_per_second"] == pytest.approx(result["tokens"] / result["wall_time_s"])
    assert result["seconds_per_update"] == pytest.approx(metrics[-1]["time_s"] / 6)
    assert result["final_val_loss"] == paced.dir.validation()[-1]["val_loss"]


def test_a_paced_stage_takes_its_stated_time_at_least(paced):
    trace = paced.trace()
    assert trace.source == "measured on paced devices"
    for kind, stated in (("F", [4, 4, 4]), ("B", [8, 12, 8])):
        part = trace.of_kind(kind)
        for stage in range(3):
            durations = (part.end_ns - part.start_ns)[part.stage == stage]
            assert len(durations) == 12 and durations.min() >= stated[stage] * 1_000_000


def test_metrics_and_environment_say_what_the_design_says(paced):
    rows = [json.loads(line) for line in (paced.path / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if "train_loss" in row]
    assert all(
        row.keys() == {"time_s", "tokens", "update", "train_loss", "grad_norm", "learning_rate"} for row in train
    )
    assert [row["update"] for row in train] == list(range(6)) and [row["tokens"] for row in train] == [
        32 * k for k in range(1, 7)
    ]
    validation = [row for row in rows if "val_loss" in row]
    assert all(row.keys() == {"time_s", "tokens", "update", "val_loss"} for row in validation)
    assert [row["update"] for row in validation] == [1, 3, 5]
    environment = json.loads((paced.path / "environment.json").read_text())
    assert {"torch", "python", "cpu", "gpus", "hosts", "git", "corpus", "corpus_sha256"} <= environment.keys()
    assert len(environment["corpus_sha256"]) == 64
    line = json.loads((paced.path / "trace" / "rank0.jsonl").read_text().splitlines()[0])
    assert line.keys() == {"stage", "rank", "op", "microbatch", "start_ns", "end_ns", "version", "update"}
    suffixes = {path.suffix for path in paced.path.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".toml", ".log", ".now", ".safetensors"}


def test_a_stage_does_one_thing_at_a_time_and_waits_in_between(paced):
    trace = paced.trace()
    for stage in range(3):
        events = [event for event in trace if event.stage == stage]
        assert all(before.end_ns <= after.start_ns for before, after in zip(events, events[1:], strict=False))
    assert trace.waiting_ns()[1:].min() > 0  # the later stages waited for the fill at least
    assert len(trace.of_kind("snapshot")) == 3 * 3
    assert order_of(trace) == order_of(paci_lab.simulate(paced.spec.build_schedule()))


def test_the_spec_of_a_run_repeats_it(paced, tmp_path):
    """In another folder, unpaced, beside another run: the numbers are the same."""
    again = TrainSpec.load(paced.path / "spec.toml").replace(pace_forward_ms=0, pace_backward_ms=0)
    other = tiny(schedule="1f1b", stages=2, seed=4)
    runs = [paci_lab.launch(spec, tmp_path / name) for spec, name in ((again, "again"), (other, "other"))]
    for run in runs:
        run.wait(PATIENCE_S)
    assert runs[0].dir.losses() == paced.dir.losses()
    ours, theirs = runs[0].dir.parameters(), paced.dir.parameters()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [row["val_loss"] for row in runs[0].dir.validation()] == [row["val_loss"] for row in paced.dir.validation()]
    assert_run_is_replay(runs[1])
    assert runs[1].dir.losses() != runs[0].dir.losses()


# -- the target ------------------------------


def test_a_target_that_is_reached_ends_the_run_early(tmp_path):
    """Reached at the second evaluation already; the ranks, slowed down, would have gone on for half an hour."""
    spec = tiny(
        schedule="paci",
        stages=2,
        window=2,
        updates=50_000,
        evaluate_every=8,
        target_loss=5.5,
        pace_forward_ms=5,
        pace_backward_ms=10,
        learning_rate=3e-3,
        learning_rate_schedule="constant",
    )
    run = run_to_end(spec, tmp_path / "run")
    result, validation = run.result(), run.dir.validation()
    assert result["reached"] is True and result["updates"] < 50_000
    row = next(row for row in validation if row["val_loss"] <= 5.5)
    assert result["time_to_target_s"] == row["time_s"] and result["updates_to_target"] == row["update"] + 1
    assert row == validation[-1] and result["final_val_loss"] == row["val_loss"]
    assert row["time_s"] == next(r["time_s"] for r in run.dir.metrics() if r["update"] == row["update"])
    assert run.dir.parameters().keys() == paci_lab.replay(tiny(updates=1)).parameters.keys()
    assert processes_of(run.path) == {}


def test_a_target_that_is_not_reached_is_no_error_and_evaluating_after_changes_nothing(tmp_path):
    during = tiny(schedule="paci", stages=2, evaluate_every=6, target_loss=0.5, trace=False)
    runs = [run_to_end(during.replace(evaluate=when), tmp_path / when) for when in ("during", "after")]
    losses = [[(row["update"], row["val_loss"]) for row in run.dir.validation()] for run in runs]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    for run in runs:
        result = run.result()
        assert result["reached"] is False and result["updates"] == 4 and result["time_to_target_s"] is None
        assert result["best_val_loss"] == min(loss for _, loss in losses[0])
        # No trace was asked for: what would be read off it is unknown, and everything else is there.
        assert (
            len(run.trace()) == 0
            and result["utilization"] is result["version_gap_max"] is result["bubble_fraction"] is None
        )
        assert result["weight_copies"] == [1.0, 1.0] and result["wall_time_s"] > 0


# -- stopping, watching ------------------------------


def test_a_run_can_be_watched_stopped_and_opened_again(tmp_path):
    spec = tiny(schedule="paci", stages=2, window=2, updates=5000, pace_forward_ms=2, pace_backward_ms=4)
    run = paci_lab.launch(spec, tmp_path / "run")
    assert run.running and "running" in repr(run)
    with pytest.raises(TimeoutError, match="has not ended"):
        run.wait(0.01)
    wait_until(lambda: len(run.trace()) > 20 and len(run.dir.metrics()) > 2, what="the first updates")
    with pytest.raises(paci_lab.RunFailed, match="still going"):
        run.result()
    run.stop()
    run.stop()  # stopping what has ended is no error
    assert not run.running and processes_of(run.path) == {}
    opened = paci_lab.open_run(run.path)
    assert len(opened.trace()) > 20 and opened.spec == run.spec and "not ended well" in repr(opened)
    assert opened.dir.failure()["stopped"] is True
    with pytest.raises(paci_lab.RunFailed, match="stopped by the user"):
        opened.result()


# -- the guard, in this process ------------------------------

IMPLEMENTATIONS = [
    (name, how) for name in OPTIMIZERS for how in ("foreach", "forloop", "fused") if (name, how) != ("nadam", "fused")
]


@pytest.mark.parametrize("optimizer, implementation", IMPLEMENTATIONS)
def test_every_optimizer_trains_behind_the_guard(optimizer, implementation):
    """With updates between forwards and their backwards; the loss falls on one micro-batch repeated."""
    spec = tiny(
        schedule="paci",
        stages=3,
        window=1,
        updates=30,
        optimizer=optimizer,
        optimizer_implementation=implementation,
        learning_rate=0.05 if optimizer == "sgd" else 3e-3,
        seed=1,
    )
    exact = paci_lab.replay(spec)
    assert exact.trace.version_gap_max() == [2, 1, 0]
    assert sum(exact.losses[-5:]) < sum(exact.losses[:5]) - 1.0


def test_the_guard_hides_its_step_and_nothing_else():
    weight = torch.nn.Parameter(torch.ones(3))
    other = torch.nn.Parameter(torch.ones(3))

    def step() -> None:
        with torch.no_grad():
            weight.mul_(2)
            other.mul_(2)

    product = (weight * other).sum()
    guard.guarded_step(step, [weight])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    product = (weight * weight).sum()
    guard.guarded_step(step, [weight, other])
    product.backward()
    assert weight.grad.tolist() == [8.0, 8.0, 8.0]  # 2w with the w of now


def test_the_self_test_passes_here_and_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    guard.self_test()
    assert torch.equal(before, torch.get_rng_state())


def test_the_self_test_refuses_a_guard_that_does_nothing(monkeypatch):
    monkeypatch.setattr(guard, "guarded_step", lambda step, parameters: step())
    with pytest.raises(RuntimeError):
        guard.self_test()


def test_the_self_test_refuses_a_guard_that_keeps_the_old_weights(monkeypatch):
    monkeypatch.setattr(guard, "guarded_step", lambda step, parameters: None)
    with pytest.raises(RuntimeError, match="did not use the current weights"):
        guard.self_test()


def test_the_self_test_refuses_an_autograd_that_checks_nothing(monkeypatch):
    step = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD,
        "step",
        lambda self: guard.guarded_step(
            lambda: step(self), [p for group in self.param_groups for p in group["params"]]
        ),
    )
    with pytest.raises(RuntimeError, match="did not refuse an unguarded step"):
        guard.self_test()
