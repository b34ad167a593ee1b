"""Peers: the same losses as ours, real processes that end, and reasons instead of an end of the comparison."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from engine_helpers import PATIENCE_S, kill, pid_of, processes_of, run_to_end, split_of, tiny, wait_until

from paci_lab import InputError, RunFailed, TrainSpec, launch, replay
from paci_lab.commands.compare import comparison_rows, parse_contender, parse_contenders
from paci_lab.compare import compare
from paci_lab.peers import PEERS
from paci_lab.runtime.resolve import resolve
from paci_lab.schedules import schedule_classes

OTHERS = [
    f"{name}:4"
    for name, (_, schedule) in PEERS.items()
    if name not in ("torch-1f1b", "accumulation") and schedule in schedule_classes()
]


def contender(text: str, **changes) -> TrainSpec:
    base = tiny(**{"updates": None, "microbatches": 12, "evaluate_every": 4, **changes})
    return parse_contender(text, base)[1]


def assert_same_training(text: str, path, **changes) -> None:
    """Losses, weights and validation losses of a peer are those of our own flush up to the rounding of float32."""
    spec = contender(text, **changes)
    run = run_to_end(spec, path)
    ours = replay(contender(f"1f1b:{spec.window}", **changes))
    assert run.dir.losses() == pytest.approx(ours.losses, rel=1e-5)
    found = run.dir.parameters()
    assert found.keys() == ours.parameters.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, ours.parameters[name], rtol=1e-4, atol=1e-5)
    assert [row["update"] for row in run.dir.validation()] == [update for _, update, _ in ours.validation]
    assert [r["val_loss"] for r in run.dir.validation()] == pytest.approx([v for *_, v in ours.validation], rel=1e-5)
    assert run.result()["engine"] == spec.engine
    work = [event.op for event in run.trace() if event.op in "FBIW"]
    assert work.count("F") == (12 // spec.window if spec.engine == "single" else 12 * spec.stages)
    assert work.count("F") == work.count("B") + work.count("I") and work.count("I") == work.count("W")


@pytest.mark.parametrize("text", ["torch-1f1b:4", "accumulation:4"])
def test_a_peer_trains_what_our_flush_trains(text, tmp_path):
    assert_same_training(text, tmp_path / "run", stages=2, optimizer="adamw")


@pytest.mark.slow
@pytest.mark.parametrize("text", OTHERS)
def test_the_other_peers_train_it_too(text, tmp_path):
    assert_same_training(text, tmp_path / "run", stages=2)


@pytest.mark.slow
def test_a_paced_peer_keeps_the_pace_and_stops_at_the_target(tmp_path):
    spec = contender("torch-1f1b:4", stages=2, target_loss=100.0, pace_forward_ms=10, pace_backward_ms=20)
    run = run_to_end(spec, tmp_path / "run")
    result = run.result()
    assert result["reached"] and result["updates_to_target"] == 1 and result["device_kind"] == "cpu-paced"
    shortest = {kind: min(e.end_ns - e.start_ns for e in run.trace() if e.op == kind) for kind in "FB"}
    assert shortest["F"] >= 10e6 and shortest["B"] >= 20e6
    assert result["time_to_target_s"] >= (4 + 2 - 1) * 0.03  # the flush of one window on two such devices


@pytest.mark.slow
def test_a_killed_rank_ends_the_peer_and_is_named(tmp_path):
    spec = contender("torch-1f1b:4", stages=2, microbatches=400, pace_forward_ms=200, pace_backward_ms=200)
    run = launch(spec, tmp_path / "run")
    wait_until(lambda: len(run.trace()), what="the first operation")
    kill([pid_of(run.path, "rank1")], signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"rank 1 \(stage 1\).*SIGKILL"):
        run.wait(PATIENCE_S)
    wait_until(lambda: not processes_of(run.path), what="the end of all processes")


@pytest.mark.slow
def test_a_peer_that_cannot_run_says_why_and_the_others_go_on(tmp_path):
    base = tiny(updates=None, microbatches=10, stages=2, partition=split_of(2))
    # torch's zero bubble refuses a window of 5 over 2 ranks itself; 10 micro-batches are no multiple of 4.
    specs = dict(parse_contender(text, base) for text in ("1f1b:5", "torch-zb:5", "torch-1f1b:4"))
    found = compare(specs, rounds=1, folder=tmp_path)
    assert len(found.results["1f1b-5"]) == 1
    assert "Zero bubble requires the number of microbatches" in found.failures["torch-zb-5"]
    assert "a multiple of window 4" in found.failures["torch-1f1b-4"]
    rows, best = comparison_rows(found, specs)
    assert best == "1f1b-5"
    assert [row[:2] for row in rows[1:]] == [["torch-zb-5", "could not run"], ["torch-1f1b-4", "could not run"]]
    assert json.loads(json.dumps(dict(found.failures)))


def test_a_peer_that_cannot_be_given_the_work_is_named_too():
    base = tiny(updates=None, microbatches=8, stages=3)
    specs, refused = parse_contenders(["1f1b:4", "torch-interleaved:4"], base)  # a window of 4 over 3 ranks
    assert list(specs) == ["1f1b-4"] and "a multiple of 3" in refused["torch-interleaved-4"]
    with pytest.raises(InputError, match="window"):
        parse_contenders(["interleaved:4"], base)


def test_one_device_takes_the_time_of_all_stages():
    base = tiny(stages=3, partition=split_of(3), pace_forward_ms=[1, 2, 3], pace_backward_ms=4)
    name, spec = parse_contender("accumulation:3", base)
    assert (name, spec.engine, spec.stages, spec.partition) == ("accumulation-3", "accumulation", 1, "auto")
    assert (spec.pace_forward_ms, spec.pace_backward_ms) == (6, 12)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"engine": "deepspeed"}, "engine"),
        ({"engine": "torch", "schedule": "paci", "stages": 2}, "schedule"),
        ({"engine": "torch", "schedule": "1f1b", "stages": 2, "updates": None, "microbatches": 10}, "microbatches"),
        ({"engine": "accumulation", "schedule": "1f1b", "stages": 2}, "stages"),
        ({"engine": "single", "schedule": "1f1b", "stages": 1, "pace_forward_ms": 5}, "pace"),
    ],
)
def test_what_a_peer_cannot_do_is_refused(changes, what):
    with pytest.raises(InputError) as refused:
        resolve(tiny(**changes))
    assert refused.value.what == what


def test_a_peer_is_not_replayed():
    with pytest.raises(InputError, match="engine"):
        replay(tiny(engine="accumulation", schedule="1f1b", stages=1))
