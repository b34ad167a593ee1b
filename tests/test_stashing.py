"""PipeDream and PipeDream-2BW: the update rules as published, written out with whole copies of the modules."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny
from torch import nn

import paci_lab
from paci_lab.data import open_data
from paci_lab.models import build_model
from paci_lab.optimizers import build_optimizer
from paci_lab.runtime.weights import KeptVersions
from paci_lab.schedules import PipeDream, PipeDream2BW, ScheduleError, validate

pytestmark = pytest.mark.usefixtures("one_thread")


def versions_as_published(spec: paci_lab.TrainSpec, stage: int, microbatch: int) -> int:
    """Version that `microbatch` uses on `stage`. PipeDream: the updates made when its forward begins, before which the
    backwards of all but the last N-s micro-batches are over. 2BW: one less than its window's number, everywhere."""
    if spec.schedule == "pipedream":
        return max(0, microbatch - (spec.stages - stage) + 1) // spec.window
    return max(0, microbatch // spec.window - 1)


def delayed_training(spec: paci_lab.TrainSpec) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final weights of training where each micro-batch runs on a deep copy of the version it uses."""
    model = build_model(spec.model, context=spec.context)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    starts = [sum(spec.partition[:stage]) for stage in range(spec.stages)]
    live = [
        nn.ModuleList(model.build_layer(start + layer, spec.seed) for layer in range(count))
        for start, count in zip(starts, spec.partition, strict=True)
    ]
    history = [[copy.deepcopy(stage)] for stage in live]
    optimizers = [
        build_optimizer(
            spec.optimizer,
            list(stage.named_parameters()),
            learning_rate=spec.learning_rate,
            weight_decay=spec.weight_decay,
        )
        for stage in live
    ]
    total = sum(data.train_tokens(k) for k in range(spec.total_microbatches))
    losses, seen = [], 0
    for k in range(spec.total_microbatches):
        first = k - k % spec.window
        window = range(first, min(first + spec.window, spec.total_microbatches))
        used = [history[stage][versions_as_published(spec, stage, k)] for stage in range(spec.stages)]
        inputs, targets = data.train(k)
        activation = inputs
        for stage in used:
            stage.zero_grad()
            for layer in stage:
                activation = layer(activation)
        summed = nn.functional.cross_entropy(activation.flatten(0, 1), targets.flatten(), reduction="sum")
        losses.append(float(summed.detach() / data.train_tokens(k)))
        (summed / sum(map(data.train_tokens, window))).backward()
        for stage, copied in zip(live, used, strict=True):
            for own, other in zip(stage.parameters(), copied.parameters(), strict=True):
                own.grad = other.grad.clone() if own.grad is None else own.grad + other.grad
        if k == window[-1]:
            seen += sum(map(data.train_tokens, window))
            share = seen / total
            factor = share / 0.01 if share < 0.01 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (share - 0.01) / 0.99))
            for stage, optimizer, versions in zip(live, optimizers, history, strict=True):
                optimizer.scale_learning_rate(factor)
                optimizer.step()
                optimizer.zero_grad()
                versions.append(copy.deepcopy(stage))
    parameters = {
        f"layers.{start + int(name.partition('.')[0])}.{name.partition('.')[2]}": tensor.detach()
        for start, stage in zip(starts, live, strict=True)
        for name, tensor in stage.named_parameters()
    }
    return losses, parameters


CASES = [
    {"schedule": "pipedream", "stages": 4, "window": 1, "microbatches": 9, "optimizer": "adamw"},
    {"schedule": "pipedream", "stages": 3, "window": 2, "microbatches": 9, "optimizer": "muon"},
    {"schedule": "pipedream-2bw", "stages": 3, "window": 3, "microbatches": 14, "optimizer": "adamw"},
    {"schedule": "pipedream-2bw", "stages": 2, "window": 4, "microbatches": 16, "optimizer": "sgd"},
    {"schedule": "pipedream-2bw", "stages": 1, "window": 2, "microbatches": 8, "optimizer": "nadam"},
]


@pytest.mark.parametrize("changes", CASES, ids=lambda c: f"{c['schedule']}-{c['stages']}x{c['window']}")
def test_replay_is_the_published_update_rule_to_the_last_bit(changes):
    spec = tiny(updates=None, partition=split_of(changes["stages"]), learning_rate=0.01, **changes)
    losses, parameters = delayed_training(spec)
    exact = paci_lab.replay(spec)
    assert exact.losses == losses
    assert all(torch.equal(exact.parameters[name], tensor) for name, tensor in parameters.items())
    # The rule is not one that live weights would follow by chance.
    assert paci_lab.replay(spec.replace(schedule="paci")).losses != losses


@pytest.mark.parametrize("changes", CASES[1:3], ids=lambda c: c["schedule"])
def test_real_ranks_are_replay_and_hold_as_many_copies_as_the_formula_says(tmp_path, changes):
    spec = tiny(updates=None, partition=split_of(changes["stages"]), dropout=0.1, evaluate_every=6, **changes)
    run = run_to_end(spec, tmp_path / "run")
    assert_run_is_replay(run)
    stages = range(spec.stages)
    if spec.schedule == "pipedream":
        copies = [1 + math.ceil((spec.stages - 1 - s) / spec.window) for s in stages]
    else:
        copies = [2] * spec.stages
    assert run.result()["weight_copies"] == copies


def copies_of(spec: paci_lab.TrainSpec, monkeypatch) -> list[float]:
    """Weight copies per stage that a replay measures, from the sizes of the tensors it keeps."""
    made: list[KeptVersions] = []
    original = KeptVersions.__init__
    monkeypatch.setattr(KeptVersions, "__init__", lambda self, *a: (original(self, *a), made.append(self))[0])
    paci_lab.replay(spec)
    assert all(not kept.copies and not kept.needed.used for kept in made)  # nothing is left behind at the end
    return [1 + kept.kept_share for kept in made]


@pytest.mark.parametrize("stages, window", [(4, 1), (6, 1), (6, 2), (6, 3), (5, 9)])
def test_stashing_costs_a_copy_per_version_in_flight(monkeypatch, stages, window):
    spec = tiny(
        schedule="pipedream", stages=stages, window=window, updates=None, microbatches=5 * max(stages, window),
        partition=split_of(stages),
    )  # fmt: skip
    copies = copies_of(spec, monkeypatch)
    assert copies == [1 + math.ceil((stages - 1 - s) / window) for s in range(stages)]
    if window == 1:
        assert copies == [stages - s for s in range(stages)]


@pytest.mark.parametrize("stages, window", [(1, 1), (3, 3), (4, 9)])
def test_double_buffering_costs_two_copies_everywhere(monkeypatch, stages, window):
    spec = tiny(schedule="pipedream-2bw", stages=stages, window=window, partition=split_of(stages))
    assert copies_of(spec, monkeypatch) == [2.0] * stages


def test_delays_and_bubble_are_as_published():
    for stages, window in ((4, 1), (8, 1), (8, 3)):
        schedule = PipeDream(stages=stages, window=window, microbatches=12 * window * stages)
        trace = paci_lab.simulate(schedule)
        bounds = [math.ceil((stages - 1 - s) / window) for s in range(stages)]
        assert trace.version_gap_max() == bounds == [schedule.gap_bound(s) for s in range(stages)]
        assert trace.steady_utilization() == pytest.approx([1.0] * stages, abs=0.06)
        assert trace.bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction())
    with pytest.raises(paci_lab.InputError, match="window = 3 .* from 4"):
        PipeDream2BW(stages=4, window=3, microbatches=12)


def test_weights_that_are_not_made_yet_are_refused():
    class Hasty(PipeDream):
        def version_used(self, microbatch, updates):
            return self.window_of(microbatch)

    with pytest.raises(ScheduleError, match="version: 0F2: it uses weights after 1 updates, and 0 are made"):
        validate(Hasty(stages=3, window=2, microbatches=8))
