"""Ranks that are killed or stand still: the run goes on from its newest checkpoint as if nothing had happened."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from engine_helpers import (
    PATIENCE_S,
    assert_trace_is_simulated,
    free_port,
    kill,
    pid_of,
    processes_of,
    tiny,
    wait_until,
)

import paci_lab
from paci_lab import InputError, RunFailed
from paci_lab.cli import main
from paci_lab.runtime.checkpoint import newest
from paci_lab.runtime.resume import recover
from paci_lab.runtime.rundir import LineTail, RunDir
from paci_lab.runtime.torchrun import launch_torchrun, torchrun_command
from paci_lab.runtime.watch import Watch
from paci_lab.show.feed import RunFeed

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the processes of a run through /proc"),
    pytest.mark.usefixtures("one_thread"),
]

PACED = {"pace_forward_ms": 2, "pace_backward_ms": 4}
SAVED = {"stages": 3, "partition": [1, 2, 3], "window": 2, "checkpoint_every": 10, "dropout": 0.1, **PACED}
"""An update takes some 15 ms, a checkpoint comes every ten of them; 150 are enough to be struck in the middle."""


def start(path: Path, *, updates: int = 150, max_restarts: int = 1, hang_timeout_s: float = 60.0, **changes):
    spec = tiny(**{**SAVED, "updates": updates, **changes})
    return paci_lab.launch(spec, path, max_restarts=max_restarts, hang_timeout_s=hang_timeout_s)


def assert_undisturbed(run: paci_lab.Run) -> None:
    """Losses, weights, validation and trace are those of a run that nothing happened to, and no process is left."""
    exact = paci_lab.replay(run.spec)
    assert run.dir.losses() == exact.losses
    parameters = run.dir.parameters()
    assert parameters.keys() == exact.parameters.keys()
    assert not [name for name in parameters if not torch.equal(parameters[name], exact.parameters[name])]
    assert [(row["update"], row["val_loss"]) for row in run.dir.validation()] == [row[1:] for row in exact.validation]
    assert [row["update"] for row in run.dir.metrics()] == list(range(len(exact.updates[0])))
    assert_trace_is_simulated(run.trace(), run.spec)
    ends = [event.end_ns for event in run.trace() if event.op in "FBU"]
    starts = [event.start_ns for event in run.trace()]
    assert min(starts) >= 0 and max(ends) / 1e9 <= run.result()["wall_time_s"] + 1e-6
    for stage in range(run.spec.stages):
        mine = [e for e in run.trace() if e.stage == stage]
        assert all(a.end_ns <= b.start_ns for a, b in zip(mine, mine[1:], strict=False)), "time runs on"
    wait_until(lambda: not processes_of(run.path), what="the end of every process")


def wait_for_checkpoint(run: paci_lab.Run, update: int) -> None:
    folder = run.path / "checkpoints" / f"update-{update:06d}"
    wait_until(lambda: folder.exists() or not run.running, what="the checkpoint")
    assert run.running


# -- killed ------------------------------


def test_a_killed_rank_starts_again_from_the_newest_checkpoint(tmp_path):
    run = start(tmp_path / "run", evaluate_every=14)
    wait_for_checkpoint(run, 19)
    kill([pid_of(run.path, "rank1")])
    result = run.wait(PATIENCE_S)
    (row,) = run.dir.restarts()
    assert result["restarts"] == 1 and row["from_update"] % 10 == 0 and row["from_update"] >= 20
    assert "rank 1 (stage 1) failed in operation 1" in row["cause"] and "killed by SIGKILL" in row["cause"]
    assert_undisturbed(run)
    lost = [e for e in run.trace() if e.update == row["from_update"] and e.op == "F" and e.stage == 0][0]
    assert lost.start_ns / 1e9 > row["time_s"], "the time in which nothing ran counts"
    assert not run.dir.failure() and not (run.path / "log" / "rank1.error.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_killed_at_start_up_begins_again(tmp_path, rank):
    run = start(tmp_path / "run", updates=6)
    kill([pid_of(run.path, f"rank{rank}")])
    run.wait(PATIENCE_S)
    (row,) = run.dir.restarts()
    assert row["from_update"] == 0 and f"rank {rank} (stage {rank}) failed in" in row["cause"]
    assert_undisturbed(run)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_first_and_last_rank_killed_in_the_steady_state(tmp_path, rank):
    run = start(tmp_path / "run", max_restarts=2, schedule="pipedream", optimizer="muon")
    for update in (9, 29):
        wait_for_checkpoint(run, update)
        kill([pid_of(run.path, f"rank{rank}")])
        seen = 1 + (update == 29)
        wait_until(lambda seen=seen: len(run.dir.restarts()) >= seen, what="the restart")
    assert run.wait(PATIENCE_S)["restarts"] == 2
    assert_undisturbed(run)


KILLED_WHILE_SAVING = """
import os, signal
import safetensors.torch

