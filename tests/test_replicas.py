"""Replicas of the pipeline: the numbers of one process, versions of one pipeline, and every rank accounted for."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from engine_helpers import (
    PATIENCE_S,
    assert_run_is_replay,
    assert_trace_is_simulated,
    kill,
    order_of,
    pid_of,
    processes_of,
    run_to_end,
    tiny,
    wait_until,
)
from test_replay import OWN_DATA
from torch import nn

import paci_lab
from paci_lab import InputError, RunFailed, TrainSpec
from paci_lab.cli import main
from paci_lab.data import open_data
from paci_lab.models import build_model
from paci_lab.optimizers import build_optimizer, learning_rate_factor
from paci_lab.runtime.replicas import Reducer
from paci_lab.runtime.sharding import owners_of
from paci_lab.show.feed import RunFeed
from paci_lab.show.why import why_idle
from paci_lab.trace import Trace, TraceEvent

pytestmark = pytest.mark.usefixtures("one_thread")

LATE = """
import time
from paci_lab.data.stdlib import open_source


def data(context, microbatch_size, seed):
    stream = open_source("stdlib", context=context, microbatch_size=microbatch_size, seed=seed)
    good = stream.train

    def train(microbatch):
        time.sleep(0.02 * (microbatch % 2))  # of two replicas, the second one's
        return good(microbatch)

    stream.train = train
    return stream
"""


@pytest.fixture
def uneven(tmp_path) -> str:
    """Data whose micro-batches count 4, 8 and 12 targets in turn."""
    (tmp_path / "own.py").write_text(OWN_DATA)
    return f"{tmp_path / 'own.py'}:Uneven"


def plain_training(spec: TrainSpec, *, order: int = 1) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of one process without a pipeline that reads what all replicas read: every update adds up
    each replica's micro-batches, then the replicas, forwards (`order` 1) or backwards (-1)."""
    model = build_model(spec.model, context=spec.context)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    layers = nn.Sequential(*(model.build_layer(layer, spec.seed) for layer in range(model.layers)))
    named = list(layers.named_parameters())
    optimizer = build_optimizer(spec.optimizer, named, learning_rate=spec.learning_rate, weight_decay=spec.weight_decay)
    total, seen, losses = spec.total_microbatches * spec.replicas, 0, {}
    whole = sum(map(data.train_tokens, range(total)))
    for first in range(0, total, spec.window * spec.replicas):
        window = range(first, min(first + spec.window * spec.replicas, total))
        tokens = sum(map(data.train_tokens, window))
        by_replica = []
        for replica in range(spec.replicas):
            for k in window[replica :: spec.replicas]:
                inputs, targets = data.train(k)
                summed = model.loss(layers(inputs), targets)
                losses[k] = float(summed.detach() / data.train_tokens(k))
                (summed / tokens).backward()
            by_replica.append([parameter.grad for _, parameter in named])
            optimizer.zero_grad()
        for (_, parameter), gradients in zip(named, zip(*by_replica[::order], strict=True), strict=True):
            parameter.grad = sum(gradients[1:], start=gradients[0])
        seen += tokens
        optimizer.scale_learning_rate(learning_rate_factor(seen, whole))
        optimizer.step()
        optimizer.zero_grad()
    return [losses[k] for k in range(total)], {f"layers.{name}": p.detach() for name, p in named}


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


# -- one process with the same data ------------------------------


