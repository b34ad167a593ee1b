"""The oracle against plain training: gradient accumulation written out with torch and nothing of the pipeline."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_helpers import assert_trace_is_simulated, split_of, tiny
from torch import nn

import paci_lab
from paci_lab.data import open_data
from paci_lab.models import build_model
from paci_lab.optimizers import build_optimizer
from paci_lab.schedules import PACI

OWN_DATA = '''
"""Micro-batches of different sizes: micro-batch k counts only the first (k % 3 + 1) * 4 targets of every row."""
import numpy as np
import torch


class Uneven:
    name, vocabulary, sha256 = "uneven", 256, "none"

    def __init__(self, context, microbatch_size, seed):
        self.context, self.size, self.seed = context, microbatch_size, seed

    def counted(self, k):
        return min((k % 3 + 1) * 4, self.context)

    def train(self, k):
        rows = torch.from_numpy(np.random.default_rng((self.seed, k)).integers(0, 256, (self.size, self.context + 1)))
        inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].clone()
        targets[:, self.counted(k):] = -100
        return inputs, targets

    def train_tokens(self, k):
        return self.size * self.counted(k)

    def validation(self, batches):
        return [self.train(10**6 + k) for k in range(batches)]


class Hollow(Uneven):
    """Micro-batch 1 has no target at all."""

    def counted(self, k):
        return 0 if k == 1 else super().counted(k)
'''


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def own_data(tmp_path) -> str:
    (tmp_path / "own.py").write_text(OWN_DATA)
    return str(tmp_path / "own.py")


def plain_training(spec: paci_lab.TrainSpec) -> tuple[list[float], dict[str, torch.Tensor], list[float]]:
    """Losses of the micro-batches, final weights, gradient norms: whole windows, mean over the window's tokens."""
    model = build_model(spec.model, context=spec.context)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    layers = nn.Sequential(*(model.build_layer(layer, spec.seed) for layer in range(model.layers)))
    parameters = dict(layers.named_parameters())
    optimizer = build_optimizer(
        spec.optimizer, list(parameters.items()), learning_rate=spec.learning_rate, weight_decay=spec.weight_decay
    )
    total_tokens = sum(data.train_tokens(k) for k in range(spec.total_microbatches))
    losses, norms, seen = [], [], 0
    for first in range(0, spec.total_microbatches, spec.window):
        window = range(first, min(first + spec.window, spec.total_microbatches))
        tokens = sum(data.train_tokens(k) for k in window)
        for k in window:
            inputs, targets = data.train(k)
            summed = nn.functional.cross_entropy(layers(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
            losses.append(float(summed.detach() / (targets != -100).sum()))
            (summed / tokens).backward()
        seen += tokens
        # Cosine to a tenth after 1 % of warm-up, by tokens.
        share = seen / total_tokens
        factor = share / 0.01 if share < 0.01 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (share - 0.01) / 0.99))
        optimizer.scale_learning_rate(factor)
        norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in parameters.values())))
        optimizer.step()
        optimizer.zero_grad()
    return losses, {f"layers.{name}": tensor.detach() for name, tensor in parameters.items()}, norms


def assert_is_plain(spec: paci_lab.TrainSpec) -> paci_lab.Replay:
    exact = paci_lab.replay(spec)
    losses, parameters, norms = plain_training(spec)
    assert exact.losses == losses
    assert exact.parameters.keys() == parameters.keys()
    assert all(torch.equal(exact.parameters[name], tensor) for name, tensor in parameters.items())
    for update, norm in enumerate(norms):
        assert math.sqrt(sum(records[update].grad_norm ** 2 for records in exact.updates)) == pytest.approx(
            norm, rel=1e-5
        )
    return exact


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    "stages, window, microbatches", [(1, 3, 9), (2, 4, 10), (4, 3, 8), (6, 8, 8), (3, 1, 4), (2, 8, 5)]
)
def test_flush_is_plain_gradient_accumulation(schedule, stages, window, microbatches):
    spec = tiny(
        schedule=schedule,
        stages=stages,
        window=window,
        updates=None,
        microbatches=microbatches,
        partition=split_of(stages),
        optimizer="adamw" if stages % 2 else "muon",
    )
    assert_trace_is_simulated(assert_is_plain(spec).trace, spec)


@pytest.mark.parametrize("window, slack", [(1, 0), (3, 0), (3, 2), (5, 0)])
def test_paci_on_one_stage_is_plain_gradient_accumulation(window, slack):
    assert_is_plain(tiny(schedule="paci", stages=1, window=window, updates=None, microbatches=11, slack=slack))


def test_paci_on_several_stages_is_not_but_only_because_of_the_gap():
    """Losses before any update agree, later ones differ; with one window there is no gap, and all agrees."""
    spec = tiny(schedule="paci", stages=3, window=2, updates=5)
    losses, parameters, _ = plain_training(spec)
    exact = paci_lab.replay(spec)
    assert exact.losses[:2] == losses[:2] and exact.losses[-1] != losses[-1]
    assert exact.losses[-1] == pytest.approx(losses[-1], rel=0.1)  # the gap is a small error, not another problem
    assert not any(
        torch.equal(exact.parameters[name], tensor) for name, tensor in parameters.items() if tensor.ndim == 2
    )
    one_window = tiny(schedule="paci", stages=3, window=6, updates=1)
    assert_is_plain(one_window)


