"""fp32, bf16 with fp32 masters, autocast: exactness, masters under every optimizer, copies of the weights, messages."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from engine_helpers import assert_run_is_replay, run_to_end, split_of, tiny
from torch import nn

import paci_lab
from paci_lab.data import open_data
from paci_lab.dry_run import dry_run
from paci_lab.lessons import Held
from paci_lab.models import build_model
from paci_lab.optimizers import build_optimizer
from paci_lab.precision import HIDDEN_STASH, MasterWeights, master_of, to_bf16
from paci_lab.runtime.guard import guarded_step
from paci_lab.runtime.p2p import Form, Outbox, agree_on_messages
from paci_lab.runtime.stage import Stage

pytestmark = pytest.mark.usefixtures("one_thread")

OWN = '''
"""Plain gradient descent on whatever it is given."""
import torch


class Descent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                assert p.dtype == p.grad.dtype == torch.float32
                p.sub_(p.grad, alpha=group["lr"])
'''


def stages_of(spec: paci_lab.TrainSpec) -> list[Stage]:
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    schedule = spec.build_schedule()
    return [Stage(spec, model, data, schedule, s, torch.device("cpu")) for s in range(spec.stages)]


def by_hand(spec: paci_lab.TrainSpec) -> dict[str, torch.Tensor]:
    """Masters after plain training in bfloat16, written out: two sets of weights and a sum of gradients in float32."""
    model = build_model(spec.model, context=spec.context)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    layers = nn.Sequential(*(model.build_layer(layer, spec.seed) for layer in range(model.layers)))
    masters = {name: nn.Parameter(p.detach().clone()) for name, p in layers.named_parameters()}
    for name, p in layers.named_parameters():
        masters[name].paci_hidden = getattr(p, "paci_hidden", False)
    layers.to(torch.bfloat16)
    optimizer = build_optimizer(
        spec.optimizer, list(masters.items()), learning_rate=spec.learning_rate, weight_decay=spec.weight_decay
    )
    for first in range(0, spec.total_microbatches, spec.window):
        window = range(first, first + spec.window)
        tokens = sum(map(data.train_tokens, window))
        for k in window:
            inputs, targets = data.train(k)
            layers.zero_grad()
            (model.loss(layers(inputs), targets) / tokens).backward()
            for name, p in layers.named_parameters():
                grad = p.grad.float()
                masters[name].grad = grad if masters[name].grad is None else masters[name].grad + grad
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for name, p in layers.named_parameters():
                p.copy_(masters[name])
    return {f"layers.{name}": master.detach() for name, master in masters.items()}


@pytest.mark.parametrize("optimizer", ["adamw", "nadam", "muon", "sgd", "own"])
def test_bf16_is_plain_training_with_masters(optimizer, tmp_path):
    weight_decay = 0.1
    if optimizer == "own":
        (tmp_path / "own.py").write_text(OWN)
        optimizer, weight_decay = f"{tmp_path / 'own.py'}:Descent", 0.0
    spec = tiny(
        stages=1, schedule="paci", optimizer=optimizer, weight_decay=weight_decay, precision="bf16", warmup=0,
        learning_rate_schedule="constant", updates=3,
    )  # fmt: skip
    found, expected = paci_lab.replay(spec).parameters, by_hand(spec)
    assert found.keys() == expected.keys()
    assert not [name for name in found if not torch.equal(found[name], expected[name])]
    # The weights that are saved are the masters: in float32, with digits that bfloat16 has not.
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in found.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16", "recompute": True, "clip_norm": 0.5, "clip": "lagged", "dropout": 0.1},
        pytest.param({"precision": "autocast"}, marks=pytest.mark.slow),
    ],
    ids=["bf16", "autocast"],
)
def test_a_real_run_is_its_replay(changes, tmp_path):
    spec = tiny(schedule="paci", stages=3, partition=[2, 2, 2], window=2, evaluate_every=4, **changes)
    run = run_to_end(spec, tmp_path / "run")
    assert_run_is_replay(run)
    result = run.result()
    assert result["precision"] == spec.precision
    used = result["version_used"]
    assert used["LayerNorm weight"] == "current" and used["Linear bias"] == "not used"
    if spec.precision == "bf16":
        assert used["Linear weight"] == "current"
        assert result["weight_copies"] == [1, 1, 1]
        assert result["clipped_updates"] == [4, 4, 4]
    else:
        assert used["Linear weight"] == "forward's"
        assert HIDDEN_STASH in result["precision_label"]
        # Each micro-batch in flight has its own copy of what is multiplied.
        for stage, found in zip(stages_of(run.spec), result["weight_copies"], strict=True):
            weights = [(type(m), p.numel()) for m in stage.layers.modules() for p in m.parameters(recurse=False)]
            cast = sum(
                m.weight.numel() for m in stage.layers.modules() if isinstance(m, nn.Linear) and m.weight.ndim == 2
            )
            held = spec.build_schedule().in_flight(stage.stage)
            assert found == pytest.approx(1 + held * cast / sum(numel for _, numel in weights))


def test_only_the_rounding_is_guarded():
    layer = nn.Linear(4, 4)
    named = list(layer.named_parameters())
    of_masters = build_optimizer("sgd", master_of(named), learning_rate=0.1)
    to_bf16(layer)
    optimizer = MasterWeights([p for _, p in named], of_masters)
    layer(torch.randn(2, 4).bfloat16()).float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    before = [p._version for p in optimizer.parameters], [m._version for m in optimizer.masters]
    guarded_step(optimizer.step, optimizer.parameters)
    assert [p._version for p in optimizer.parameters] == before[0]
    assert all(now > then for now, then in zip([m._version for m in optimizer.masters], before[1], strict=True))
    assert torch.equal(layer.weight, optimizer.masters[0].bfloat16())


def test_masters_are_in_the_optimizers_state():
    def make() -> tuple[nn.Linear, MasterWeights]:
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        named = list(layer.named_parameters())
        of_masters = build_optimizer("adamw", master_of(named), learning_rate=1e-4)
        to_bf16(layer)
        return layer, MasterWeights([p for _, p in named], of_masters)

    def step(layer: nn.Linear, optimizer: MasterWeights, seed: int) -> None:
        optimizer.zero_grad()
        layer(torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)).bfloat16()).float().sum().backward()
        optimizer.step()

    layer, optimizer = make()
    step(layer, optimizer, 1)
    other, restored = make()
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # as in torch, a state shares its tensors
    assert torch.equal(other.weight, layer.weight)
    step(layer, optimizer, 2)
    step(other, restored, 2)
    assert torch.equal(restored.masters[0], optimizer.masters[0])


# -- messages ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_note_comes_back_from_its_buffer(dtype):
    form = Form((3, 5), dtype, notes=True)  # an odd count: the note does not lie where float32 may
    message, note = torch.randn(3, 5).to(dtype), torch.tensor([1.25e-3, 2.0])
    buffer = form.pack(message, note)
    assert buffer.numel() == form.numbers == 15 + 8 // dtype.itemsize
    found, said = form.unpack(buffer)
    assert torch.equal(found, message) and torch.equal(said, note)
    assert Form((3, 5), dtype).numbers == 15


def test_another_type_is_refused():
    outbox = Outbox(0, 0, Form((2, 2), torch.bfloat16), 1, staged=False, group=None)
    with pytest.raises(ValueError, match=r"float32, agreed were \(2, 2\) and torch.bfloat16"):
        outbox.send(torch.zeros(2, 2))

    class Store(dict):
        def set(self, key: str, value: str) -> None:
            self[key] = value.encode()

    schedule, store = tiny(stages=2, schedule="paci").build_schedule(), Store()
    agree_on_messages({0: torch.zeros(2, 2)}, Form((2, 2)), store, schedule, 0)
    agree_on_messages({1: torch.zeros(2, 2)}, Form((2, 2)), store, schedule, 1)
    with pytest.raises(ValueError, match=r"in float32, stage 1 expects \(2, 2\) in bfloat16"):
        agree_on_messages({1: torch.zeros(2, 2)}, Form((2, 2), torch.bfloat16), store, schedule, 1)


def test_an_unknown_precision_is_refused():
    with pytest.raises(paci_lab.InputError, match="fp32 | bf16 | autocast"):
        tiny(precision="fp16")


# -- what it takes ----------------------------------------------------------------------------------------------------
def test_dry_run_counts_what_a_precision_holds():
    base = tiny(stages=2, schedule="paci", partition=split_of(2), microbatch_size=2)
    plain, half, cast = (dry_run(base.replace(precision=p)).stages[1] for p in ("fp32", "bf16", "autocast"))
    numbers = plain.parameters
    assert (plain.weights, plain.gradients, plain.optimizer) == (4 * numbers, 4 * numbers, 8 * numbers)
    assert (half.weights, half.gradients, half.optimizer) == (2 * numbers, 4 * numbers, 12 * numbers)
    stage = stages_of(base.replace(partition=split_of(2)))[1]
    multiplied = sum(m.weight.numel() for m in stage.layers.modules() if isinstance(m, nn.Linear))
    assert cast.weights == 4 * numbers + 2 * multiplied  # one micro-batch in flight on the last stage
    assert half.activation < cast.activation < plain.activation

    recomputed = dry_run(base.replace(recompute=True)).stages[0]
    assert recomputed.held == 2 and recomputed.activation == 8 * math.prod((2, 16))  # tokens
    assert recomputed.rebuilt == dry_run(base).stages[0].activation


def test_a_bf16_block_holds_half_as_estimated():
    model = build_model("femto")
    block = model.build_layer(1, 0).to(torch.bfloat16)
    with Held(block) as held:
        output = block(torch.randn(model.boundary_shape(2)).bfloat16().requires_grad_())
    assert output.dtype == torch.bfloat16
    assert held.now == pytest.approx(0.5 * model.activation_bytes_per_microbatch(1, 2), rel=0.02)