good = safetensors.torch.save_file


def save_file(tensors, path, metadata=None):
    good(tensors, path, metadata)
    once = "{once}"
    if "update-000019.part/stage-{stage}" in str(path) and not os.path.exists(once):
        open(once, "w").close()
        with open(path, "r+b") as file:
            file.truncate(1000)
        os.kill(os.getpid(), signal.SIGKILL)


safetensors.torch.save_file = save_file


def data(context, microbatch_size, seed):
    from paci_lab.data.stdlib import open_source

    return open_source("stdlib", context=context, microbatch_size=microbatch_size, seed=seed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_rank_killed_in_the_middle_of_a_checkpoint(tmp_path, stage):
    """Half a file is there, of a checkpoint that never becomes one: the run goes on from the one before."""
    (tmp_path / "own.py").write_text(KILLED_WHILE_SAVING.format(once=tmp_path / "once", stage=stage))
    run = start(tmp_path / "run", updates=30, data=f"{tmp_path}/own.py:data")
    run.wait(PATIENCE_S)
    (row,) = run.dir.restarts()
    assert (tmp_path / "once").exists() and row["from_update"] == 10 and f"operation {stage}U19" in row["cause"]
    exact = paci_lab.replay(run.spec)
    assert run.dir.losses() == exact.losses
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["update-000019", "update-000029"]


@pytest.mark.slow
def test_the_last_failure_is_the_end(tmp_path):
    run = start(tmp_path / "run", updates=100_000)
    for number in range(2):
        wait_until(lambda n=number: len(run.dir.restarts()) == n and run.dir.metrics() or not run.running)
        kill([pid_of(run.path, "rank2")])
    with pytest.raises(RunFailed, match="rank 2 .* killed by SIGKILL"):
        run.wait(PATIENCE_S)
    assert len(run.dir.restarts()) == 1 and not processes_of(run.path)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_not_tried_again(tmp_path):
    run = start(tmp_path / "run", stages=1, partition="auto", window=1, optimizer="sgd", learning_rate=1e30)
    with pytest.raises(RunFailed, match="NonFiniteLoss"):
        run.wait(PATIENCE_S)
    assert run.dir.restarts() == []


@pytest.mark.slow
def test_a_resumed_run_that_fails_goes_on_from_where_it_was_resumed(tmp_path):
    first = start(tmp_path / "first", updates=10, max_restarts=0)
    first.wait(PATIENCE_S)
    spec = first.spec.replace(microbatches=60, checkpoint_every=0)
    run = paci_lab.launch(spec, tmp_path / "run", resume=first.path, max_restarts=1)
    wait_until(lambda: run.dir.metrics(), what="its first update")
    kill([pid_of(run.path, "rank0")])
    assert run.wait(PATIENCE_S)["restarts"] == 1
    assert run.dir.restarts()[0]["from_update"] == 10
    assert run.dir.losses() == paci_lab.replay(spec, resume=first.path).losses


@pytest.mark.slow
def test_a_run_stopped_between_failure_and_restart_stays_stopped(tmp_path):
    run = start(tmp_path / "run", updates=100_000, max_restarts=5)
    wait_until(lambda: run.dir.metrics(), what="its first update")
    kill([pid_of(run.path, "rank0")])
    run.stop()
    assert not processes_of(run.path)
    with pytest.raises(RunFailed):
        run.result()


# -- what a restart cuts off ------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """The directory of a run that was stopped on its way."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    run = start(path, updates=100_000, max_restarts=0, keep_checkpoints=4, evaluate_every=6)
    wait_for_checkpoint(run, 29)
    wait_until(lambda: len(run.dir.metrics()) > 35, what="what comes after the checkpoint")
    run.stop()
    return path


def files_of(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for folder in ("trace", "updates", "checkpoints", "snapshots", ".")
        for file in (path / folder).glob("*" if folder == "." else "**/*")
        if file.is_file()
    }


def test_what_comes_behind_the_checkpoint_is_cut_off_and_a_killed_cut_is_done_again(stopped, tmp_path, monkeypatch):
    whole, halves = (RunDir(shutil.copytree(stopped, tmp_path / name)) for name in ("whole", "halves"))
    checkpoint, skipped = recover(whole)
    last = checkpoint.update
    assert skipped == [] and last % 10 == 9
    rows = [row for rank in range(3) for row in whole.updates(rank)] + whole.metrics() + whole.validation()
    assert {row["update"] for row in rows} == set(range(last + 1))
    assert max(e.update for e in whole.trace()) == last and whole.trace().updates() == [last + 1] * 3
    kept = {row["update"]: row for row in RunDir(stopped).metrics()}
    assert whole.metrics() == [kept[update] for update in range(last + 1)]
    assert all(int(p.name[7:]) <= last for p in (whole.path / "snapshots").iterdir())

    calls = []
    replace, rmtree = os.replace, shutil.rmtree

    class Killed(Exception):
        pass

    def dying(real):
        def call(*arguments, **options):
            calls.append(real)
            if len(calls) == state["stop"]:
                raise Killed
            return real(*arguments, **options)

        return call

    state = {"stop": 0}
    monkeypatch.setattr(os, "replace", dying(replace)), monkeypatch.setattr(shutil, "rmtree", dying(rmtree))
    for state["stop"] in range(1, 5):
        calls.clear()
        try:
            recover(halves)
        except Killed:
            continue
    state["stop"] = 0
    recover(halves)
    assert files_of(halves.path) == files_of(whole.path)


def test_a_restart_passes_over_a_damaged_checkpoint_and_removes_it(stopped, tmp_path):
    run = RunDir(shutil.copytree(stopped, tmp_path / "run"))
    good, _ = newest(run.path)
    (good.path / "stage-1.safetensors").write_bytes(b"short")
    checkpoint, skipped = recover(run)
    assert checkpoint.update == good.update - 10 and not good.path.exists()
    assert len(skipped) == 1 and "stage-1.safetensors" in skipped[0] and "5 bytes instead of" in skipped[0]
    for folder in (run.path / "checkpoints").iterdir():
        shutil.rmtree(folder)
    assert recover(run) == (None, []) and run.metrics() == [] and len(run.trace()) == 0


def test_a_reader_of_lines_begins_again_when_the_file_was_cut(tmp_path):
    path = tmp_path / "lines"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(5)))
    tail = LineTail(path)
    assert [row["n"] for row in tail.rows()] == [0, 1, 2, 3, 4]
    path.write_text('{"n": 0}\n')
    assert [row["n"] for row in tail.rows()] == [0]
    path.write_text('{"n": 0, "longer": "than before"}\n{"n": 10}\n')
    assert [row["n"] for row in tail.rows()] == [0, 10]


