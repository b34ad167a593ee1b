"""Models: sizes, cutting anywhere, weights that do not depend on the cut."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

import paci_lab.models
from paci_lab.errors import InputError
from paci_lab.models import MODELS, build_model, is_hidden


def _chain(model, seed=0):
    return [model.build_layer(i, seed) for i in range(model.layers)]


def _run(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def _tokens(model, rows=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.vocabulary, (rows, model.context), generator=generator)


def test_gpt2_medium_has_the_papers_size():
    model = build_model("gpt2-medium")
    assert (model.layers, model.context, model.vocabulary) == (26, 1024, 50257)
    assert sum(model.parameters_per_layer()) == 406_286_336
    with torch.device("meta"):
        block, head = model.build_layer(1, 0), model.build_layer(25, 0)
        assert next(block.parameters()).device.type == "meta"
        logits = head(block(torch.empty(model.boundary_shape(2))))
    assert logits.shape == (2, 1024, 50257)


def test_every_named_model_can_be_described():
    for name, line in MODELS.items():
        model = build_model(name)
        assert line and len(model.parameters_per_layer()) == model.layers
    assert [build_model("pico").layer_name(i) for i in (0, 1, 8, 9)] == ["embedding", "block 0", "block 7", "head"]


def test_written_out_sizes_and_overrides():
    model = build_model("gpt:blocks=2, width=8,heads=2,context=4", vocabulary=11)
    assert (model.layers, model.vocabulary, model.boundary_shape(3)) == (4, 11, (3, 4, 8))
    assert build_model("pico", context=16).boundary_shape(1) == (1, 16, 64)
    assert _run(_chain(model), _tokens(model)).shape == (2, 4, 11)


def test_weights_depend_on_seed_and_layer_alone():
    model = build_model("femto")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    whole = _chain(model)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    alone = model.build_layer(3, 0)  # a stage that owns only this layer, with another global random state
    for ours, theirs in zip(alone.parameters(), whole[3].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(whole[1].mlp_up.weight, whole[2].mlp_up.weight)
    assert not torch.equal(alone.mlp_up.weight, model.build_layer(3, 1).mlp_up.weight)


def test_initial_weights_are_gpt2s():
    block = build_model("micro").build_layer(1, 0)
    assert block.mlp_up.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.mlp_down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)  # sqrt(2 * 8 blocks) = 4
    assert not block.mlp_up.bias.any()


@pytest.mark.parametrize("cuts", [[1], [3], [5], [1, 2, 3, 4, 5], [2, 4]])
def test_stages_cut_anywhere_equal_the_whole_bit_for_bit(cuts):
    model = build_model("femto")
    tokens, targets = _tokens(model), _tokens(model).roll(1, 0)
    whole = _chain(model)
    loss = model.loss(_run(whole, tokens), targets)
    loss.backward()

    stages = [_chain(model)[a:b] for a, b in zip([0, *cuts], [*cuts, model.layers], strict=True)]
    x, ends = tokens, []
    for stage in stages:
        x = x.detach().requires_grad_(x.is_floating_point())
        out = _run(stage, x)
        ends.append((x, out))
        assert out.is_contiguous() and (stage is stages[-1] or out.shape == model.boundary_shape(2))
        x = out
    cut_loss = model.loss(x, targets)
    assert torch.equal(cut_loss, loss)
    cut_loss.backward()
    for (received, _), (_, sent) in zip(ends[:0:-1], ends[-2::-1], strict=True):
        sent.backward(received.grad)
    ours = [p.grad for stage in stages for layer in stage for p in layer.parameters()]
    theirs = [p.grad for layer in whole for p in layer.parameters()]
    assert len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def test_loss_sums_and_ignores():
    model = build_model("femto")
    logits, targets = torch.zeros(1, 32, 256), torch.zeros(1, 32, dtype=torch.int64)
    targets[0, 10:] = -100
    loss = model.loss(logits.bfloat16(), targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(10 * torch.tensor(256.0).log().item(), rel=1e-5)


def test_attention_is_causal():
    model = build_model("femto")
    layers, tokens = _chain(model), _tokens(model, rows=1)
    changed = tokens.clone()
    changed[0, 20:] = (changed[0, 20:] + 1) % 256
    before, after = _run(layers, tokens), _run(layers, changed)
    assert torch.equal(before[:, :20], after[:, :20]) and not torch.equal(before[:, 20:], after[:, 20:])


def test_dropout_follows_the_seed_and_stops_in_evaluation():
    model = build_model("femto", dropout=0.5)
    block, x = model.build_layer(1, 0), torch.randn(model.boundary_shape(2))

    def seeded(seed):
        torch.manual_seed(seed)
        return block(x)

    assert torch.equal(seeded(1), seeded(1)) and not torch.equal(seeded(1), seeded(2))
    block.eval()
    assert torch.equal(seeded(1), seeded(2))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_activation_bytes_are_what_autograd_saves(dropout):
    model = build_model("femto", dropout=dropout)
    for i in (0, 1, model.layers - 1):
        layer, tokens = model.build_layer(i, 0), _tokens(model)
        weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}
        saved = {}

        def keep(tensor, weights=weights, saved=saved):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = (storage.nbytes(), tensor)
            return tensor

        x = tokens if i == 0 else torch.randn(model.boundary_shape(2), requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = layer(x)
            if i == model.layers - 1:
                model.loss(out, tokens)
        held = sum(size for size, _ in saved.values())
        assert model.activation_bytes_per_microbatch(i, 2) == pytest.approx(held, rel=0.01)


def test_hidden_matrices_are_marked():
    model = build_model("femto")
    hidden = [[name for name, p in layer.named_parameters() if is_hidden(p)] for layer in _chain(model)]
    expected = ["query_key_value.weight", "attention_out.weight", "mlp_up.weight", "mlp_down.weight"]
    assert hidden == [[], expected, expected, expected, expected, []]


def test_a_model_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "mlp.py").write_text(
        textwrap.dedent("""
        from paci_lab.models.base import Model
        FAMILY = "mlp"
        MODELS = {"tiny-mlp": "for a test"}
        def build(name, *, vocabulary, context, dropout):
            return name, vocabulary
        """)
    )
    monkeypatch.setattr(paci_lab.models, "__path__", [*paci_lab.models.__path__, str(tmp_path)])
    families = paci_lab.models._families()
    monkeypatch.setattr(paci_lab.models, "_FAMILIES", families)
    assert set(families) == {"gpt", "mlp"}
    assert build_model("tiny-mlp", vocabulary=7) == ("tiny-mlp", 7)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("gpt3", {}, ["gpt3", "pico", "gpt2-medium"]),
        ("gpt:blocks=2,width=8,heads=2", {}, ["Add context"]),
        ("gpt:blocks=2,width=8,heads=2,context=x", {}, ["context = x", "whole number"]),
        ("gpt:blocks=2,width=8,heads=2,context", {}, ["context = nothing"]),
        ("gpt:blocks=2,blocks=3,width=8,heads=2,context=4", {}, ["once"]),
        ("gpt:depth=2", {}, ["blocks, width, heads, context"]),
        ("gpt:blocks=0,width=8,heads=2,context=4", {}, ["blocks = 0"]),
        ("gpt:blocks=1,width=9,heads=2,context=4", {}, ["width = 9", "multiple of heads = 2"]),
        ("pico", {"vocabulary": 1}, ["vocabulary = 1"]),
        ("pico", {"context": 0}, ["context = 0"]),
        ("pico", {"dropout": 1.0}, ["dropout = 1.0"]),
    ],
)
def test_refusals_name_value_and_fix(name, given, words):
    with pytest.raises(InputError) as refusal:
        build_model(name, **given)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_no_such_layer():
    with pytest.raises(IndexError, match="layer 6 of femto"):
        build_model("femto").build_layer(6, 0)
    assert isinstance(build_model("femto").build_layer(5, 0), nn.Module)
