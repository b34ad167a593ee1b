"""Clipping without a flush, updates skipped over gradients that are not finite, and the report of loss spikes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from engine_helpers import assert_run_is_replay, run_to_end, tiny

import paci_lab
from paci_lab.cli import main
from paci_lab.commands.remarks import remarks
from paci_lab.runtime.clipping import Clipping
from paci_lab.spikes import LEAST, loss_spikes, spikes_text

pytestmark = pytest.mark.usefixtures("one_thread")

POISON = '''
"""AdamW with one infinite gradient after `at` steps, on the stage that begins with the embedding."""
import torch


class Poison(torch.optim.AdamW):
    def __init__(self, params, lr, at, **options):
        params = list(params)
        super().__init__(params, lr=lr, **options)
        self.steps, self.at = 0, at
        if params[0].ndim == 2:
            params[0].register_hook(self.poison)

    def poison(self, gradient):
        if self.steps == self.at:
            self.steps += 1000
            return gradient * float("inf")

    def step(self):
        super().step()
        self.steps += 1
'''


def clipping(limit: float | None, rule: str, stages: int = 3) -> Clipping:
    return Clipping(limit, rule, stages, torch.device("cpu"))


# -- the rules --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["stage", "lagged"])
@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_one_stage_is_exact_clipping(rule, scale):
    generator = torch.Generator().manual_seed(0)
    gradients = [scale * torch.randn(shape, generator=generator) for shape in ((4, 4), (7,))]
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, 1.5))
    factor, judged = clipping(1.5, rule, stages=1).clip(norm, gradients)
    assert judged == pytest.approx(norm) and (factor < 1) == (norm > 1.5)
    assert all(torch.allclose(g, p.grad, rtol=1e-5) for g, p in zip(gradients, parameters, strict=True))


def test_no_clipping_leaves_gradients_alone():
    gradients = [torch.full((3,), 1e6)]
    rule = clipping(None, "lagged")
    assert rule.clip(1e6, gradients) is None and rule.says("F") is None
    assert torch.equal(gradients[0], torch.full((3,), 1e6))


def test_stages_by_themselves_stay_within_the_limit_together():
    spec = tiny(schedule="1f1b", stages=3, partition=[2, 2, 2], clip_norm=0.5, updates=6)
    found = paci_lab.replay(spec).updates
    for records in zip(*found, strict=True):
        squares = [(record.grad_norm * record.clipping[0]) ** 2 for record in records]
        assert math.sqrt(sum(squares)) <= 0.5 * (1 + 1e-6)
        for record in records:
            assert record.clipping[0] == pytest.approx(min(1, 0.5 / math.sqrt(3) / record.grad_norm), rel=1e-4)


def test_lagged_is_the_own_norm_with_the_others_of_the_window_before_on_a_flush():
    spec = tiny(schedule="1f1b", stages=3, partition=[2, 2, 2], clip_norm=0.5, clip="lagged", updates=6)
    found = paci_lab.replay(spec).updates
    for stage, records in enumerate(found):
        for update, record in enumerate(records):
            own = record.grad_norm**2
            if update == 0:  # nobody has been heard of: the others are taken to be alike
                expected = 3 * own
            else:
                expected = own + sum(r[update - 1].grad_norm ** 2 for s, r in enumerate(found) if s != stage)
            assert record.clipping[1] == pytest.approx(math.sqrt(expected), rel=1e-5)


def test_what_is_heard_is_passed_on_with_the_number_of_stages():
    first, middle, last = (clipping(1.0, "lagged") for _ in range(3))
    first.clip(3.0, [])
    middle.heard("F", first.says("F"))
    middle.clip(4.0, [])
    last.heard("F", middle.says("F"))
    assert last.says("B").tolist() == [0, 0]  # its own window is not over
    assert last.clip(12.0, []) == (pytest.approx(1 / 13), pytest.approx(13.0))
    first.heard("B", torch.tensor([16.0, 1.0]))  # one of two stages behind is known
    assert first.clip(3.0, [])[1] == pytest.approx(math.sqrt(25 * 3 / 2))


# -- real runs --------------------------------------------------------------------------------------------------------
def test_a_gradient_that_is_not_finite_skips_the_update_of_its_stage(tmp_path):
    (tmp_path / "poison.py").write_text(POISON)
    spec = tiny(
        schedule="paci", stages=3, partition=[2, 2, 2], window=2, updates=5, optimizer=f"{tmp_path}/poison.py:Poison",
        optimizer_options={"at": 2}, clip_norm=0.5, clip="lagged",
    )  # fmt: skip
    run = run_to_end(spec, tmp_path / "run")
    exact = assert_run_is_replay(run)
    result = json.loads((run.path / "result.json").read_text(), parse_constant=pytest.fail)
    assert result["skipped_updates"] == [1, 0, 0] and result["updates"] == 5
    assert [row["skipped"] for row in run.dir.updates_of(0)] == [False, False, True, False, False]
    assert [row["grad_norm"] is None for row in run.dir.metrics()] == [False, False, True, False, False]
    # The others are not poisoned by what they heard, and nothing has reached the weights.
    assert all(0 < r.clipping[0] <= 1 for records in exact.updates[1:] for r in records)
    assert all(torch.isfinite(tensor).all() for tensor in exact.parameters.values())
    assert any("stage 0: 1 of 5" in remark for remark in remarks(result))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_notes_between_stages_of_one_rank_and_of_two(precision, tmp_path):
    spec = tiny(
        schedule="interleaved", stages=4, window=4, partition=[1, 2, 2, 1], clip_norm=0.5, clip="lagged",
        precision=precision,
    )  # fmt: skip
    assert_run_is_replay(run_to_end(spec, tmp_path / "run"))


def test_a_skipped_update_leaves_weights_and_optimizer_alone(tmp_path):
    (tmp_path / "poison.py").write_text(POISON)
    base = tiny(
        schedule="paci", stages=1, window=2, updates=3, optimizer=f"{tmp_path}/poison.py:Poison",
        optimizer_options={"at": 2}, learning_rate_schedule="constant", warmup=0,
    )  # fmt: skip
    skipped = paci_lab.replay(base)
    before = paci_lab.replay(base.replace(updates=2))
    assert [record.skipped for record in skipped.updates[0]] == [False, False, True]
    assert not [n for n in before.parameters if not torch.equal(before.parameters[n], skipped.parameters[n])]


# -- loss spikes ------------------------------------------------------------------------------------------------------
def rows(losses) -> list[dict[str, float]]:
    return [{"update": update, "train_loss": float(loss)} for update, loss in enumerate(losses)]


def test_spikes_stand_out_from_a_falling_curve():
    updates = np.arange(300)
    losses = 2 + 3 * np.exp(-updates / 60) + 0.05 * np.random.default_rng(0).standard_normal(300)
    norms = [[1.0] * 300, [2.0] * 300]
    assert loss_spikes(rows(losses), norms) == []
    losses[[120, 200]] += [3.0, 1.5]
    norms[1][120] = None
    found = loss_spikes(rows(losses), norms)
    assert [spike["update"] for spike in found] == [120, 200]
    assert found[0]["grad_norm"] == [1.0, None] and found[0]["loss"] == losses[120] and found[0]["mads"] > 8
    assert "2; the worst at update 200" in spikes_text(found)
    json.dumps(found)


def test_a_short_or_even_run_has_no_spikes():
    assert loss_spikes(rows([1.0] * LEAST + [1.005]), [[0.0]]) == []  # a deviation of 0 proves nothing
    assert loss_spikes(rows([5, 4, 9, 3]), [[0.0]]) == []
    assert len(loss_spikes(rows([1.0] * LEAST + [2.0]), [[0.0] * 20])) == 1


# -- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("flag", "value"), [("--clip-norm", "0"), ("--clip-norm", "-1"), ("--clip", "exact")])
def test_impossible_values_are_refused(flag, value, capsys):
    assert main(["train", flag, value, "--dry-run"]) == 2
    assert flag.removeprefix("--").replace("-", "_") in capsys.readouterr().err.replace("-", "_")
