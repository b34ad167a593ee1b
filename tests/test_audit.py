"""The version audit finds every copy of the weights that a backward reads, and leaves the stage as it was."""

from __future__ import annotations

import json

import pytest
import torch
from engine_helpers import tiny
from test_precision import stages_of
from torch import Tensor, nn

from paci_lab.audit import audit_stage, merge_findings
from paci_lab.cli import main
from paci_lab.runtime.stage import Stage

pytestmark = pytest.mark.usefixtures("one_thread")


def first_stage(**changes) -> Stage:
    """Two blocks behind the embedding: a stage with a gap."""
    return stages_of(tiny(**{"schedule": "paci", "stages": 2, "partition": [3, 3], "window": 2, **changes}))[0]


@pytest.mark.parametrize(
    ("changes", "linear", "norm"),
    [
        ({"precision": "fp32"}, "current", "current"),
        ({"precision": "bf16"}, "current", "current"),
        ({"precision": "autocast"}, "forward's", "current"),
        ({"precision": "autocast", "recompute": True}, "current", "current"),
        ({"schedule": "pipedream"}, "forward's", "forward's"),
        ({"schedule": "pipedream-2bw", "precision": "bf16"}, "forward's", "forward's"),
        ({"schedule": "pipedream", "recompute": True}, "forward's", "forward's"),
        ({"schedule": "zb-h1", "recompute": True}, "current", "current"),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_what_each_kind_of_weight_is(changes, linear, norm):
    found = audit_stage(first_stage(**changes))
    assert found == {
        "Embedding positions": "not used",
        "Embedding weight": "not used",
        "LayerNorm bias": "not used",
        "LayerNorm weight": norm,
        "Linear bias": "not used",
        "Linear weight": linear,
    }


class _Copies(torch.autograd.Function):
    """x @ weight.T, with a copy of the weight where no hook on saved tensors sees it."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.hidden = weight.detach().clone()
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.hidden, None


class Hides(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return _Copies.apply(x, self.matrix)


class Bends(nn.Module):
    """A weight before a nonlinearity: the backward reads the weight and an activation made with the old one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.matrix)


class Zeros(Hides):
    """A matrix that begins as zeros, as adapters have one: a factor alone would not change it."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.init.zeros_(self.matrix)

    def forward(self, x: Tensor) -> Tensor:
        return x + x @ self.matrix


@pytest.mark.parametrize(("module", "word"), [(Hides, "forward's"), (Bends, "mixed"), (Zeros, "current")])
def test_a_users_own_module(module, word, monkeypatch):
    stage = first_stage()
    width = stage.model.boundary_shape(1)[-1]
    stage.layers[1] = nn.Sequential(module(width), stage.layers[1])
    own = list(stage.layers[1][0].parameters())
    stage.optimizer.parameters = (*stage.optimizer.parameters, *own)  # so that the guard knows it
    monkeypatch.setattr(stage.model, "layer_kind", lambda layer: f"kind {layer}")  # so that every layer is looked at
    before = own[0].detach().clone()
    found = audit_stage(stage)
    assert found[f"{module.__name__} matrix"] == word
    assert found["Linear weight"] == "current"
    assert torch.equal(own[0], before)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast"])
def test_it_leaves_no_trace(precision):
    stage = first_stage(precision=precision, dropout=0.1, schedule="pipedream")
    before, live = stage.state(), [p.detach().clone() for p in stage.optimizer.parameters]
    weights = stage.weights
    audit_stage(stage)
    after = stage.state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(p, old) for p, old in zip(stage.optimizer.parameters, live, strict=True))
    assert all(p.grad is None for p in stage.optimizer.parameters)
    assert stage.version == 0 and not stage.held and stage.weights is weights and not weights.copies
    assert all(not optimizer.state for optimizer in stage.optimizer.inner)
    assert stage.layers.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in stage.layers.modules())


def test_findings_that_differ_are_all_named():
    assert merge_findings([{"a": "current", "b": "not used"}, {"a": "forward's"}, {"a": "current"}]) == {
        "a": "current / forward's",
        "b": "not used",
    }


def test_doctor_prints_the_audit(tmp_path, capsys):
    assert main(["doctor", "--audit", "--json", str(tmp_path / "audit.json")]) == 0
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["schedule"] == "paci" and found["gap_bound"] == 1
    assert {precision: kinds["Linear weight"] for precision, kinds in found["version_used"].items()} == {
        "fp32": "current",
        "bf16": "current",
        "autocast": "forward's",
    }
    said = capsys.readouterr()
    assert "LayerNorm weight" in said.out + said.err
    assert main(["doctor", "--audit", "--precision", "fp8"]) == 2
    assert main(["doctor", "--schedule", "paci"]) == 2
    said = capsys.readouterr()
    assert "add --audit" in (said.out + said.err).lower()
