"""Optimizers: they train, they split, they refuse; the learning rate counts tokens."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from paci_lab.data import open_data
from paci_lab.errors import InputError
from paci_lab.models import build_model
from paci_lab.optimizers import OPTIMIZERS, build_optimizer, learning_rate_factor


@pytest.fixture(autouse=True)
def _one_thread():
    had = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(had)


def _femto():
    model = build_model("femto")
    return model, nn.Sequential(*(model.build_layer(i, 0) for i in range(model.layers)))


def _train(name, steps=12, implementation="foreach", learning_rate=3e-3, **given):
    model, module = _femto()
    data = open_data("stdlib", context=model.context, microbatch_size=4, seed=0)
    optimizer = build_optimizer(
        name, list(module.named_parameters()), learning_rate=learning_rate, implementation=implementation, **given
    )
    losses = []
    for i in range(steps):
        inputs, targets = data.train(i)
        optimizer.zero_grad()
        loss = model.loss(module(inputs), targets) / data.train_tokens(i)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, module


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loss_falls(name):
    losses, _ = _train(name, learning_rate=0.1 if name == "sgd" else 3e-3)
    assert losses[0] == pytest.approx(5.55, abs=0.1)  # ln 256: nothing learnt yet
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_implementations_agree(name):
    kinds = ("foreach", "forloop") if name == "nadam" else ("foreach", "forloop", "fused")
    runs = [_train(name, steps=3, implementation=kind)[0] for kind in kinds]
    for run in runs[1:]:
        assert run == pytest.approx(runs[0], rel=1e-4)


def test_fused_and_foreach_reach_torch():
    _, module = _femto()
    named = list(module.named_parameters())
    for kind in ("foreach", "forloop", "fused"):
        group = build_optimizer("adamw", named, learning_rate=1e-3, implementation=kind).inner[0].param_groups[0]
        assert (group["foreach"], group["fused"]) == (kind == "foreach", kind == "fused")


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest():
    _, module = _femto()
    named = dict(module.named_parameters())
    optimizer = build_optimizer("muon", list(named.items()), learning_rate=1e-3, weight_decay=0.1)
    muon, adamw = optimizer.inner
    assert isinstance(muon, torch.optim.Muon) and isinstance(adamw, torch.optim.AdamW)
    assert muon.param_groups[0]["adjust_lr_fn"] == "match_rms_adamw"
    names = {id(p): name for name, p in named.items()}
    taken = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    left = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
    inner = ("query_key_value", "attention_out", "mlp_up", "mlp_down")
    assert taken == {f"{block}.{matrix}.weight" for block in range(1, 5) for matrix in inner}
    assert left == set(named) - taken and {"0.tokens.weight", "0.positions", "5.logits.weight"} <= left


def test_muon_on_a_stage_without_hidden_matrices():
    model = build_model("femto")
    head = model.build_layer(5, 0)
    inner = build_optimizer("muon", list(head.named_parameters()), learning_rate=1e-3).inner
    assert [type(optimizer) for optimizer in inner] == [torch.optim.AdamW]


def test_weight_decay_spares_vectors():
    linear = nn.Linear(2, 2)
    nn.init.ones_(linear.bias)
    before = copy.deepcopy(linear)
    optimizer = build_optimizer("adamw", list(linear.named_parameters()), learning_rate=0.1, weight_decay=0.5)
    for p in optimizer.parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(linear.bias, before.bias)
    torch.testing.assert_close(linear.weight, before.weight * (1 - 0.1 * 0.5))


def test_nadam_defaults_bear_delay_and_options_arrive():
    linear = nn.Linear(2, 2)
    named = list(linear.named_parameters())
    group = build_optimizer("nadam", named, learning_rate=1e-3).inner[0].param_groups[0]
    assert group["betas"] == (0.95, 0.95) and group["decoupled_weight_decay"]
    group = build_optimizer("adamw", named, learning_rate=1e-3, options={"betas": [0.8, 0.9]}).inner[0].param_groups[0]
    assert group["betas"] == (0.8, 0.9) and group["eps"] == 1e-8
    group = build_optimizer("sgd", named, learning_rate=1e-3, options={"nesterov": True}).inner[0].param_groups[0]
    assert group["momentum"] == 0.9 and group["nesterov"]


def test_learning_rate_scales_from_the_initial_one():
    _, module = _femto()
    optimizer = build_optimizer("muon", list(module.named_parameters()), learning_rate=0.2)
    for factor in (0.5, 0.25):
        optimizer.scale_learning_rate(factor)
        rates = {group["lr"] for inner in optimizer.inner for group in inner.param_groups}
        assert rates == {0.2 * factor}


def test_zero_grad_drops_gradients():
    linear = nn.Linear(2, 2)
    optimizer = build_optimizer("sgd", list(linear.named_parameters()), learning_rate=0.1)
    linear(torch.ones(2)).sum().backward()
    optimizer.zero_grad()
    assert linear.weight.grad is None and linear.bias.grad is None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_can_be_carried_over(name):
    _, module = _femto()
    other = copy.deepcopy(module)
    model = build_model("femto")
    for i in range(model.layers):  # deepcopy drops Muon's marks, a built layer has them
        other[i] = model.build_layer(i, 0)

    def make(net):
        return build_optimizer(name, list(net.named_parameters()), learning_rate=1e-2)

    def step(net, optimizer, seed):
        generator = torch.Generator().manual_seed(seed)
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()

    first, second = make(module), make(other)
    step(module, first, 1)
    other.load_state_dict(module.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # torch shares the moments otherwise
    step(module, first, 2)
    step(other, second, 2)
    assert all(map(torch.equal, module.parameters(), other.parameters()))


def test_own_optimizer(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Signs(torch.optim.SGD):\n"
        "    def __init__(self, params, lr, scale=1.0, weight_decay=0.0):\n"
        "        super().__init__(params, lr=lr * scale, weight_decay=weight_decay)\n"
        "def thing(params, lr): return 3\n"
    )
    named = list(nn.Linear(2, 2).named_parameters())
    own = f"{tmp_path}/mine.py:Signs"
    made = build_optimizer(own, named, learning_rate=0.1, weight_decay=0.3, options={"scale": 2})
    assert made.inner[0].param_groups[0]["lr"] == 0.2 and made.inner[0].param_groups[0]["weight_decay"] == 0.3
    assert isinstance(build_optimizer("torch.optim:Adagrad", named, learning_rate=0.1).inner[0], torch.optim.Adagrad)
    for name, options, words in [
        (own, {"speed": 1}, ["speed", "**options"]),
        (f"{tmp_path}/mine.py:thing", {}, ["makes int"]),
        ("torch.optim:Nothing", {}, ["no Nothing"]),
    ]:
        with pytest.raises(InputError) as refusal:
            build_optimizer(name, named, learning_rate=0.1, options=options)
        assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_a_stage_without_parameters():
    optimizer = build_optimizer("adamw", [], learning_rate=0.1)
    optimizer.step()
    assert optimizer.parameters == () and optimizer.inner == []


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("adam", {}, ["optimizer = adam", "adamw, nadam, muon, sgd"]),
        ("adamw", {"options": {"momentum": 0.9}}, ["adamw option = momentum", "betas, eps"]),
        ("adamw", {"options": {"betas": [0.9, 1.0]}}, ["betas = [0.9, 1.0]", "two numbers"]),
        ("adamw", {"options": {"betas": 0.9}}, ["two numbers"]),
        ("adamw", {"options": {"eps": 0}}, ["eps = 0"]),
        ("sgd", {"options": {"momentum": 1}}, ["momentum = 1"]),
        ("sgd", {"options": {"momentum": 0, "nesterov": True}}, ["above 0 with nesterov"]),
        ("nadam", {"options": {"momentum_decay": -1}}, ["momentum_decay = -1"]),
        ("muon", {"options": {"ns_steps": 0}}, ["ns_steps = 0"]),
        ("muon", {"options": {"nesterov": "yes"}}, ["true or false"]),
        ("nadam", {"implementation": "fused"}, ["foreach, forloop for nadam"]),
        ("adamw", {"implementation": "fast"}, ["foreach, forloop, fused"]),
        ("adamw", {"learning_rate": 0}, ["learning_rate = 0"]),
        ("adamw", {"learning_rate": float("nan")}, ["learning_rate = nan"]),
        ("adamw", {"weight_decay": -0.1}, ["weight_decay = -0.1"]),
    ],
)
def test_refusals(name, given, words):
    named = list(nn.Linear(2, 2).named_parameters())
    with pytest.raises(InputError) as refusal:
        build_optimizer(name, named, **{"learning_rate": 0.1, **given})
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_learning_rate_counts_tokens():
    assert learning_rate_factor(0, 1000) == 0.0
    assert learning_rate_factor(5, 1000) == 0.5
    assert learning_rate_factor(10, 1000) == 1.0
    assert learning_rate_factor(505, 1000) == pytest.approx(0.55)
    assert learning_rate_factor(1000, 1000) == learning_rate_factor(5000, 1000) == pytest.approx(0.1)
    assert learning_rate_factor(0, 1000, warmup=0.0) == 1.0
    assert learning_rate_factor(900, 1000, kind="constant", warmup=0.5) == 1.0
    assert learning_rate_factor(250, 1000, kind="constant", warmup=0.5) == 0.5
    assert learning_rate_factor(1000, 1000, warmup=1.0) == 1.0
    factors = [learning_rate_factor(tokens, 1000) for tokens in range(10, 1001)]
    assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize("given", [{"kind": "step"}, {"total_tokens": 0}, {"warmup": 1.1}, {"final": -0.1}])
def test_learning_rate_refusals(given):
    with pytest.raises(InputError):
        learning_rate_factor(1, **{"total_tokens": 10, **given})
