"""Recomputation: what is kept, with which weights it is run again, and where it changes nothing."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny
from test_precision import stages_of
from torch import Tensor

import paci_lab
from paci_lab.lessons import Held
from paci_lab.runtime.guard import guarded_step

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "gpipe", "dropout": 0.1},
        {"schedule": "zb-h1", "dropout": 0.1},
        {"schedule": "1f1b", "precision": "bf16"},
        {"schedule": "pipedream", "dropout": 0.1},
        {"schedule": "pipedream-2bw", "window": 2},
    ],
    ids=lambda changes: changes["schedule"],
)
def test_it_changes_no_number_where_both_forwards_have_one_version(changes):
    spec = tiny(stages=2, partition=split_of(2), **changes)
    plain, again = paci_lab.replay(spec), paci_lab.replay(spec.replace(recompute=True))
    assert again.losses == plain.losses
    assert not [name for name in plain.parameters if not torch.equal(again.parameters[name], plain.parameters[name])]


def test_on_live_weights_the_gradient_is_that_of_the_current_stage_at_the_old_input():
    spec = tiny(schedule="paci", stages=2, partition=[3, 3], window=1, updates=4, dropout=0.1, recompute=True)
    stage, plain = stages_of(spec)[0], stages_of(spec.replace(recompute=False))[0]
    gradient = torch.randn(stage.model.boundary_shape(1), generator=torch.Generator().manual_seed(0))

    def change(s) -> None:
        with torch.no_grad():
            for parameter in s.optimizer.parameters:
                parameter.mul_(1.5)

    found = []
    for s in (stage, plain):
        s.forward(0, None)
        guarded_step(lambda s=s: change(s), s.optimizer.parameters)
        s.backward(0, gradient)
        found.append([p.grad for p in s.optimizer.parameters])
    fresh = stages_of(spec.replace(recompute=False))[0]
    change(fresh)
    fresh.forward(0, None)
    fresh.backward(0, gradient)
    expected = [p.grad for p in fresh.optimizer.parameters]
    assert all(torch.equal(a, b) for a, b in zip(found[0], expected, strict=True))
    # Without recomputation the activations are of the old weights: another gradient.
    assert not any(torch.allclose(a, b) for a, b in zip(found[1], expected, strict=True) if a.ndim == 2 and a.any())


def test_no_graph_is_kept_between_forward_and_backward():
    spec = tiny(schedule="paci", stages=2, partition=[3, 3], window=2)
    kept = {}
    for recompute in (False, True):
        stage = stages_of(spec.replace(recompute=recompute))[0]
        with Held(stage.layers) as held:
            stage.forward(0, None)
            stage.forward(1, None)
            kept[recompute] = held.now
            stage.backward(0, torch.ones(stage.model.boundary_shape(1)))
        assert (held.peak > 0) and held.now == kept[recompute] // 2
    assert kept[True] == 0 < kept[False]


def test_a_stage_that_holds_one_micro_batch_does_not_recompute():
    spec = tiny(schedule="paci", stages=3, partition=[2, 2, 2], recompute=True)
    assert [stage.recomputes for stage in stages_of(spec)] == [True, True, False]
    assert [stage.recomputes for stage in stages_of(spec.replace(schedule="gpipe"))] == [True] * 3


def test_a_loss_is_reported_once_and_is_the_first_forwards():
    spec = tiny(schedule="gpipe", stages=2, partition=split_of(2), recompute=True)
    last = stages_of(spec)[1]
    losses: list[Tensor] = []
    activation = torch.randn(last.model.boundary_shape(1), generator=torch.Generator().manual_seed(0))
    last.forward(0, activation)
    losses = list(last.losses)
    with torch.no_grad():
        for parameter in last.optimizer.parameters:
            parameter.mul_(1.5)
    last.backward(0, None)
    assert last.losses == losses and len(losses) == 1
    assert len(paci_lab.replay(spec).losses) == spec.total_microbatches


@pytest.mark.slow
def test_a_real_run_with_split_backwards_is_its_replay(tmp_path):
    spec = tiny(schedule="zb-h1", stages=2, partition=split_of(2), recompute=True, precision="bf16", dropout=0.1)
    run = run_to_end(spec, tmp_path / "run")
    assert_run_is_replay(run)
    assert run.result()["recompute"] is True
