"""Runs under torchrun: the same numbers, the same run directory, the same ends as under `launch`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_helpers import (
    PATIENCE_S,
    assert_run_is_replay,
    free_port,
    kill,
    pid_of,
    processes_of,
    run_to_end,
    tiny,
    wait_until,
)

import paci_lab
from paci_lab import InputError, RunFailed
from paci_lab.cli import main
from paci_lab.runtime.torchrun import launch_torchrun, torchrun_command
from tuning.launchers import open_launcher

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the processes of a run through /proc")

LONG = {"stages": 2, "window": 2, "updates": 100_000, "pace_forward_ms": 2, "pace_backward_ms": 4}
"""Would go on for an hour."""

TROUBLE = """
import os
from paci_lab.data.stdlib import open_source


def data(context, microbatch_size, seed):
    stream = open_source("stdlib", context=context, microbatch_size=microbatch_size, seed=seed)
    good = stream.train

    def train(microbatch):
        if microbatch == 5 and "/rank1." in os.readlink("/proc/self/fd/2"):
            raise KeyError("no such token")
        return good(microbatch)

    stream.train = train
    return stream
"""


def torchrun(*arguments: object, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def one_node(ranks: int, *arguments: object) -> subprocess.Popen:
    return torchrun("--standalone", "--nproc-per-node", ranks, "-m", "paci_lab.train", *arguments)


def said_by(process: subprocess.Popen) -> str:
    """What it and its ranks printed, when it has ended."""
    return process.communicate(timeout=PATIENCE_S)[0]


def start(tmp_path: Path, **changes) -> paci_lab.Run:
    return launch_torchrun(tiny(**{**LONG, **changes}), tmp_path / "run")


def in_steady_state(run: paci_lab.Run) -> None:
    wait_until(lambda: len(run.dir.metrics()) > 3 or not run.running, what="the steady state")
    assert run.running


def assert_ends_badly(run: paci_lab.Run) -> str:
    """It fails, leaves no process, and its directory can be read. Returns the message."""
    with pytest.raises(RunFailed):
        run.wait(PATIENCE_S)
    wait_until(lambda: not processes_of(run.path), what="the end of every process")
    with pytest.raises(RunFailed) as failure:  # where torchrun itself was killed, the leader writes it down after that
        run.result()
    opened = paci_lab.open_run(run.path)
    opened.trace(), opened.dir.metrics(), opened.dir.validation()
    assert opened.dir.result() is None
    return str(failure.value)


# -- the same numbers ------------------------------


def test_a_run_under_torchrun_is_the_run_under_launch(tmp_path):
    """Of the command of a terminal; with evaluations and a window that closes early."""
    spec = tiny(updates=None, microbatches=11, window=3, partition=[2, 4], evaluate_every=4, dropout=0.1)
    spec.save(tmp_path / "spec.toml")
    process = one_node(2, tmp_path / "spec.toml", "--run-dir", tmp_path / "run")
    said = said_by(process)
    assert process.returncode == 0, said
    run, local = paci_lab.open_run(tmp_path / "run"), run_to_end(spec, tmp_path / "local")
    assert_run_is_replay(run)
    assert run.dir.losses() == local.dir.losses()
    ours, theirs = run.dir.parameters(), local.dir.parameters()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert run.spec == local.spec
    measured = ("time", "seconds", "second", "utilization", "bubble", "memory")
    given, expected = run.result(), local.result()
    assert given.keys() == expected.keys()
    for name in given:
        if not any(word in name for word in measured):
            assert given[name] == expected[name], name
    assert {path.name for path in run.path.iterdir()} == {path.name for path in local.path.iterdir()} | {"clock.json"}
    clock = json.loads((run.path / "clock.json").read_text())
    assert clock["hosts"] == 1 and [rank["clock_offset_ns"] for rank in clock["ranks"]] == [0, 0]
    assert "host" not in said and not processes_of(run.path)


@pytest.mark.slow
def test_three_ranks_with_flags_and_threads_are_the_replay(tmp_path):
    """Two threads a rank: nothing is forked then."""
    tiny().save(tmp_path / "spec.toml")
    flags = ["--stages", 3, "--partition", "[1,2,3]", "--threads", 2, "--run-dir", tmp_path / "run"]
    process = one_node(3, tmp_path / "spec.toml", *flags)
    assert said_by(process) is not None and process.returncode == 0
    run = paci_lab.open_run(tmp_path / "run")
    assert run.result()["stages"] == 3
    assert run.dir.losses() == paci_lab.replay(run.spec).losses


@pytest.mark.slow
def test_a_rendezvous_without_a_store_of_torchrun(tmp_path):
    """A fixed master address: rank 0 has to serve the store itself."""
    tiny(partition=[3, 3]).save(tmp_path / "spec.toml")
    static = ["--nnodes", 1, "--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", free_port()]
    run = [tmp_path / "spec.toml", "--run-dir", tmp_path / "run"]
    process = torchrun(*static, "--nproc-per-node", 2, "-m", "paci_lab.train", *run)
    said = said_by(process)
    assert process.returncode == 0, said
    assert_run_is_replay(paci_lab.open_run(tmp_path / "run"))


# -- the ends ------------------------------


@pytest.mark.slow
def test_a_target_that_is_reached_ends_the_run_well(tmp_path):
    run = start(tmp_path, target_loss=5.4, evaluate_every=10, learning_rate=0.01, learning_rate_schedule="constant")
    result = run.wait(PATIENCE_S)
    assert result["reached"] is True and result["updates"] < 100_000
    wait_until(lambda: not processes_of(run.path), what="the end of every process")
    assert run.dir.failure() is None


def test_a_rank_that_fails_is_named_with_operation_and_cause(tmp_path):
    (tmp_path / "trouble.py").write_text(TROUBLE)
    run = start(tmp_path, data=f"{tmp_path}/trouble.py:data")
    message = assert_ends_badly(run)
    assert message == (
        "rank 1 (stage 1) failed in operation 1F5 (micro-batch 5): KeyError: 'no such token'. "
        f"Its log: {run.path}/log/rank1.log"
    )
    failure = run.dir.failure()
    assert (failure["rank"], failure["stage"], failure["op"], failure["microbatch"]) == (1, 1, "1F5", 5)
    assert "Traceback" in (run.path / "log" / "rank1.log").read_text()
    assert run._agent.returncode == 1
    assert message in (tmp_path / "jobs" / "run.log").read_text()  # what a terminal would have shown


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_is_named(tmp_path, rank):
    run = start(tmp_path)
    in_steady_state(run)
    kill([pid_of(run.path, f"rank{rank}")])
    message = assert_ends_badly(run)
    failure = run.dir.failure()
    assert message.startswith(f"rank {rank} (stage {rank}) failed in operation {failure['op']}") and "killed" in message
    assert failure["op"][:1] == str(rank) and len(run.trace()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_torchrun_stops_the_run(tmp_path, number):
    run = start(tmp_path)
    in_steady_state(run)
    kill([run._agent.pid], number)
    assert assert_ends_badly(run).startswith("stopped by the user after update ")
    assert run.dir.failure()["stopped"] is True and len(run.trace()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrun", "agent", "evaluator"])
def test_a_killed_process_around_the_ranks_leaves_none(tmp_path, name):
    run = start(tmp_path)
    in_steady_state(run)
    kill([run._agent.pid if name == "torchrun" else pid_of(run.path, name)])
    message = assert_ends_badly(run)
    assert ("torchrun went away" if name == "torchrun" else "was killed" if name == "agent" else name) in message


@pytest.mark.slow
def test_the_run_ends_with_the_process_that_started_it(tmp_path):
    code = (
        "from paci_lab.runtime.torchrun import launch_torchrun\nfrom engine_helpers import tiny\n"
        f"launch_torchrun(tiny(**{LONG!r}), {str(tmp_path / 'run')!r}).wait()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    starter = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), what="the run")
    starter.kill()
    starter.wait()
    wait_until(lambda: not processes_of(tmp_path / "run"), what="the end of every process")
    with pytest.raises(RunFailed, match="the process that started the run went away"):
        paci_lab.open_run(tmp_path / "run").result()


# -- what is refused ------------------------------


def test_a_wrong_number_of_processes_is_one_message_and_exit_code_2(tmp_path):
    tiny(stages=3).save(tmp_path / "spec.toml")
    process = one_node(2, tmp_path / "spec.toml", "--run-dir", tmp_path / "run")
    said = said_by(process)
    assert process.returncode != 0 and set(re.findall(r"exitcode *: (\d+)", said)) == {"2"}
    assert said.count("paci_lab.train: torchrun's processes = 2 is not possible: allowed is 3") == 1
    assert not (tmp_path / "run").exists()


def refused_alone(**variables: str) -> str:
    """A process as torchrun would start it, without torchrun."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-m", "paci_lab.train"], env={**environment, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
def test_without_torchrun_is_refused():
    assert "torchrun --standalone --nproc-per-node STAGES -m paci_lab.train SPEC.toml" in refused_alone()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"nodes": 2}, "rdzv-endpoint"),
        ({"nodes": 2, "rdzv_endpoint": "first"}, "rdzv-endpoint"),
        ({"nodes": 1, "rdzv_endpoint": "first:29400"}, "rdzv-endpoint"),
        ({"nodes": 3, "rdzv_endpoint": "first:29400"}, "nodes"),
        ({"nodes": 0}, "nodes"),
    ],
)
def test_a_command_that_torchrun_could_not_run_is_refused(options, what):
    with pytest.raises(InputError) as refusal:
        torchrun_command(tiny(stages=2), **options)
    assert refusal.value.what == what


