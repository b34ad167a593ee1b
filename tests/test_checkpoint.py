"""Checkpoints: drained points of a schedule, resumed bit for bit, cut in other places, and never half of one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from engine_helpers import (
    PATIENCE_S,
    assert_run_is_replay,
    assert_trace_is_simulated,
    order_of,
    run_to_end,
    split_of,
    tiny,
)
from safetensors.torch import load_file, save_file
from torch import nn

import paci_lab
from paci_lab import Costs, InputError, simulate
from paci_lab.cli import main
from paci_lab.models import build_model, load_weights
from paci_lab.optimizers import build_optimizer
from paci_lab.runtime.checkpoint import Checkpoint, newest, open_checkpoint
from paci_lab.runtime.resume import check_corpus
from paci_lab.runtime.state import optimizer_state, restore_optimizer
from paci_lab.schedules import build_schedule, drained, validate
from paci_lab.show.bars import bar_arrays
from paci_lab.show.why import why_idle

pytestmark = pytest.mark.usefixtures("one_thread")

SAVED = {"updates": 6, "window": 2, "checkpoint_every": 2, "keep_checkpoints": 9, "dropout": 0.2}
"""Checkpoints after updates 1, 3 and 5."""

OWN_OPTIMIZERS = '''
import torch


class Counting(torch.optim.Optimizer):
    """Keeps a tensor, a float and an int per parameter, and a float per group."""

    def __init__(self, params, lr, keep="tensor"):
        super().__init__(params, {"lr": lr, "trust": 1.0, "keep": keep})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["trust"] *= 0.9
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["decay"] = state.get("decay", 1.0) * 0.97
                state["mean"] = state.get("mean", torch.zeros_like(p)).mul(0.9).add(p.grad)
                if group["keep"] == "object":
                    state["history"] = [p.grad.norm()]
                p -= group["lr"] * group["trust"] * state["decay"] / state["count"] * state["mean"]
'''


@pytest.fixture(scope="module")
def own_optimizer(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN_OPTIMIZERS)
    return f"{path}:Counting"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> paci_lab.Run:
    """A run of PACI with dropout that made three checkpoints."""
    spec = tiny(schedule="paci", stages=3, partition=[1, 2, 3], **SAVED)
    return run_to_end(spec, tmp_path_factory.mktemp("saved") / "run")


def copy_of(run: paci_lab.Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run.path, tmp_path / "copy"))


def assert_same_tensors(given: dict, expected: dict) -> None:
    assert given.keys() == expected.keys()
    assert not [name for name in given if not torch.equal(given[name], expected[name])]


# -- a schedule that is drained ------------------------------


@pytest.mark.parametrize("name", ["paci", "pipedream", "pipedream-2bw", "1f1b", "gpipe", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("microbatches, every, start", [(24, 2, 0), (23, 3, 0), (23, 2, 4), (3, 1, 0), (24, 9, 5)])
def test_a_drained_schedule_is_its_segments_one_after_the_other(name, microbatches, every, start):
    inner = build_schedule(name, stages=3, microbatches=microbatches, window=3)
    if start >= inner.updates:
        pytest.skip("nothing is left behind this start")
    schedule = drained(drained(inner, every=every), start=start)
    validate(schedule), validate(schedule.excerpt())
    costs = Costs(forward_ms=1, backward_ms=2 if inner.flushes else 1)
    trace = simulate(schedule, costs)
    assert trace.in_flight_peak() == [schedule.in_flight(stage) for stage in range(3)]
    assert trace.updates() == [inner.updates - start] * 3
    if not name.startswith("zb"):  # whose formula is of other costs
        assert trace.bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction(), abs=1e-9)
    if inner.flushes:
        whole = [[op for op in inner.ops(rank) if _update_of(op) >= start] for rank in range(3)]
        assert [list(schedule.ops(rank)) for rank in range(3)] == whole
    elif inner.updates > start + every:
        assert trace.bubble_fraction() > simulate(drained(inner, start=start), costs).bubble_fraction()


def _update_of(op) -> int:
    return op.microbatch if op.kind == "U" else op.microbatch // 3


def test_nothing_is_in_flight_between_segments():
    """Every forward of a segment comes after every update of the one before, on every stage."""
    schedule = drained(build_schedule("paci", stages=4, microbatches=24, window=2), every=3)
    for rank in range(4):
        segments = [(op.microbatch if op.kind == "U" else op.microbatch // 2) // 3 for op in schedule.ops(rank)]
        assert segments == sorted(segments) and set(segments) == {0, 1, 2, 3}


# -- a run that goes on from a checkpoint ------------------------------


def test_a_run_with_checkpoints_is_its_replay_and_charges_them(saved):
    assert_run_is_replay(saved)
    events = [event for event in saved.trace() if event.op == "checkpoint"]
    assert sorted((e.stage, e.update) for e in events) == [(s, u) for s in range(3) for u in (1, 3, 5)]
    undrained = paci_lab.replay(saved.spec.replace(checkpoint_every=0))
    assert undrained.losses != paci_lab.replay(saved.spec).losses, "draining changes an asynchronous trajectory"
    assert sorted(p.name for p in (saved.path / "checkpoints").iterdir()) == [f"update-{u:06d}" for u in (1, 3, 5)]


def assert_goes_on(spec: paci_lab.TrainSpec, run: paci_lab.Run, path: Path, update: int) -> paci_lab.Run:
    """Resume after `update`: the same losses, weights, rates and trace as the run that went on."""
    began = run.path / "checkpoints" / f"update-{update:06d}"
    again = paci_lab.launch(spec, path, resume=began)
    result = again.wait(PATIENCE_S)
    first = (update + 1) * run.spec.window
    assert again.dir.losses() == run.dir.losses()[first * run.spec.replicas :]
    assert_same_tensors(again.dir.parameters(), run.dir.parameters())
    assert [(r["update"], r["tokens"], r["learning_rate"], r["grad_norm"]) for r in again.dir.metrics()] == [
        (r["update"], r["tokens"], r["learning_rate"], r["grad_norm"]) for r in run.dir.metrics()[update + 1 :]
    ]
    expected = simulate(drained(run.spec.build_schedule(), start=update + 1))
    assert order_of(again.trace()) == order_of(expected)
    assert [
        e.version for e in again.trace().of_kind("U")
    ] and again.trace().version_gap_max() == expected.version_gap_max()
    assert (
        result["resumed_from"]["update"] == update
        and result["updates"] == run.spec.build_schedule().updates - update - 1
    )
    assert result["tokens"] == run.result()["tokens"]
    return again


def test_paci_goes_on_bit_for_bit(saved, tmp_path, capsys):
    """From the spec as it was first written: its partition is taken from the checkpoint."""
    again = assert_goes_on(saved.spec.replace(partition="auto"), saved, tmp_path / "again", 1)
    assert again.spec == saved.spec
    assert main(["show", str(again.path)]) == 0
    assert "was resumed from ../" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize(
    "schedule, optimizer, every",
    [
        ("pipedream", "muon", 2),
        ("pipedream-2bw", "nadam", 3),
        ("1f1b", "muon", 2),
        ("zb-h2", "adamw", 2),
    ],
)
@pytest.mark.slow
def test_other_schedules_and_optimizers_go_on_bit_for_bit(tmp_path, schedule, optimizer, every):
    changes = SAVED | {"checkpoint_every": every, "window": 3}
    run = run_to_end(tiny(schedule=schedule, stages=3, optimizer=optimizer, **changes), tmp_path / "run")
    assert_run_is_replay(run)
    assert_goes_on(run.spec, run, tmp_path / "again", every - 1)


@pytest.mark.slow
def test_several_stages_on_a_rank_go_on_bit_for_bit(tmp_path):
    spec = tiny(schedule="interleaved", stages=4, **SAVED)
    run = run_to_end(spec, tmp_path / "run")
    assert_run_is_replay(run)
    assert_goes_on(run.spec, run, tmp_path / "again", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16", "clip_norm": 0.5, "clip": "lagged"},
        {"replicas": 2, "precision": "bf16", "shard_optimizer": True},
        {"replicas": 2, "schedule": "pipedream", "optimizer": "muon", "shard_optimizer": True},
    ],
    ids=["masters, notes of clipping", "masters of two replicas", "kept versions, Muon of two replicas"],
)
def test_what_other_parts_remember_goes_on_too(tmp_path, changes):
    run = run_to_end(tiny(stages=2, partition=[2, 4], **SAVED, **changes), tmp_path / "run")
    again = assert_goes_on(run.spec, run, tmp_path / "again", 3)
    assert paci_lab.replay(run.spec).losses == run.dir.losses()
    whole = Checkpoint.read(run.path / "checkpoints" / "update-000003")
    assert len(sum(whole.files, ())) == 2 * (2 if run.spec.shard_optimizer else 1)
    assert again.result()["precision"] == run.spec.precision


@pytest.mark.parametrize("changes", [{"stages": 4, "partition": split_of(4)}, {"schedule": "gpipe", "stages": 1}])
def test_a_flush_goes_on_with_the_same_numbers_on_any_stages(saved, changes):
    spec, begin = saved.spec.replace(schedule="1f1b"), saved.path / "checkpoints" / "update-000001"
    expected = paci_lab.replay(spec, resume=begin)
    exact = paci_lab.replay(spec.replace(**{"partition": "auto", **changes}), resume=begin)
    assert exact.losses == expected.losses != saved.dir.losses()[4:]
    assert_same_tensors(exact.parameters, expected.parameters)


def test_another_cut_of_paci_takes_over_every_layer_as_it_was(saved, tmp_path):
    """Real ranks on two stages go on as replay does; what they begin with is what the three stages saved."""
    spec = saved.spec.replace(stages=2, partition=[4, 2], microbatches=14, keep_checkpoints=1)
    run = paci_lab.launch(spec, tmp_path / "run", resume=saved.path / "checkpoints" / "update-000003")
    run.wait(PATIENCE_S)
    exact = paci_lab.replay(spec, resume=saved.path / "checkpoints" / "update-000003")
    assert run.dir.losses() == exact.losses and len(exact.losses) == 6
    assert_same_tensors(run.dir.parameters(), exact.parameters)
    (kept,) = (run.path / "checkpoints").iterdir()
    checkpoint = Checkpoint.read(kept)
    assert checkpoint.update == 6, "after updates 5 and 6, and one is kept"
    assert checkpoint.spec.partition == [4, 2] and checkpoint.time_s > run.dir.resumed()["time_s"] > 0
    before, _ = open_checkpoint(saved.path / "checkpoints" / "update-000003")
    three, _ = before._of_layers(range(6))
    two = {}
    for layers in (range(4), range(4, 6)):
        tensors, _ = before._of_layers(layers)
        two |= tensors
    assert_same_tensors(two, three)
    assert sum(name.startswith("optimizer/") for name in three) > 3 * sum(name.startswith("weights/") for name in three)


def test_a_finished_run_can_be_made_longer_with_another_window(saved):
    exact = paci_lab.replay(saved.spec.replace(microbatches=24, window=4), resume=saved.path)
    assert len(exact.losses) == 12 and [r.update for r in exact.updates[0]] == [3, 4, 5]
    assert exact.updates[0][-1].tokens == 24 * 16


@pytest.mark.parametrize("optimizer", ["adamw", "nadam", "muon", "sgd", "own"])
@pytest.mark.parametrize("implementation", ["foreach", "forloop"])
def test_every_optimizer_comes_back_bit_for_bit(optimizer, implementation, own_optimizer, tmp_path):
    name = own_optimizer if optimizer == "own" else optimizer

    def built():
        layers = [build_model("femto").build_layer(layer, seed=3) for layer in (0, 1, 5)]
        layers = nn.ModuleList(layers)
        named = list(layers.named_parameters())
        return named, build_optimizer(name, named, learning_rate=0.01, implementation=implementation)

    def step(named, optimizer, number):
        generator = torch.Generator().manual_seed(number)
        for _, p in named:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.scale_learning_rate(1 / (number + 1))
        optimizer.step()

    named, first = built()
    for number in range(3):
        step(named, first, number)
    names = [f"layers.{n}" for n, _ in named]
    tensors, numbers, groups = optimizer_state(first, names, own=optimizer == "own")
    save_file(tensors, tmp_path / "state")
    again, second = built()
    with torch.no_grad():
        for (_, there), (_, here) in zip(named, again, strict=True):
            here.copy_(there)
    values = json.loads(json.dumps([numbers, groups]))
    restore_optimizer(second, names, load_file(tmp_path / "state"), *values)
    for number in range(3, 5):
        step(named, first, number), step(again, second, number)
    assert_same_tensors({n: p.detach() for n, p in again}, {n: p.detach() for n, p in named})
    once_more = optimizer_state(second, names, own=optimizer == "own")
    expected = optimizer_state(first, names, own=optimizer == "own")
    assert_same_tensors(once_more[0], expected[0])
    assert once_more[1:] == expected[1:]
    if optimizer == "own":
        assert groups[0]["trust"] == pytest.approx(0.9**3) and len(numbers) == len(names)


def test_an_optimizer_that_no_checkpoint_can_hold_is_refused_before_the_run(own_optimizer):
    changes = SAVED | {"optimizer": own_optimizer, "weight_decay": 0.0, "optimizer_options": {"keep": "object"}}
    with pytest.raises(InputError, match="one that keeps 'history', a list is not possible.*plain numbers"):
        paci_lab.replay(tiny(**changes))
    assert len(paci_lab.replay(tiny(**{**changes, "checkpoint_every": 0})).losses) == 12


# -- what cannot go on ------------------------------


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"model": "pico"}, "model"),
        ({"data": "__init__.py"}, "data"),
        ({"microbatch_size": 2}, "microbatch_size"),
        ({"seed": 1}, "seed"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"window": 5, "microbatches": 20}, "window"),
        ({"microbatches": 12}, "microbatches"),
    ],
)
def test_a_run_that_would_not_be_the_same_is_refused(saved, changes, what):
    spec = saved.spec.replace(**changes)
    if what == "model":
        spec = spec.replace(context=16)
    with pytest.raises(InputError) as refusal:
        paci_lab.replay(spec, resume=saved.path)
    assert refusal.value.what == what


def test_a_refused_resume_writes_nothing(saved, tmp_path):
    with pytest.raises(InputError, match="seed = 1 is not possible: allowed is 0, as in the checkpoint"):
        paci_lab.launch(saved.spec.replace(seed=1), tmp_path / "run", resume=saved.path)
    assert not (tmp_path / "run").exists()


def test_other_content_of_the_data_is_refused(saved, tmp_path):
    path = copy_of(saved, tmp_path) / "checkpoints" / "update-000003"
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["corpus_sha256"]
    (path / "manifest.json").write_text(json.dumps(manifest | {"corpus_sha256": "0" * 64}))
    with pytest.raises(InputError, match="a corpus with the hash 000"):
        check_corpus(saved.dir.environment(), Checkpoint.read(path))


@pytest.mark.parametrize(
    "path, why", [("nowhere", "a run directory or a folder"), ("empty", "a run with a whole checkpoint")]
)
def test_a_path_without_checkpoint_is_refused(tmp_path, path, why):
    (tmp_path / "empty").mkdir()
    tiny().save(tmp_path / "empty" / "spec.toml")
    with pytest.raises(InputError, match=why):
        open_checkpoint(tmp_path / path)


def cut_short(folder: Path) -> None:
    file = folder / "stage-1.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def one_bit(folder: Path) -> None:
    file = folder / "stage-2.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def changed(**values):
    def change(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | values))

    return change


@pytest.mark.parametrize(
    "damage, why",
    [
        (cut_short, "stage-1.safetensors is not possible.*bytes instead of"),
        (one_bit, "stage-2.safetensors is not possible.*its hash is not the one"),
        (lambda folder: (folder / "stage-0.safetensors").unlink(), "stage-0.safetensors.*it is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json.*it is missing"),
        (lambda folder: (folder / "manifest.json").write_text('{"schema": 1, "upd'), "manifest.json"),
        (changed(schema=99), "schema 1 or older, this one has 99"),
        (changed(tokens=-1), "wrong type"),
        (changed(update=10**30), "wrong type"),
        (changed(update=7), "its counters contradict"),
        (changed(files=[{"name": "../../spec.toml", "bytes": 1, "sha256": "0" * 64}]), "not those of its stages"),
        (changed(files=[]), "not those of its stages"),
        (changed(spec={"stages": 3, "no_such": 1}), "no_such"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(saved, tmp_path, damage, why):
    path = copy_of(saved, tmp_path)
    damage(path / "checkpoints" / "update-000005")
    checkpoint, skipped = newest(path)
    assert checkpoint.update == 3 and len(skipped) == 1
    with pytest.raises(InputError, match=why):
        open_checkpoint(path / "checkpoints" / "update-000005")


def test_a_file_that_only_looks_like_ours_is_refused(saved, tmp_path):
    """Its hash is the one in the manifest, and its header holds something else."""
    path = copy_of(saved, tmp_path) / "checkpoints" / "update-000005"
    manifest = json.loads((path / "manifest.json").read_text())
    for metadata in ({}, {"values": "[1, 2]"}, {"values": '{"numbers": 3, "groups": [], "tokens": 1}'}):
        save_file(load_file(path / "stage-0.safetensors"), path / "stage-0.safetensors", metadata=metadata)
        content = (path / "stage-0.safetensors").read_bytes()
        manifest["files"][0] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(
            InputError, match="stage-0.safetensors is not possible: allowed is a file as it was written"
        ):
            paci_lab.replay(saved.spec.replace(microbatches=14), resume=path)


def test_saving_a_checkpoint_is_drawn_and_explained(saved):
    trace = saved.trace()
    words = bar_arrays(trace, trace, origin_ns=0, unit_ns=1e6)["snapshot"]["words"]
    assert sum("checkpoint saved after update" in text for text in words) == 9
    event = next(event for event in trace if event.op == "checkpoint")
    middle = (event.start_ns + event.end_ns) // 2
    assert (
        why_idle(trace, event.stage, middle) == f"Stage {event.stage} saves its part of the checkpoint after update 1."
    )


def test_a_checkpoint_holds_nothing_that_is_unpickled(saved):
    folder = saved.path / "checkpoints" / "update-000005"
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    assert not list((saved.path / "checkpoints").glob("*.part"))


def test_no_checkpoint_after_a_window_that_is_cut_short():
    from paci_lab.runtime.checkpoint import checkpoint_due

    spec = tiny(updates=None, microbatches=11, window=3, checkpoint_every=2)
    assert [u for u in range(4) if checkpoint_due(spec, u)] == [1]
    assert [u for u in range(4) if checkpoint_due(spec.replace(microbatches=12), u)] == [1, 3]


# -- the command and the weights ------------------------------


def test_the_command_resumes_with_the_spec_of_the_newest_good_checkpoint(saved, tmp_path, capsys):
    path = copy_of(saved, tmp_path)
    one_bit(path / "checkpoints" / "update-000005")
    flags = ["--resume", str(path), "--stages", "2", "--updates", "8", "--run-dir", str(tmp_path / "run")]
    assert main(["train", *flags, "--json", "-"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["stages"], result["updates"], result["resumed_from"]["stages"]) == (2, 4, 3)
    assert "resumed from" in said.err and "passed over: checkpoint = " in said.err
    assert "its hash is not the one" in result["resumed_from"]["passed_over"][0]
    run = paci_lab.open_run(tmp_path / "run")
    assert run.spec.dropout == 0.2 and run.spec.total_microbatches == 16


def test_weights_go_into_one_file_that_a_model_loads(saved, tmp_path, capsys):
    for source in (saved.path, saved.path / "checkpoints" / "update-000005"):
        assert main(["export", str(source), "--output", str(tmp_path / "weights.safetensors")]) == 0
        assert_same_tensors(load_file(tmp_path / "weights.safetensors"), saved.dir.parameters())
    model = build_model("femto", context=16)
    module = load_weights(model, tmp_path / "weights.safetensors").eval()
    from paci_lab.data import open_data

    data = open_data("stdlib", context=16, microbatch_size=1, seed=0)
    ((inputs, targets),) = data.validation(1)
    with torch.no_grad():
        loss = float(model.loss(module(inputs), targets)) / targets.numel()
    assert loss == pytest.approx(saved.dir.validation()[-1]["val_loss"], rel=1e-6)
    with pytest.raises(InputError, match="weights.safetensors"):
        load_weights(build_model("pico", context=16), tmp_path / "weights.safetensors")
    (tmp_path / "no.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="a safetensors file"):
        load_weights(model, tmp_path / "no.safetensors")
    assert main(["export", str(saved.path), "--output", str(tmp_path / "w"), "--stages", "3"]) == 2
    assert "--stages" in capsys.readouterr().err


def test_the_spec_says_what_the_checkpoint_needs():
    with pytest.raises(InputError, match="checkpoint_every"):
        tiny(checkpoint_every=-1)
    with pytest.raises(InputError, match="keep_checkpoints"):
        tiny(keep_checkpoints=0)
    assert dataclasses.replace(tiny(), checkpoint_every=3).build_schedule().every == 3
    assert_trace_is_simulated(
        paci_lab.replay(tiny(stages=2, checkpoint_every=2)).trace, tiny(stages=2, checkpoint_every=2)
    )
