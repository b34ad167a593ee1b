"""SchedulePACI over torch's own PipelineStage, real ranks under torchrun: exact against replay, and as documented."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paci_lab import InputError, TrainSpec, replay
from paci_lab.accumulation import LocalAccumulation
from paci_lab.runtime.resolve import resolve

ROOT = Path(__file__).parent.parent

RANK = """
import json, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from paci_lab import TrainSpec
from paci_lab.data import open_data
from paci_lab.models import build_model
from paci_lab.optimizers import build_optimizer
from paci_lab.torch_pipelining import SchedulePACI

spec, per_step, folder = TrainSpec.load(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, stages = dist.get_rank(), spec.stages
model = build_model(spec.model, context=spec.context)
data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
first = sum(spec.partition[:rank])
layers = nn.Sequential(*(model.build_layer(i, spec.seed) for i in range(first, first + spec.partition[rank])))
optimizer = build_optimizer(spec.optimizer, list(layers.named_parameters()), learning_rate=spec.learning_rate,
                            weight_decay=spec.weight_decay, implementation=spec.optimizer_implementation)
tokens = data.train_tokens(0)
schedule = SchedulePACI(PipelineStage(layers, rank, stages, torch.device("cpu")), per_step, optimizer=optimizer,
    loss_fn=lambda output, target: model.loss(output, target) / (spec.window * tokens), scale_grads=False,
    window=spec.window)
losses = []
for start in range(0, spec.total_microbatches, per_step):
    batches = [data.train(m) for m in range(start, start + per_step)]
    here = []
    if rank == 0:
        schedule.step(torch.cat([x for x, _ in batches]))
    elif rank == stages - 1:
        schedule.step(target=torch.cat([y for _, y in batches]), losses=here)
    else:
        schedule.step()
    losses += [float(loss.detach()) * spec.window for loss in here]
    if rank == 0 and start == 0 and stages > 1:
        try:
            schedule.eval(torch.cat([x for x, _ in batches]))
        except RuntimeError as error:
            assert "flush()" in str(error)
        else:
            raise AssertionError("eval() did not refuse while micro-batches are in flight")
schedule.flush()
weights = {f"layers.{first + i}.{n}": p for i, layer in enumerate(layers) for n, p in layer.state_dict().items()}
torch.save({"losses": losses, "weights": weights, "version": schedule.accumulation.version}, folder / f"{rank}.pt")
dist.destroy_process_group()
"""


def torchrun(ranks: int, script: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run([*command, str(script), *arguments], capture_output=True, text=True, timeout=200, cwd=ROOT)


@pytest.mark.parametrize(("stages", "per_step", "window"), [(2, 4, 4), (3, 4, 2)])
def test_schedule_paci_equals_replay(tmp_path, stages, per_step, window):
    """Bit for bit, over calls of `step`: losses of every micro-batch, final weights, number of updates."""
    spec = resolve(
        TrainSpec(
            schedule="paci",
            stages=stages,
            window=window,
            microbatches=12,
            model="femto",
            device="cpu",
            learning_rate_schedule="constant",
            warmup=0.0,
        )
    )
    spec.save(tmp_path / "spec.toml")
    (tmp_path / "rank.py").write_text(RANK)
    done = torchrun(stages, tmp_path / "rank.py", str(tmp_path / "spec.toml"), str(per_step), str(tmp_path))
    assert done.returncode == 0, done.stderr
    expected = replay(spec)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(stages)]
    assert found[-1]["losses"] == pytest.approx(expected.losses, rel=1e-6)  # multiplied back, so not to the last bit
    for rank in found:
        assert rank["version"] == 12 // window
        for name, weight in rank["weights"].items():
            torch.testing.assert_close(weight, expected.parameters[name], rtol=0, atol=0)


def test_the_page_for_existing_code_runs_as_it_is(tmp_path):
    page = (ROOT / "docs" / "existing_code.md").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    done = torchrun(2, tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert "stage 0 made 120 updates" in done.stdout and "stage 1 made 120 updates" in done.stdout


def test_local_accumulation_counts_and_finishes():
    weight = torch.nn.Parameter(torch.zeros(1))
    local = LocalAccumulation(torch.optim.SGD([weight], lr=1.0), window=3)
    stepped = []
    for _ in range(4):
        weight.sum().backward()
        stepped.append(local.backward_done())
    assert stepped == [False, False, True, False]
    assert (local.version, local.pending, weight.item()) == (1, 1, -3.0)
    assert local.finish() and not local.finish()
    assert (local.version, weight.item()) == (2, -4.0)


def test_local_accumulation_leaves_a_forward_before_the_step_usable():
    linear = torch.nn.Linear(2, 2)
    local = LocalAccumulation(torch.optim.AdamW(linear.parameters(), lr=0.1), window=1)
    x = torch.ones(1, 2, requires_grad=True)
    loss = linear(x).sum()  # its backward comes after an update
    linear(x.detach()).sum().backward()
    local.backward_done()
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, linear.weight.detach().sum(0, keepdim=True), rtol=0, atol=0)


@pytest.mark.parametrize("window", [0, -1, 1.5, True])
def test_a_wrong_window_is_refused(window):
    with pytest.raises(InputError, match="window"):
        LocalAccumulation(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), window=window)