def test_a_live_view_forgets_what_a_restart_cut_off(stopped, tmp_path):
    path = Path(shutil.copytree(stopped, tmp_path / "run"))
    feed = RunFeed(path)
    while feed.poll():
        pass
    shown = len(feed.trace())
    recover(RunDir(path))
    while feed.poll():
        pass
    run = RunDir(path)
    assert len(feed.trace()) == len(run.trace()) < shown
    assert feed.metrics == run.metrics() and feed.validation == run.validation() and feed.problems() == []


# -- standing still ------------------------------


def test_a_stopped_rank_is_named_with_a_heartbeat_and_the_run_ends(tmp_path):
    run = start(tmp_path / "run", updates=100_000, max_restarts=0, hang_timeout_s=12.0)
    wait_until(lambda: len(run.dir.metrics()) > 3, what="the steady state")
    kill([pid_of(run.path, "rank2")], signal.SIGSTOP)
    with pytest.raises(RunFailed) as failed:
        run.wait(PATIENCE_S)
    failure = run.dir.failure()
    assert str(failed.value).startswith("rank 2 (stage 2) has not gone on for ") and "it is stopped" in str(
        failed.value
    )
    assert f"in operation {failure['op']}" in failure["message"] and failure["op"][0] == "2"
    assert [line.split()[1] for line in failure["heartbeat"]] == ["0", "1", "2"]
    assert "heartbeat: rank 0 0" in (run.path / "log" / "agent.log").read_text()
    wait_until(lambda: not processes_of(run.path), what="the end of every process")


@pytest.mark.slow
def test_a_stopped_rank_starts_again(tmp_path):
    run = start(tmp_path / "run", hang_timeout_s=12.0)
    wait_for_checkpoint(run, 19)
    kill([pid_of(run.path, "rank0")], signal.SIGSTOP)
    run.wait(PATIENCE_S)
    (row,) = run.dir.restarts()
    assert "rank 0 (stage 0) has not gone on for" in row["cause"]
    assert_undisturbed(run)