@pytest.mark.parametrize("schedule, stages", [("gpipe", 2), ("1f1b", 3), ("paci", 1)])
def test_unequal_microbatches_weigh_by_their_tokens(own_data, schedule, stages):
    spec = tiny(
        schedule=schedule,
        stages=stages,
        window=3,
        updates=None,
        microbatches=8,
        data=f"{own_data}:Uneven",
        microbatch_size=2,
    )
    exact = assert_is_plain(spec)
    assert [record.tokens for record in exact.updates[0]] == [48, 96, 120]  # 2 rows of 4, 8 and 12 targets in turn


def test_a_microbatch_without_targets_has_loss_zero(own_data):
    exact = paci_lab.replay(tiny(schedule="1f1b", stages=2, window=2, updates=2, data=f"{own_data}:Hollow"))
    assert exact.losses[1] == 0.0 and all(loss > 1 for k, loss in enumerate(exact.losses) if k != 1)


def test_dropout_masks_are_the_same_for_every_stage_count_and_order():
    changes = {"dropout": 0.3, "window": 3, "updates": 3}
    whole = paci_lab.replay(tiny(schedule="1f1b", stages=1, **changes))
    for schedule, stages in (("1f1b", 2), ("gpipe", 4), ("1f1b", 6)):
        cut = paci_lab.replay(tiny(schedule=schedule, stages=stages, **changes))
        assert cut.losses == whole.losses
        assert all(torch.equal(cut.parameters[name], tensor) for name, tensor in whole.parameters.items())
    assert paci_lab.replay(tiny(schedule="1f1b", stages=1, **{**changes, "dropout": 0.0})).losses != whole.losses


def test_the_partition_changes_no_number_of_a_flush():
    runs = [
        paci_lab.replay(tiny(schedule="1f1b", stages=2, partition=cut, updates=2)) for cut in ([1, 5], [3, 3], [5, 1])
    ]
    assert runs[0].losses == runs[1].losses == runs[2].losses


@pytest.mark.parametrize("stages, window, slack", [(2, 1, 0), (4, 1, 0), (4, 3, 0), (4, 3, 2), (6, 2, 1)])
def test_versions_and_order_are_the_simulators(stages, window, slack):
    spec = tiny(schedule="paci", stages=stages, window=window, slack=slack, updates=None, microbatches=5 * window + 1)
    assert_trace_is_simulated(paci_lab.replay(spec).trace, spec)


def test_a_backward_uses_the_stored_activation_and_the_weights_of_its_own_moment():
    """PACI's own arithmetic, by hand: two stages, window 1; stage 0 has stepped once between F1 and B1."""
    spec = tiny(
        schedule="paci",
        stages=2,
        window=1,
        updates=2,
        optimizer="sgd",
        momentum=0.0,
        weight_decay=0.0,
        learning_rate=0.5,
        learning_rate_schedule="constant",
        warmup=0.0,
        partition=[1, 5],
    )
    exact = paci_lab.replay(spec)
    assert PACI(stages=2, microbatches=2, window=1).gap_bound(0) == 1 == exact.trace.version_gap_max()[0]

    model = build_model(spec.model, context=spec.context)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    layers = [model.build_layer(layer, spec.seed) for layer in range(model.layers)]

    def last_stage(activation: torch.Tensor, k: int) -> tuple[float, torch.Tensor]:
        """Loss and input gradient; steps the layers of the last stage."""
        activation = activation.detach().requires_grad_()
        output = activation
        for layer in layers[1:]:
            output = layer(output)
        loss = model.loss(output, data.train(k)[1]) / data.train_tokens(k)
        loss.backward()
        step(layers[1:])
        return float(loss.detach()), activation.grad

    def step(which: list[nn.Module]) -> None:
        with torch.no_grad():
            for layer in which:
                for p in layer.parameters():
                    p -= 0.5 * p.grad
                    p.grad = None

    first, second = (layers[0](data.train(k)[0]) for k in (0, 1))  # both forwards before any update
    losses = []
    for k, output in enumerate((first, second)):
        loss, gradient = last_stage(output, k)
        losses.append(loss)
        output.backward(gradient)  # an embedding's gradient does not depend on its weights, so no guard is needed
        step(layers[:1])
    assert exact.losses == pytest.approx(losses, abs=1e-6)
    for number, layer in enumerate(layers):
        for name, tensor in layer.named_parameters():
            torch.testing.assert_close(
                exact.parameters[f"layers.{number}.{name}"], tensor.detach(), rtol=1e-5, atol=1e-6
            )


def test_validation_is_of_the_same_update_on_every_stage():
    """The weights that a flush has after an update are those of a shorter run: their validation losses agree."""
    spec = tiny(
        schedule="1f1b", stages=3, window=2, updates=4, evaluate_every=4, learning_rate_schedule="constant", warmup=0.0
    )
    found = paci_lab.replay(spec).validation
    assert [(microbatches, update) for microbatches, update, _ in found] == [(4, 1), (8, 3)]
    short = paci_lab.replay(spec.replace(updates=2))
    assert short.validation[-1][2] == found[0][2]


def test_replaying_leaves_the_number_of_threads_alone():
    torch.set_num_threads(2)
    paci_lab.replay(tiny(updates=1))
    assert torch.get_num_threads() == 2


def test_the_engine_has_no_pickle():
    """Files of a run are JSON, TOML and safetensors: opening somebody else's run executes nothing."""
    for path in Path(paci_lab.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pickle" not in text and "torch.load" not in text and "torch.save" not in text, path


def test_the_function_stays_a_function_whatever_is_imported():
    code = "import paci_lab.lessons, paci_lab; assert callable(paci_lab.replay) and callable(paci_lab.simulate)"
    subprocess.run([sys.executable, "-c", code], check=True)