@pytest.mark.parametrize("schedule, stages, replicas", [("1f1b", 3, 2), ("gpipe", 2, 3), ("paci", 1, 4)])
def test_replicas_of_window_one_are_one_pipeline_with_all_their_microbatches(schedule, stages, replicas):
    """To the last bit: with one micro-batch each, both add the same gradients in the same order."""
    spec = tiny(schedule=schedule, stages=stages, window=1, updates=3, replicas=replicas, dropout=0.1)
    several = paci_lab.replay(spec)
    one = paci_lab.replay(spec.replace(replicas=1, window=replicas))
    assert several.losses == one.losses and same(several.parameters, one.parameters)
    for ours, theirs in zip(several.updates, one.updates, strict=True):
        assert [r[:4] for r in ours] == [r[:4] for r in theirs]  # number, tokens, learning rate, gradient norm


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_flush_is_plain_accumulation_in_the_order_of_the_replicas(uneven, replicas):
    """Also when micro-batches differ in size and the stream ends inside a window."""
    spec = tiny(schedule="1f1b", stages=2, window=3, updates=None, microbatches=8, replicas=replicas, data=uneven)
    exact = paci_lab.replay(spec)
    losses, parameters = plain_training(spec)
    assert exact.losses == losses and same(exact.parameters, parameters)
    # As close to one long window as sums in another order can be.
    long = paci_lab.replay(spec.replace(replicas=1, window=3 * replicas, microbatches=8 * replicas))
    torch.testing.assert_close(exact.losses, long.losses, rtol=1e-4, atol=1e-4)
    if replicas == 3:  # two can be added in either order, three cannot: the order that is promised is one
        assert not same(plain_training(spec, order=-1)[1], parameters)