@pytest.mark.slow
def test_a_stopped_rank_ends_with_a_killed_agent(tmp_path):
    """No thread of a stopped process can end it: the system does."""
    run = start(tmp_path / "run", updates=100_000, max_restarts=0)
    wait_until(lambda: run.dir.metrics(), what="its first update")
    kill([pid_of(run.path, "rank1")], signal.SIGSTOP)
    kill([pid_of(run.path, "agent")])
    wait_until(lambda: not processes_of(run.path), what="the end of every process")


class Alive:
    """A rank that is there."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = os.getpid() if pid is None else pid

    def poll(self) -> None:
        return None


class Said:
    """The now files of some ranks and a clock, both moved by hand."""

    def __init__(self, path: Path, monkeypatch, *, timeout_s: float = 10.0) -> None:
        self.run, self.now = RunDir(path), 0.0
        (path / "log").mkdir()
        monkeypatch.setattr("paci_lab.runtime.watch.time.monotonic", lambda: self.now)
        self.watch = Watch(self.run, tiny(stages=2, updates=20).build_schedule(), 2, timeout_s=timeout_s)

    def say(self, *words: str) -> None:
        for rank, text in enumerate(words):
            self.run.now_file(rank).write_text(text.ljust(32))

    def after(self, seconds: float, *, steps: float = 0.5) -> dict | None:
        for _ in range(round(seconds / steps)):
            self.now += steps
            if (found := self.watch.look([Alive(), Alive()])) is not None:
                return found
        return None


@pytest.fixture
def said(tmp_path, monkeypatch) -> Said:
    found = Said(tmp_path, monkeypatch)
    found.say("0B4", "1B4")
    assert found.after(0.5) is None
    return found


def test_a_rank_that_works_too_long_is_found_and_one_that_waits_for_it_is_not(said):
    said.say("0F7 waiting", "1B5")
    assert said.after(9) is None
    found = said.after(5)
    assert found["message"].startswith(
        "rank 1 (stage 1) has not gone on for 10 s in operation 1B5 (micro-batch 5): it hangs"
    )
    assert said.watch.hung == 1


@pytest.mark.parametrize(
    "words, seconds", [(("0F1", "1F1"), 500), (("", ""), 500), (("0U4 saving", "1F7 waiting"), 500)]
)
def test_start_up_the_first_update_and_saving_may_take_long(tmp_path, monkeypatch, words, seconds):
    said = Said(tmp_path, monkeypatch)
    if "saving" in words[0]:
        said.say("0B4", "1B4"), said.after(1)
    said.say(*words)
    assert said.after(seconds) is None
    assert said.after(200)["rank"] == 0


def test_long_operations_that_are_usual_are_no_hang(said):
    for number in range(5, 8):
        said.say(f"0B{number}", f"1B{number}")
        assert said.after(4) is None
    said.say("0B8", "1B8")
    assert said.after(150) is None
    assert said.after(100) is not None


def test_time_in_which_the_watch_did_not_look_does_not_count(said):
    said.say("0B5", "1B5")
    assert said.after(50_000, steps=10_000) is None, "the machine slept"
    assert said.after(10) is not None


def test_a_message_that_never_comes_is_found_when_everybody_waits(said):
    said.say("0B5 waiting", "1F6 waiting")
    assert said.after(9) is None
    assert "its message never came" in said.after(5)["message"]


def test_no_timeout_never_ends_a_run(tmp_path, monkeypatch):
    said = Said(tmp_path, monkeypatch, timeout_s=0.0)
    said.say("0B4", "1B4")
    assert said.after(10_000, steps=1) is None


# -- no room ------------------------------


def test_a_file_that_cannot_grow_is_the_cause_that_is_named(tmp_path):
    """A limit on the size of files, which checkpoints of these stages exceed and nothing else does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        run = start(tmp_path / "run", stages=2, partition=[3, 3], evaluate_every=0, max_restarts=0)
        with pytest.raises(
            RunFailed, match="U9: OSError: the checkpoint after update 9 could not be written: .*too large"
        ):
            run.wait(PATIENCE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((run.path / "checkpoints").iterdir()) and not processes_of(run.path)


@pytest.mark.slow
def test_a_full_disk_is_the_cause_that_is_named(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", disk], capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        run = start(disk / "run", stages=2, partition=[3, 3], updates=100, max_restarts=0, keep_checkpoints=9)
        with pytest.raises(RunFailed, match="No space left on device"):
            run.wait(PATIENCE_S)
        assert newest(run.path)[0] is not None, "those before it are whole"
        assert not processes_of(run.path)
    finally:
        subprocess.run(["umount", disk], check=True)


# -- under torchrun, and the command ------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_starts_a_run_again_and_it_goes_on(tmp_path, rank):
    spec = tiny(**{**SAVED, "stages": 2, "partition": [2, 4]}, updates=150)
    run = launch_torchrun(spec, tmp_path / "run", max_restarts=2)
    wait_for_checkpoint(run, 19)
    kill([pid_of(run.path, f"rank{rank}")])
    result = run.wait(PATIENCE_S)
    (row,) = run.dir.restarts()
    assert (
        result["restarts"] == 1 and row["from_update"] >= 20 and row["cause"].startswith(f"rank {rank} (stage {rank})")
    )
    assert run.dir.failure() is None
    assert_undisturbed(run)


@pytest.mark.slow
def test_torchrun_resumes_and_ends_a_rank_that_stands_still(tmp_path):
    first = start(tmp_path / "first", updates=10, max_restarts=0)
    first.wait(PATIENCE_S)
    spec = first.spec.replace(stages=2, partition=[3, 3], microbatches=300)
    run = launch_torchrun(spec, tmp_path / "run", resume=first.path, max_restarts=1, hang_timeout_s=12.0)
    wait_for_checkpoint(run, 19)
    kill([pid_of(run.path, "rank1")], signal.SIGSTOP)
    assert run.wait(PATIENCE_S)["resumed_from"]["update"] == 9
    (row,) = run.dir.restarts()
    assert row["cause"].startswith("rank 1 (stage 1) has not gone on for ") and row["from_update"] >= 20
    assert run.dir.losses() == paci_lab.replay(spec, resume=first.path).losses
    wait_until(lambda: not processes_of(run.path), what="the end of every process")


@pytest.mark.slow
def test_a_killed_leader_is_started_again_by_torchrun(tmp_path):
    """Rank 0's process of torchrun, which is the agent: nobody writes down what happened, and still the run goes on."""
    run = launch_torchrun(
        tiny(**{**SAVED, "stages": 2, "partition": [2, 4]}, updates=150), tmp_path / "run", max_restarts=1
    )
    wait_for_checkpoint(run, 19)
    kill([pid_of(run.path, "agent")])
    run.wait(PATIENCE_S)
    (row,) = run.dir.restarts()
    assert "ended without a word" in row["cause"]
    assert_undisturbed(run)


@pytest.mark.slow
def test_two_nodes_start_again_together(tmp_path):
    spec = tiny(**{**SAVED, "stages": 2, "partition": [2, 4]}, updates=150)
    options = {"nodes": 2, "rdzv_endpoint": f"127.0.0.1:{free_port()}", "rdzv_id": "test", "max_restarts": 1}
    with open(tmp_path / "join.log", "wb") as log:
        join = subprocess.Popen(torchrun_command(spec, **options), stdout=log, stderr=log)
    run = launch_torchrun(spec, tmp_path / "run", **options)
    try:
        wait_for_checkpoint(run, 19)
        kill([pid_of(run.path, "rank1")])
        run.wait(PATIENCE_S)
    finally:
        run.stop()
        join.kill() if join.poll() is None and not run.dir.result() else None
    assert join.wait(PATIENCE_S) == 0, (tmp_path / "join.log").read_text()
    assert len(run.dir.restarts()) == 1
    assert_undisturbed(run)


@pytest.mark.slow
def test_torchrun_does_not_repeat_what_would_repeat_itself(tmp_path):
    spec = tiny(stages=2, window=1, optimizer="sgd", learning_rate=1e30)
    run = launch_torchrun(spec, tmp_path / "run", max_restarts=1)
    with pytest.raises(RunFailed, match="NonFiniteLoss"):
        run.wait(PATIENCE_S)
    assert run.dir.restarts() == []


def test_the_flags_and_their_values(tmp_path, capsys):
    assert torchrun_command(tiny(), max_restarts=3)[3:6] == ["--standalone", "--max-restarts", "3"]
    for flag, value in (("--max-restarts", "-1"), ("--hang-timeout", "-1"), ("--resume", str(tmp_path / "none"))):
        assert main(["train", "--run-dir", str(tmp_path / "run"), flag, value]) == 2
        assert "is not possible" in capsys.readouterr().err
    for bad in (True, 1.5, -1):
        with pytest.raises(InputError, match="max_restarts"):
            paci_lab.launch(tiny(), tmp_path / "run", max_restarts=bad)
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for flag in ("--resume", "--max-restarts", "--hang-timeout", "--checkpoint-every", "--keep-checkpoints"):
        assert flag in said