def test_what_cannot_run_is_refused_before_torchrun_is_started(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="a new or empty folder"):
        launch_torchrun(tiny(), tmp_path / "full")
    with pytest.raises(InputError, match="model"):
        launch_torchrun(tiny(model="no-such"), tmp_path / "run")
    assert not (tmp_path / "jobs").exists()


# -- several nodes ------------------------------


def two_nodes(tmp_path: Path, second: list[str], **changes) -> paci_lab.Run:
    """The controller's node, and a second one, started by `second` in front of the command that joins."""
    spec = tiny(**{"stages": 4, "partition": [1, 2, 1, 2], "window": 2, "updates": 40, **changes})
    options = {"nodes": 2, "rdzv_endpoint": f"127.0.0.1:{free_port()}", "rdzv_id": "test"}
    join = subprocess.Popen(
        [*second, *torchrun_command(spec, **options)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    run = launch_torchrun(spec, tmp_path / "run", **options)
    try:
        run.wait(PATIENCE_S)
    finally:
        run.stop()
        said = said_by(join)
    assert join.returncode == 0, said
    assert_run_is_replay(run)
    assert not processes_of(run.path)
    return run


@pytest.mark.slow
def test_two_nodes_share_the_ranks_and_one_of_them_needs_no_spec(tmp_path):
    run = two_nodes(tmp_path, [])
    assert run.dir.environment()["hosts"] == 1  # torchrun's two nodes are one machine


def _own_host() -> list[str]:
    """The words in front of a command that give it a clock of its own; none where that is not allowed."""
    words = ["unshare", "--time", "--monotonic", "1000", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        return []
    return words


@pytest.mark.slow
def test_the_clock_of_another_host_is_measured_and_taken_off(tmp_path, monkeypatch):
    other = _own_host()
    if not other:
        pytest.skip("no right to make a time namespace, which stands for a host with a clock of its own")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # for several hosts this is the user's to say
    run = two_nodes(tmp_path, other, pace_forward_ms=5.0, pace_backward_ms=10.0)
    clock = json.loads((run.path / "clock.json").read_text())
    assert clock["hosts"] == run.dir.environment()["hosts"] == 2
    hosts = [rank["host"] for rank in clock["ranks"]]
    assert hosts == [0, 0, 1, 1]
    ahead = {0: 0, 1: 1000 * 10**9 if clock["ranks"][2]["clock_offset_ns"] > 0 else -1000 * 10**9}
    for rank in clock["ranks"]:
        for when in ("", "_end"):
            error = abs(rank[f"clock_offset{when}_ns"] - ahead[rank["host"]])
            assert error <= rank[f"uncertainty{when}_ns"] < 10**9
        assert rank["drifted"] is False  # the same clock, seen from two places
    # On one clock, no backward of a stage begins before its forward on the next stage has.
    begins = {(e.op, e.stage, e.microbatch): e.start_ns for e in run.trace() if e.op in "FB"}
    assert all(begins["F", s, m] < begins["F", s + 1, m] for _, s, m in begins if s < 3)
    assert run.result()["wall_time_s"] < 900


@pytest.mark.slow
def test_a_rank_killed_on_another_host_is_named(tmp_path, monkeypatch):
    other = _own_host()
    if not other:
        pytest.skip("no right to make a time namespace, which stands for a host with a clock of its own")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    options = {"nodes": 2, "rdzv_endpoint": f"127.0.0.1:{free_port()}", "rdzv_id": "test"}
    spec = tiny(**LONG)
    join = subprocess.Popen(
        [*other, *torchrun_command(spec, **options)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    run = launch_torchrun(spec, tmp_path / "run", **options)
    in_steady_state(run)
    kill([pid_of(run.path, "rank1")])
    # One rank on a host: whether the host went with it, nobody here can see.
    message = assert_ends_badly(run)
    assert message.startswith("nothing is heard of the host of rank 1: rank 1 (stage 1) failed in operation 1")
    assert join.wait(PATIENCE_S) != 0


@pytest.mark.slow
def test_a_run_of_two_nodes_that_is_stopped_on_one_says_so(tmp_path):
    options = {"nodes": 2, "rdzv_endpoint": f"127.0.0.1:{free_port()}", "rdzv_id": "test"}
    spec = tiny(**LONG)
    join = subprocess.Popen(torchrun_command(spec, **options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = launch_torchrun(spec, tmp_path / "run", **options)
    in_steady_state(run)
    run.stop()
    assert assert_ends_badly(run).startswith("stopped by the user after update ")
    assert run.dir.failure()["stopped"] is True
    assert join.wait(PATIENCE_S) != 0


# -- the commands over it ------------------------------


@pytest.mark.slow
def test_the_command_prints_and_runs_torchrun(tmp_path, capsys):
    flags = ["--stages", "2", "--partition", "[3,3]", "--window", "2", "--updates", "3", "--device", "cpu"]
    flags += ["--model", "femto", "--validation-batches", "1", "--run-dir", str(tmp_path / "run"), "--json", "-"]
    assert main(["train", "--launcher", "torchrun", *flags]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == paci_lab.open_run(tmp_path / "run").result()
    command = next(line for line in printed.err.splitlines() if "torch.distributed.run --standalone" in line)
    assert command.endswith(f"-m paci_lab.train {tmp_path}/jobs/run.toml --run-dir {tmp_path}/run")


@pytest.mark.parametrize(
    "flags", [["--nodes", "2"], ["--rdzv-endpoint", "a:1"], ["--launcher", "torchrun", "--nodes", "2"]]
)
def test_flags_of_several_nodes_that_do_not_fit_are_one_message(tmp_path, capsys, flags):
    assert main(["train", "--run-dir", str(tmp_path / "run"), *flags]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("paci-lab train: ") and "is not possible" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ctrl_c_stops_the_command_torchrun_and_every_rank(tmp_path):
    path = tmp_path / "run"
    tiny(**LONG).save(tmp_path / "spec.toml")
    command = [sys.executable, "-m", "paci_lab.cli", "train", "--launcher", "torchrun", str(tmp_path / "spec.toml")]
    process = subprocess.Popen(
        [*command, "--run-dir", str(path)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: (path / "metrics.jsonl").exists() and paci_lab.open_run(path).dir.metrics(), what="the run")
    os.killpg(process.pid, signal.SIGINT)
    said = said_by(process)
    assert process.returncode == 130 and "Traceback" not in said
    wait_until(lambda: not processes_of(path), what="the end of every process")
    assert paci_lab.open_run(path).dir.failure()["stopped"] is True


@pytest.mark.slow
def test_the_tuners_launcher_runs_and_stops_a_trial(tmp_path):
    launcher = open_launcher("torchrun", {})
    job = launcher.start(tiny(partition=[3, 3]), tmp_path / "trials" / "paci-0000")
    assert job.state() == "running"
    wait_until(lambda: job.state() == "ended", what="the end of the trial")
    assert paci_lab.open_run(tmp_path / "trials" / "paci-0000").result()["updates"] == 4
    job = launcher.start(tiny(**LONG), tmp_path / "trials" / "paci-0001")
    job.stop()
    wait_until(lambda: job.state() == "ended", what="the end of the trial")
    wait_until(lambda: not processes_of(tmp_path / "trials" / "paci-0001"), what="the end of its ranks")