def test_a_schedule_of_ones_own_may_end_its_windows_with_any_microbatch(tmp_path):
    """GPipe with reversed backwards, of CONTRIBUTING, and halves of backwards in another."""
    text = (Path(paci_lab.__file__).parents[1] / "CONTRIBUTING.md").read_text()
    (tmp_path / "own.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    spec = tiny(schedule=f"{tmp_path}/own.py:ReversedGPipe", stages=2, replicas=2, window=2, updates=2)
    forwards = paci_lab.replay(spec.replace(schedule="gpipe"))
    torch.testing.assert_close(paci_lab.replay(spec).losses, forwards.losses, rtol=1e-4, atol=1e-4)
    halves = paci_lab.replay(spec.replace(schedule="zb-h1"))
    assert halves.losses == forwards.losses and same(halves.parameters, forwards.parameters)


LATE_UPDATE = """
import dataclasses
from paci_lab.schedules import PACI


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateUpdate(PACI):
    name = "late-update"
    summary = "PACI whose update comes behind the next forward, which sees the weights before it"

    def ops(self, rank):
        update = None
        for op in super().ops(rank):
            if update is not None and op.kind != "F":
                yield update
                update = None
            if op.kind == "U":
                update = op
                continue
            yield op
            if update is not None:
                yield update
                update = None
        if update is not None:
            yield update

    def gap_bound(self, stage):
        return -(-self.in_flight(stage) // self.window)
"""
"""A forward hides the wait for the replicas, and every stage pays for it with one more micro-batch of delay."""


@pytest.fixture
def late_update(tmp_path) -> TrainSpec:
    (tmp_path / "late.py").write_text(LATE_UPDATE)
    return tiny(schedule=f"{tmp_path}/late.py:LateUpdate", stages=2, replicas=2, window=2, partition=[2, 4])


def test_an_update_behind_the_next_forward_is_a_schedule_with_a_gap_bound_of_its_own(late_update):
    trace = paci_lab.replay(late_update).trace  # which refuses a schedule that breaks its own bound
    assert trace.version_gap_max() == [1, 1]  # ceil((N - s) / a); PACI's is ceil((N - 1 - s) / a): 1, 0
    orders = order_of(trace)
    assert orders[1][3:6] == [("B", 1), ("F", 2), ("U", 0)] and orders[1][-2:] == [("B", 7), ("U", 3)]


@pytest.mark.slow
def test_real_ranks_run_a_forward_while_their_gradients_travel(late_update, tmp_path):
    assert_run_is_replay(run_to_end(late_update, tmp_path / "run"))


# -- real ranks ------------------------------


@pytest.fixture(scope="module")
def paci(tmp_path_factory) -> paci_lab.Run:
    """PACI on 2 x 2 ranks, with evaluations, dropout and a window that closes early. Replica 1 is late."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "late.py").write_text(LATE)
    spec = tiny(
        data=f"{folder}/late.py:data",
        schedule="paci",
        stages=2,
        replicas=2,
        window=2,
        updates=None,
        microbatches=9,
        partition=[2, 4],
        evaluate_every=4,
        dropout=0.1,
    )
    return run_to_end(spec, folder / "paci")


def test_paci_has_the_versions_of_one_pipeline_and_the_numbers_of_replay(paci):
    exact = assert_run_is_replay(paci)
    assert_trace_is_simulated(paci.trace(replica=1), paci.spec)
    assert paci.trace(replica=1).version_gap_max() == paci.trace().version_gap_max() == [1, 0]
    for stage in range(2):  # both replicas stepped with the same gradient
        ours, theirs = (paci.dir.updates_of(stage, replica) for replica in range(2))
        assert [row["grad_norm"] for row in ours] == [row["grad_norm"] for row in theirs]
    means = [pytest.approx(sum(exact.losses[i : i + 4]) / len(exact.losses[i : i + 4])) for i in range(0, 18, 4)]
    assert [row["train_loss"] for row in paci.dir.metrics()] == means
    assert processes_of(paci.path) == {}


def test_the_run_directory_tells_the_replicas_apart(paci):
    result = paci.result()
    assert (result["replicas"], result["ranks"], result["stages"]) == (2, 4, 2)
    assert result["tokens"] == 18 * 16 and result["updates"] == 5
    assert result["tokens_per_second"] == pytest.approx(result["tokens"] / result["wall_time_s"])
    assert {path.name for path in (paci.path / "trace").iterdir()} == {f"rank{rank}.jsonl" for rank in range(4)}
    assert len(paci.dir.losses()) == 18
    assert len(list((paci.path / "snapshots").glob("*/*"))) == 2  # one file a stage, not one a rank
    traces = [paci.trace(replica=replica) for replica in range(2)]
    assert [trace.source for trace in traces] == [f"measured, replica {replica} of 2" for replica in range(2)]
    assert [sorted(set(trace.rank.tolist())) for trace in traces] == [[0, 1], [2, 3]]
    shares = [part / traces[0].makespan_ns for part in traces[0].waiting_ns("wait-U")]
    assert result["replica_wait"] == shares and shares[0] > 0
    assert set(traces[0].of_kind("wait-U").microbatch.tolist()) <= set(range(5))
    with pytest.raises(InputError, match="replica = 2 is not possible: allowed is 0 to 1"):
        paci.trace(replica=2)


def test_live_view_charts_and_commands_show_the_first_replica_and_say_so(paci, tmp_path, capsys):
    feed = RunFeed(paci.path)
    feed.poll()
    trace = feed.trace()
    assert trace.source == "measured, replica 0 of 2" and sorted(set(trace.rank.tolist())) == [0, 1]
    assert len(trace) == len(paci.trace())
    assert main(["show", str(paci.path), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "replica 0 of 2" in page and "the gradients of the other replicas, for update" in page
    from paci_lab.commands.train import result_table

    lines = dict(result_table(paci.result()))
    assert "2 replicas" in lines["schedule"] and "%" in lines["waiting for replicas"]


def test_the_wait_for_replicas_is_told_in_words(paci):
    trace = paci.trace()
    longest = max(trace.of_kind("wait-U"), key=lambda event: event.end_ns - event.start_ns)
    words = f"waits for the gradients of the other replicas, which go into update {longest.update}."
    assert words in why_idle(trace, longest.stage, (longest.start_ns + longest.end_ns) // 2)
    behind = [TraceEvent(0, 0, "wait-U", 0, 0, 9, 0, 0), TraceEvent(1, 1, "wait-F", 3, 0, 9, 0, 0)]
    sentence = why_idle(Trace(behind, source="made up"), 1, 5)
    assert "of micro-batch 3 from stage 0" in sentence
    later = [*behind, TraceEvent(0, 0, "F", 3, 10, 12, 1, 1)]
    assert "waits itself for the gradients of the other replicas" in why_idle(Trace(later, source="made up"), 1, 5)


def test_a_flush_on_real_ranks_is_plain_accumulation(uneven, tmp_path):
    """Micro-batches of other sizes on the two replicas of every turn."""
    spec = tiny(
        schedule="1f1b",
        stages=2,
        replicas=2,
        window=3,
        updates=None,
        microbatches=5,
        partition=[2, 4],
        data=uneven,
        optimizer="adamw",
    )
    run = run_to_end(spec, tmp_path / "run")
    assert_run_is_replay(run)
    losses, parameters = plain_training(spec)
    assert run.dir.losses() == losses and same(run.dir.parameters(), parameters)


def test_three_replicas_share_out_the_optimizer_and_no_number_changes(tmp_path):
    """The sum of three has an order; replay, whose optimizers keep everything, is the unsharded run."""
    spec = tiny(stages=1, replicas=3, window=2, updates=3, partition=[6], shard_optimizer=True, optimizer="muon")
    run = run_to_end(spec, tmp_path / "run")
    assert_run_is_replay(run)
    kept = [run.dir.updates_of(0, replica)[-1]["optimizer_bytes"] for replica in range(3)]
    model = build_model(spec.model, context=spec.context)
    whole = build_optimizer(
        "muon",
        [*nn.Sequential(*map(partial(model.build_layer, seed=0), range(6))).named_parameters()],
        learning_rate=1e-3,
    )
    for parameter in whole.parameters:
        parameter.grad = torch.zeros_like(parameter)
    whole.step()
    states = [state for inner in whole.inner for state in inner.state.values()]
    all_of_it = sum(v.numel() * v.element_size() for state in states for v in state.values())
    assert sum(kept) == all_of_it
    assert max(kept) < 0.45 * all_of_it  # whole matrices are shared out, and this model has large and small ones


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "zb-h1", "stages": 2, "replicas": 2, "window": 3},
        {"schedule": "interleaved", "stages": 4, "chunks": 2, "replicas": 2, "window": 4},
        {"schedule": "pipedream", "stages": 2, "replicas": 2, "window": 1, "shard_optimizer": True},
        {"schedule": "paci", "stages": 2, "replicas": 4, "window": 2, "slack": 1, "optimizer": "adamw"},
    ],
    ids=lambda changes: changes["schedule"],
)
def test_other_schedules_with_replicas_are_replay_to_the_last_bit(tmp_path, changes):
    stages = changes["stages"]
    spec = tiny(partition=[1] * (stages - 1) + [7 - stages], updates=3, **changes)
    run = run_to_end(spec, tmp_path / "run")
    exact = paci_lab.replay(run.spec)
    assert run.dir.losses() == exact.losses and same(run.dir.parameters(), exact.parameters)


# -- when a bucket leaves ------------------------------


class Recording:
    """A group that writes down what is started when."""

    def __init__(self) -> None:
        self.sums: list[torch.Tensor] = []

    def start(self, action):
        action()
        return lambda: None

    def add_up(self, flat: torch.Tensor) -> None:
        self.sums.append(flat.clone())


def test_replicas_share_out_masters_of_bf16_weights(tmp_path):
    spec = tiny(
        stages=2, window=2, updates=3, replicas=2, precision="bf16", clip_norm=0.5, clip="lagged", partition=[2, 4]
    )
    sharded = run_to_end(spec.replace(shard_optimizer=True), tmp_path / "run")
    expected = paci_lab.replay(spec)
    assert sharded.dir.losses() == expected.losses
    # No replica has all masters, so what it saves is what it computes with.
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in expected.parameters.items()}
    assert same(sharded.dir.parameters(), rounded)


def three_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False), nn.Linear(16, 1, bias=False))


def test_a_bucket_leaves_within_the_last_backward_and_holds_the_whole_window():
    layers, group, seen = three_layers(), Recording(), []
    reducer = Reducer(list(layers.parameters()), 2, group, early=True, bucket_bytes=16 * 16 * 4)
    assert [[tuple(p.shape) for p in bucket.parameters] for bucket in reducer.buckets] == [
        [(1, 16)],
        [(16, 16)],
    ] * 1 + [[(16, 16)]]
    layers[0].weight.register_hook(lambda gradient: seen.append(len(group.sums)))  # just before it is accumulated
    for _ in range(2):
        with reducer.backward(2):
            layers(torch.ones(1, 16)).sum().backward()
    assert seen == [0, 2] and len(group.sums) == 3  # the two behind it had left when the first layer came
    assert all(torch.equal(flat, bucket.flat) for flat, bucket in zip(group.sums, reducer.buckets, strict=True))
    for parameter in layers.parameters():
        alone = torch.autograd.grad(layers(torch.ones(1, 16)).sum(), parameter)[0]
        torch.testing.assert_close(parameter.grad, 2 * alone)
        assert parameter.grad.data_ptr() % 64 == 0


def test_a_weight_that_one_backward_adds_to_twice_is_refused():
    layers, group = three_layers(), Recording()
    reducer = Reducer(list(layers.parameters()), 2, group, early=True, bucket_bytes=1)
    with pytest.raises(RuntimeError, match="after its reduction had started"), reducer.backward(1):
        for _ in range(2):
            layers(torch.ones(1, 16)).sum().backward()


def test_owners_get_about_the_same():
    sizes = [(256, 64), (64, 64), (64, 64), (64, 256), (64,), (64,), (256,)]
    owners = owners_of([nn.Parameter(torch.zeros(size)) for size in sizes], 2)
    held = [sum(torch.Size(s).numel() for s, o in zip(sizes, owners, strict=True) if o == r) for r in range(2)]
    assert sum(held) == 41344 and max(held) - min(held) <= 256


# -- faults, limits and commands ------------------------------


def test_a_killed_rank_of_another_replica_ends_the_run_and_is_named(tmp_path):
    run = paci_lab.launch(
        tiny(stages=2, replicas=2, window=2, updates=100_000, pace_forward_ms=2, pace_backward_ms=4), tmp_path / "run"
    )
    wait_until(lambda: len(run.dir.metrics()) > 2 or not run.running, what="the steady state")
    kill([pid_of(run.path, "rank2")])
    with pytest.raises(RunFailed) as failed:
        run.wait(PATIENCE_S)
    wait_until(lambda: not processes_of(run.path), what="the end of every process")
    assert str(failed.value).startswith("rank 2 (replica 1, stage 0) failed in operation 0")
    failure = run.dir.failure()
    assert (failure["rank"], failure["replica"], failure["stage"]) == (2, 1, 0)
    assert len(paci_lab.open_run(run.path).trace(replica=1)) > 5


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": True}, "replicas"),
        ({"shard_optimizer": True}, "shard_optimizer"),
        ({"shard_optimizer": 2, "replicas": 2}, "shard_optimizer"),
        ({"replicas": 1000, "microbatches": 10**6, "updates": None}, "updates"),
    ],
)
def test_wrong_values_are_refused(changes, what):
    with pytest.raises(InputError) as refused:
        tiny(**changes)
    assert refused.value.what == what


def test_nccl_needs_a_gpu_for_every_rank_of_every_replica(monkeypatch):
    from paci_lab.runtime.resolve import _device

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    spec = tiny(stages=2, replicas=2, backend="nccl").replace(device="auto")
    with pytest.raises(InputError, match="4 ranks need 4 GPUs"):
        _device(spec)
    assert _device(spec.replace(backend="auto")) == ("cuda", "gloo")
    assert _device(spec.replace(replicas=1)) == ("cuda", "nccl")


def test_the_dry_run_counts_all_replicas(capsys):
    flags = ["train", "--dry-run", "--model", "nano", "--stages", "2", "--window", "4", "--updates", "3", "--json", "-"]
    figures = []
    for extra in ([], ["--replicas", "4", "--shard-optimizer", "true"]):
        assert main([*flags, *extra]) == 0
        said = capsys.readouterr()
        figures.append(json.loads(said.out))
    one, four = figures
    assert four["tokens"] == 4 * one["tokens"] and "32 sequences an update" in said.err and "8: 4 replicas" in said.err
    for ours, theirs in zip(four["stages"], one["stages"], strict=True):
        assert ours["optimizer"] == -(-theirs["optimizer"] // 4) and ours["weights"] == theirs["weights"]


@pytest.mark.slow
def test_torchrun_starts_the_ranks_of_all_replicas(tmp_path):
    from test_torchrun import one_node, said_by

    spec = tiny(stages=2, replicas=2, window=2, updates=4, partition=[2, 4])
    spec.save(tmp_path / "spec.toml")
    process = one_node(2, tmp_path / "spec.toml")
    assert "4, one for every rank of 2 x 2 stages" in said_by(process) and process.returncode != 0
    process = one_node(4, tmp_path / "spec.toml", "--run-dir", tmp_path / "run")
    said = said_by(process)
    assert process.returncode == 0, said
    assert_run_is_replay(paci_lab.open_run(tmp_path / "run"))
