"""`TrainSpec`: its file, its refusals, and that a refusal leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json

import pytest
from engine_helpers import tiny

import paci_lab
from paci_lab import InputError, TrainSpec

OTHER = {  # a value that is not the default, for every field
    "schedule": "1f1b",
    "engine": "torch",
    "stages": 3,
    "window": 5,
    "slack": 0,
    "chunks": 0,
    "updates": 7,
    "microbatches": None,
    "microbatch_size": 4,
    "model": "nano",
    "context": 32,
    "replicas": 3,
    "shard_optimizer": True,
    "dropout": 0.25,
    "data": "some/file.txt",
    "partition": [2, 5, 3],
    "optimizer": "muon",
    "learning_rate": 0.02,
    "momentum": 0.8,
    "weight_decay": 0.0,
    "optimizer_options": {"ns_steps": 3, "betas": [0.5, 0.75]},
    "optimizer_implementation": "forloop",
    "learning_rate_schedule": "constant",
    "warmup": 0.2,
    "final_learning_rate": 0.5,
    "clip_norm": 1.5,
    "clip": "lagged",
    "precision": "bf16",
    "recompute": True,
    "seed": 12,
    "device": "cpu",
    "backend": "gloo",
    "threads": 2,
    "pace_forward_ms": [1.0, 2.5, 0],
    "pace_backward_ms": 3,
    "target_loss": 2.5,
    "evaluate_every": 16,
    "validation_batches": 2,
    "evaluate": "after",
    "checkpoint_every": 5,
    "keep_checkpoints": 3,
    "trace": False,
}


def test_a_spec_comes_back_from_its_file(tmp_path):
    assert set(OTHER) == {field.name for field in dataclasses.fields(TrainSpec)}
    for spec in (TrainSpec(), TrainSpec(**OTHER), TrainSpec(schedule="paci", microbatches=11, slack=3)):
        spec.save(tmp_path / "spec.toml")
        assert TrainSpec.load(tmp_path / "spec.toml") == spec
        assert TrainSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_every_field_has_a_sentence_of_help():
    for field in dataclasses.fields(TrainSpec):
        assert len(field.metadata["help"].split()) >= 2, field.name


def test_the_length_of_the_stream():
    assert TrainSpec(window=4).total_microbatches == 400
    assert TrainSpec(window=4, updates=3).total_microbatches == 12
    assert TrainSpec(window=4, microbatches=10).total_microbatches == 10
    assert TrainSpec(window=4, microbatches=10).build_schedule().updates == 3


BAD = [
    ("schedule", "zigzag"),
    ("chunks", -1),
    ("chunks", 1.5),
    ("schedule", ""),
    ("schedule", ["paci"]),
    ("stages", 0),
    ("stages", 1.0),
    ("stages", True),
    ("window", 0),
    ("window", -3),
    ("window", "8"),
    ("replicas", 0),
    ("replicas", 1.5),
    ("shard_optimizer", "yes"),
    ("slack", -1),
    ("engine", "deepspeed"),
    ("slack", 0.5),
    ("updates", 0),
    ("microbatches", 0),
    ("microbatch_size", 0),
    ("model", 3),
    ("context", 0),
    ("dropout", 1),
    ("dropout", -0.1),
    ("data", ""),
    ("partition", "even"),
    ("partition", []),
    ("partition", [1, 0]),
    ("partition", [[1], [2]]),
    ("partition", [1, 2, 3]),
    ("optimizer", None),
    ("learning_rate", 0),
    ("learning_rate", float("nan")),
    ("learning_rate", 10**400),
    ("momentum", 1),
    ("weight_decay", -1),
    ("optimizer_options", "betas"),
    ("optimizer_implementation", "fast"),
    ("learning_rate_schedule", "linear"),
    ("warmup", 1.5),
    ("final_learning_rate", -0.1),
    ("clip_norm", 0),
    ("clip_norm", float("inf")),
    ("clip", "exact"),
    ("precision", "fp16"),
    ("precision", 16),
    ("recompute", "layer"),
    ("seed", -1),
    ("device", "tpu"),
    ("device", ["cpu"]),
    ("backend", "mpi"),
    ("threads", 0),
    ("pace_forward_ms", -1),
    ("pace_forward_ms", [1, 2, 3]),
    ("pace_backward_ms", 1e300),
    ("pace_backward_ms", [1, "2"]),
    ("target_loss", 0),
    ("target_loss", float("inf")),
    ("evaluate_every", -1),
    ("validation_batches", 0),
    ("evaluate", "before"),
    ("checkpoint_every", -1),
    ("keep_checkpoints", 0),
    ("trace", 1),
]


@pytest.mark.parametrize("field, value", BAD)
def test_a_value_out_of_range_is_refused_with_name_range_and_fix(field, value):
    with pytest.raises(InputError) as refusal:
        TrainSpec(**{field: value})
    error = refusal.value
    assert error.what == field and error.value is value  # not ==, for NaN
    assert error.allowed and error.fix
    assert str(error).startswith(f"{field} = {value} is not possible: allowed is {error.allowed}. ")


def test_every_field_has_a_refusal():
    assert {field for field, _ in BAD} == set(OTHER)


def test_what_excludes_each_other_is_refused():
    with pytest.raises(InputError, match="either updates or microbatches"):
        TrainSpec(updates=3, microbatches=7)
    with pytest.raises(InputError, match="slack = 1 .* use .*paci"):
        TrainSpec(schedule="gpipe", slack=1)
    with pytest.raises(InputError, match="chunks = 2 .* use interleaved"):
        TrainSpec(schedule="gpipe", chunks=2)


@pytest.mark.parametrize("key, near", [("windw", "window"), ("Stages", "stages"), ("learning-rate", "learning_rate")])
def test_an_unknown_key_is_answered_with_the_near_one(tmp_path, key, near):
    path = tmp_path / "my.toml"
    path.write_text(f'schedule = "paci"\n{key} = 3\n')
    with pytest.raises(InputError) as refusal:
        TrainSpec.load(path)
    assert refusal.value.value == key and near in refusal.value.fix and str(path) in refusal.value.what
    with pytest.raises(InputError, match=near):
        TrainSpec().replace(**{key: 3})


@pytest.mark.parametrize("content", ["window = ", "[[window]", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_refused(tmp_path, content):
    path = tmp_path / "my.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match="a readable TOML file"):
        TrainSpec.load(path)
    with pytest.raises(InputError, match="a readable TOML file"):
        TrainSpec.load(tmp_path / "none.toml")


# -- what only the machine, the model or the data can tell ------------------------------

REFUSED = [
    ({"stages": 7}, "stages", "1 to 6"),
    ({"partition": [1, 1]}, "partition", "add up to 6"),
    ({"model": "gigantic"}, "model", "femto"),
    ({"data": "/no/such/file.txt"}, "data", "a readable file"),
    ({"data": "no_such_module:data"}, "data", "imported"),
    ({"optimizer": "adamx"}, "optimizer", "adamw, nadam, muon, sgd"),
    ({"optimizer_options": {"beta": 1}}, "nadam option", "betas"),
    ({"optimizer_options": {"betas": 0.9}, "momentum": 0.5}, "nadam: betas", "two numbers"),
    ({"optimizer_implementation": "fused"}, "implementation", "foreach, forloop for nadam"),
    ({"backend": "nccl"}, "backend", "gloo"),
    ({"context": 10**6}, "data", "context 1000000"),
]


@pytest.mark.parametrize("changes, what, allowed", REFUSED)
def test_what_cannot_run_is_refused_before_anything_starts(changes, what, allowed):
    from paci_lab.runtime.resolve import resolve

    with pytest.raises(InputError) as refusal:
        resolve(tiny(**changes))
    assert refusal.value.what == what and allowed in refusal.value.allowed


def test_an_empty_data_file_is_refused(tmp_path):
    from paci_lab.runtime.resolve import resolve

    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(InputError, match="empty"):
        resolve(tiny(data=str(empty)))


def test_a_refused_launch_writes_nothing(tmp_path):
    for changes, what, allowed in (REFUSED[0], REFUSED[3]):
        with pytest.raises(InputError) as refusal:
            paci_lab.launch(tiny(**changes), tmp_path / "run")
        assert refusal.value.what == what and allowed in refusal.value.allowed
        assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_left_as_it_is(tmp_path):
    (tmp_path / "mine.txt").write_text("not yours")
    with pytest.raises(InputError, match="a new or empty folder"):
        paci_lab.launch(tiny(), tmp_path)
    with pytest.raises(InputError, match="run directory"):
        paci_lab.launch(tiny(), tmp_path / "mine.txt" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(InputError, match="a folder that holds a spec.toml"):
        paci_lab.open_run(tmp_path)


def test_resolving_decides_everything_and_changes_nothing_twice():
    from paci_lab.runtime.resolve import resolve

    spec = resolve(TrainSpec(model="femto", stages=2, updates=3, window=4, device="cpu"))
    assert spec.microbatches == 12 and spec.updates is None and spec.context == 32 and spec.backend == "gloo"
    assert isinstance(spec.partition, list) and sum(spec.partition) == 6
    assert resolve(spec) == spec
