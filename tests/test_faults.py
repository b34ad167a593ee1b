"""Ranks, agents and launchers that die in every way: the run ends within seconds, says why, and leaves no process."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_helpers import PATIENCE_S, kill, pid_of, processes_of, tiny, wait_until

import paci_lab
from paci_lab import RunFailed

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the processes of a run through /proc")

LIMIT_S = 100
"""From the fault to the end of the run, the one time that a test asserts: seconds on a machine that does nothing else,
and far below what a library waits of itself."""

LONG = {"schedule": "paci", "stages": 3, "window": 2, "updates": 100_000, "pace_forward_ms": 2, "pace_backward_ms": 4}
"""Would go on for half an hour."""

TROUBLE = """
import os
import torch
from paci_lab.data.stdlib import open_source


def rank():
    return os.readlink("/proc/self/fd/2").rpartition("/rank")[2].partition(".")[0]


def data(context, microbatch_size, seed):
    stream = open_source("stdlib", context=context, microbatch_size=microbatch_size, seed=seed)
    good = stream.train

    def train(microbatch):
        if microbatch == 5 and rank() == "{rank}":
            {trouble}
        return good(microbatch)

    stream.train = train
    return stream
"""


def start(path: Path, **changes) -> paci_lab.Run:
    return paci_lab.launch(tiny(**{**LONG, **changes}), path)


def in_steady_state(run: paci_lab.Run) -> None:
    """Until every stage has made a few updates."""
    wait_until(lambda: len(run.dir.metrics()) > 3 or not run.running, what="the steady state")
    assert run.running


def assert_ends_badly(run: paci_lab.Run, since: float = math.inf) -> str:
    """It fails in time, leaves no process, and its directory can be read. Returns the message."""
    with pytest.raises(RunFailed) as failure:
        run.wait(PATIENCE_S)
    wait_until(lambda: not processes_of(run.path), what="the end of every process")
    assert time.monotonic() - since < LIMIT_S
    assert run.dir.result() is None
    opened = paci_lab.open_run(run.path)
    with pytest.raises(RunFailed) as again:
        opened.result()
    assert str(again.value) == str(failure.value)
    opened.trace(), opened.dir.metrics(), opened.dir.validation()
    return str(failure.value)


# -- a rank is killed ------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_killed_in_the_steady_state_is_named_with_its_operation(tmp_path, rank):
    run = start(tmp_path / "run")
    in_steady_state(run)
    since = time.monotonic()
    kill([pid_of(run.path, f"rank{rank}")])
    message = assert_ends_badly(run, since)
    failure = run.dir.failure()
    assert message == failure["message"]
    assert message.startswith(f"rank {rank} (stage {rank}) failed in operation {failure['op']}")
    assert "killed by SIGKILL" in message and message.endswith(f"Its log: {run.path}/log/rank{rank}.log")
    assert failure["op"][:1] == str(rank) and failure["op"][1] in "FBU"
    if failure["op"][1] != "U":
        assert f"(micro-batch {failure['microbatch']})" in message and failure["op"][2:] == str(failure["microbatch"])
    trace = paci_lab.open_run(run.path).trace()
    assert len(trace) > 20 and trace.version_gap_max()[2] == 0
    assert len(run.dir.losses()) > 4


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_rank_killed_at_start_up_is_named(tmp_path, rank):
    run = start(tmp_path / "run")
    pid = pid_of(run.path, f"rank{rank}")
    since = time.monotonic()
    kill([pid])
    message = assert_ends_badly(run, since)
    assert message.startswith(f"rank {rank} (stage {rank}) failed in ") and "killed by SIGKILL" in message
    assert f"log/rank{rank}.log" in message


# -- a rank fails ------------------------------


@pytest.mark.parametrize(
    "rank, trouble, op, cause",
    [
        (0, "raise KeyError('no such token')", "0F5", "KeyError: 'no such token'"),
        (1, "raise MemoryError('no room for micro-batch 5')", "1F5", "MemoryError: no room for micro-batch 5"),
        (1, "os._exit(7)", "1F5", "ended with exit code 7"),
        (1, "good = lambda k: (None, torch.full((1, 16), 10**6))", "1F5", "Error"),  # a target out of the vocabulary
    ],
)
def test_a_rank_that_fails_is_named_with_operation_microbatch_and_cause(tmp_path, rank, trouble, op, cause):
    source = TROUBLE.format(rank=rank, trouble=trouble)
    if trouble.startswith("good"):
        source = source.replace(trouble, trouble.replace("good = lambda k:", "return"))
    (tmp_path / "trouble.py").write_text(source)
    run = start(tmp_path / "run", stages=2, data=f"{tmp_path}/trouble.py:data", pace_forward_ms=0, pace_backward_ms=0)
    message = assert_ends_badly(run)  # it fails by itself, some time after its start
    assert message.startswith(f"rank {rank} (stage {rank}) failed in operation {op} (micro-batch 5): ")
    assert cause in message and message.endswith(f"Its log: {run.path}/log/rank{rank}.log")
    if "exit code" not in cause:
        log = (run.path / "log" / f"rank{rank}.log").read_text()
        assert "Traceback" in log and ("trouble.py" in log or "cross_entropy" in log)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    run = start(
        tmp_path / "run", stages=2, window=1, optimizer="sgd", learning_rate=1e30, pace_forward_ms=0, pace_backward_ms=0
    )
    message = assert_ends_badly(run)
    assert message.startswith(
        "rank 1 (stage 1) failed in operation 1F1 (micro-batch 1): NonFiniteLoss: the loss of micro-batch 1 is nan"
    )
    assert run.dir.losses()[0] > 0  # what came before is there


def test_weights_that_the_last_update_loses_are_no_result(tmp_path):
    """Every training loss is finite, and still the run must not end well."""
    run = start(tmp_path / "run", stages=2, window=1, updates=1, optimizer="sgd", learning_rate=1e30, warmup=0.0)
    message = assert_ends_badly(run)
    assert "the validation loss after update 0 is nan" in message


# -- the processes around the ranks ------------------------------


def test_a_killed_agent_takes_its_ranks_along(tmp_path):
    run = start(tmp_path / "run")
    in_steady_state(run)
    assert len(processes_of(run.path)) == 5  # three ranks, the evaluator, the agent
    since = time.monotonic()
    kill([pid_of(run.path, "agent")])
    assert "was killed" in assert_ends_badly(run, since)


def test_an_agent_told_to_end_stops_the_run(tmp_path):
    run = start(tmp_path / "run")
    in_steady_state(run)
    since = time.monotonic()
    kill([pid_of(run.path, "agent")], signal.SIGTERM)
    assert assert_ends_badly(run, since).startswith("stopped by the user after update ")
    assert run.dir.failure()["stopped"] is True


def test_a_run_is_stopped_although_its_agent_does_not_answer(tmp_path):
    run = start(tmp_path / "run")
    in_steady_state(run)
    kill([pid_of(run.path, "agent")], signal.SIGSTOP)
    run.stop()
    assert run.dir.failure() == {"message": "stopped by the user", "stopped": True}
    assert len(run.trace()) > 0 and not processes_of(run.path)


def launched_by_another_process(path: Path) -> subprocess.Popen:
    code = (
        f"import paci_lab\nfrom engine_helpers import tiny\nrun = paci_lab.launch(tiny(**{LONG!r}), {str(path)!r})\n"
        "run.wait()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)


def test_a_killed_launcher_leaves_no_process(tmp_path):
    path = tmp_path / "run"
    launcher = launched_by_another_process(path)
    try:
        wait_until(
            lambda: path.joinpath("metrics.jsonl").exists() and paci_lab.open_run(path).dir.metrics(), what="the run"
        )
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: not processes_of(path), what="the end of every process")
    run = paci_lab.open_run(path)
    with pytest.raises(RunFailed, match="the process that started the run went away after update"):
        run.result()
    assert len(run.trace()) > 0


def test_a_launcher_killed_at_start_up_leaves_no_process(tmp_path):
    path = tmp_path / "run"
    launcher = launched_by_another_process(path)
    wait_until(lambda: processes_of(path), what="the first process of the run")
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not processes_of(path), what="the end of every process")


def test_a_killed_evaluator_ends_the_run(tmp_path):
    run = start(tmp_path / "run", stages=2)
    pid = pid_of(run.path, "evaluator")
    since = time.monotonic()
    kill([pid])
    assert assert_ends_badly(run, since) == f"the evaluator ended badly: see {run.path}/log/evaluator.log"


def test_ctrl_c_stops_the_command_and_every_rank(tmp_path):
    """As a terminal does it: SIGINT to the whole foreground process group."""
    path = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "paci_lab.cli",
        "train",
        "--model",
        "femto",
        "--stages",
        "3",
        "--window",
        "2",
        "--updates",
        "100000",
        "--device",
        "cpu",
        "--pace-forward-ms",
        "2",
        "--pace-backward-ms",
        "4",
        "--run-dir",
        str(path),
    ]
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_until(
        lambda: path.joinpath("metrics.jsonl").exists() and paci_lab.open_run(path).dir.metrics(), what="the run"
    )
    since = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - since < LIMIT_S
    assert process.returncode not in (0, None) and "Traceback" not in output
    assert processes_of(path) == {}
    run = paci_lab.open_run(path)
    assert len(run.trace()) > 0 and run.dir.failure()["stopped"] is True
