"""Runs over several hosts, made on one machine: each a network namespace, some without the disk of the first."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
from engine_helpers import assert_run_is_replay, kill, pid_of, processes_of, run_to_end, tiny, wait_until

import paci_lab
from paci_lab import RunFailed
from paci_lab.runtime.rundir import RunDir
from paci_lab.runtime.torchrun import launch_torchrun, torchrun_command

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the processes of a run through /proc")

LONG = {"stages": 2, "window": 2, "updates": 100_000, "partition": [3, 3], "pace_forward_ms": 2, "pace_backward_ms": 4}
"""Would go on for an hour."""

VANISHED_S = 30
"""From the loss of a host to the end of the run and of all ranks on both sides: what the project promises."""


def started(command: list[str], folder: Path, name: str) -> subprocess.Popen:
    """A process whose output is `folder`/`name`."""
    with open(folder / name, "wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)


def ended(process: subprocess.Popen, said: Path) -> str:
    """What it said; it ends well."""
    assert process.wait(120) == 0, said.read_text()
    return said.read_text()


def in_steady_state(run: paci_lab.Run, joined: subprocess.Popen) -> None:
    wait_until(lambda: run.dir.metrics_file.exists() and len(run.dir.metrics()) > 3, what="the steady state")
    assert joined.poll() is None


def ranks_in(folder: Path) -> dict[int, str]:
    """Live processes of Python whose environment says that they belong to the test with this folder."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"PACI_LAB_TEST_FOLDER={folder}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return {pid: command for pid, command in found.items() if "paci_lab.train" in command or "torch" in command}


# -- one machine whose nodes do not see the same folder ------------------------------


def without_the_folder(folder: Path) -> list[str]:
    """The words in front of a command to which `folder` is empty, as on another host's disk; none where not allowed."""
    words = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("no right to make a mount namespace, which stands for a host with a disk of its own")
    return words


def two_nodes(tmp_path: Path, port: int, changes: dict, *, second: list[str]) -> tuple[paci_lab.Run, subprocess.Popen]:
    """A run of this node and of another, started by `second` in front of the command that joins."""
    spec = tiny(**{"stages": 4, "partition": [1, 2, 1, 2], "window": 2, **changes})
    options = {"nodes": 2, "rdzv_endpoint": f"127.0.0.1:{port}", "rdzv_id": uuid.uuid4().hex}
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    joined = started([*second, *torchrun_command(spec, **options)], tmp_path, "joined.txt")
    return launch_torchrun(spec, tmp_path / "disk" / "run", **options), joined


@pytest.mark.slow
def test_a_run_without_a_shared_disk_is_the_run_with_one(tmp_path, monkeypatch):
    """Evaluations too: the weights of the other node's stages come over the network, and not only its lines."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    run, joined = two_nodes(
        tmp_path, 29571, {"updates": 12, "evaluate_every": 6}, second=without_the_folder(tmp_path / "disk")
    )
    try:
        run.wait(120)
    finally:
        run.stop()
    ended(joined, tmp_path / "joined.txt")
    assert_run_is_replay(run)
    local = run_to_end(run.spec, tmp_path / "local")
    files = lambda of: {p.relative_to(of.path) for p in of.path.rglob("*") if p.is_file()}  # noqa: E731
    assert files(run) == files(local) | {Path("clock.json")}
    assert "NNPACK" not in (run.path / "log" / "rank3.log").read_text()  # it is there, and holds nothing special
    assert not list((tmp_path / "elsewhere").iterdir())  # what was shipped is not left on the other host


@pytest.mark.slow
def test_a_rank_killed_where_the_disk_is_not_shared_is_named_and_what_it_said_is_there(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    run, joined = two_nodes(tmp_path, 29572, LONG, second=without_the_folder(tmp_path / "disk"))
    in_steady_state(run, joined)
    (folder,) = wait_until(lambda: list((tmp_path / "elsewhere").iterdir()), what="the other node's folder")
    wait_until(lambda: len(run.dir.updates(1)) > 3, what="shipped lines")
    kill([pid_of(folder, "rank1")])
    with pytest.raises(RunFailed, match=r"^rank 1 \(stage 1\) failed in operation 1[FBU].*Its log: .*/log/rank1.log"):
        run.wait(60)
    assert joined.wait(60) != 0
    assert not processes_of(run.path) and not processes_of(folder)
    # It shipped five times a second, so what it wrote later than that is all that is lost.
    theirs, ours = RunDir(folder).updates(1), run.dir.updates(1)
    assert ours == theirs[: len(ours)] and theirs[-1]["end_ns"] - ours[-1]["end_ns"] < 3e9
    assert len(run.trace().of_kind("F")) > 20
