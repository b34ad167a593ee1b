"""Runs over several hosts, made on one machine: network namespaces with a cable between them, each with a disk."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
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
from paci_lab.models import build_model
from paci_lab.runtime import freight
from paci_lab.runtime.interface import interface_towards
from paci_lab.runtime.recorder import Recorder
from paci_lab.runtime.rundir import RunDir, write_json
from paci_lab.runtime.torchrun import launch_torchrun, torchrun_command

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the processes of a run through /proc")

LONG = {"stages": 2, "window": 2, "updates": 100_000, "partition": [3, 3], "pace_forward_ms": 2, "pace_backward_ms": 4}
"""Would go on for an hour."""

VANISHED_S = 180
"""From the loss of a host to the end of all ranks on both sides. The page promises 30; torch's store itself waits for
minutes, so what ends within this has been ended by us, on a busy machine too."""


def in_steady_state(run: RunDir) -> None:
    wait_until(lambda: run.metrics_file.exists() and len(run.metrics()) > 3, what="the steady state")


def started(command: list[str], said: Path) -> subprocess.Popen:
    """A process whose output is in the file `said`."""
    with open(said, "wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)


# -- what is shipped ------------------------------


def test_what_a_rank_writes_elsewhere_is_written_here_in_the_same_files(tmp_path):
    """While it writes; a file in several chunks; and an end at which all is there."""
    spec = tiny()
    run = RunDir(tmp_path / "run")
    run.create(spec, {})
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    taking = freight.Freight(run, store)
    there = freight.own_folder(spec.to_dict())
    connection = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=30))
    shipper = freight.Shipper(connection, 1, there)
    recorder = Recorder(there, 1, trace=True)
    there.log_file(1).touch()
    snapshot = there.snapshot(3, 1)
    snapshot.parent.mkdir()
    snapshot.write_bytes(weights := os.urandom(freight.CHUNK_BYTES + 7))
    recorder.update({"update": 3})
    shipper.start()

    def arrived(path: Path) -> bool:
        taking.take()
        return path.exists()

    wait_until(lambda: arrived(run.updates_file(1)), what="the first lines")
    assert run.snapshot(3, 1).read_bytes() == weights  # before the line that speaks of it
    assert not snapshot.exists()  # it is as large as the weights, and nobody reads it there
    from paci_lab.schedules import Op

    recorder.now(Op(1, "B", 7))
    recorder.event(1, "F", 0, 0, 5, 0, 0)
    recorder.update({"update": 4})
    recorder.close()
    lines = {path: path(there).read_bytes() for path in (of_trace, of_updates, of_now)}
    shipper.finish()
    taking.take()
    assert {path: path(run).read_bytes() for path in lines} == lines
    assert run.log_file(1).exists() and not there.path.exists()
    assert store.num_keys() < 5  # what was written is not kept


def of_trace(run: RunDir) -> Path:
    return run.trace_file(1)


def of_updates(run: RunDir) -> Path:
    return run.updates_file(1)


def of_now(run: RunDir) -> Path:
    return run.now_file(1)


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/hosts", "trace/rank2.jsonl", "result.json", "snapshots/../spec.toml"]
)
def test_a_rank_ships_its_own_files_alone(tmp_path, name):
    run = RunDir(tmp_path / "run")
    run.create(tiny(), {})
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    taking = freight.Freight(run, store)
    store.append("ships", "1\n")
    store.set("ship/1/0", json.dumps({"file": name, "at": 0, "of": None}) + "\nx")
    with pytest.raises(ValueError, match="not its own"):
        taking.take()


def test_a_folder_of_the_same_name_is_not_taken_for_the_leaders(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create(tiny(), {})
    word = freight.sign(run)
    assert freight.sees(run, word)
    assert freight.sign(run) == word, "a run that is started again is the same one"
    (run.path / "log" / "agent.log").unlink()
    freight.sign(run)  # what another run left at the same place of another host's disk
    assert not freight.sees(run, word)
    assert not freight.sees(RunDir(tmp_path / "nowhere"), word)


def without_the_folder(folder: Path) -> list[str]:
    """The words in front of a command to which `folder` is empty, as on another host's disk."""
    words = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("no right to make a mount namespace, which stands for a host with a disk of its own")
    return words


@pytest.mark.slow
def test_a_run_without_a_shared_disk_is_the_run_with_one(tmp_path, monkeypatch):
    """Evaluations too: the weights of the other node's stages come over the network, and not only its lines."""
    for name in ("disk", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    spec = tiny(stages=4, partition=[1, 2, 1, 2], window=2, updates=12, evaluate_every=6)
    options = {"nodes": 2, "rdzv_endpoint": f"127.0.0.1:{free_port()}", "rdzv_id": uuid.uuid4().hex}
    joined = started(
        [*without_the_folder(tmp_path / "disk"), *torchrun_command(spec, **options)], tmp_path / "joined.txt"
    )
    run = launch_torchrun(spec, tmp_path / "disk" / "run", **options)
    try:
        run.wait(PATIENCE_S)
    finally:
        run.stop()
    assert joined.wait(PATIENCE_S) == 0, (tmp_path / "joined.txt").read_text()
    assert_run_is_replay(run)
    local = run_to_end(run.spec, tmp_path / "local")

    def files(of: paci_lab.Run) -> set[Path]:
        return {path.relative_to(of.path) for path in of.path.rglob("*") if path.is_file()}

    assert files(run) == files(local) | {Path("clock.json")}
    assert not list((tmp_path / "elsewhere").glob("paci-lab-*"))  # nothing is left on the other host


@pytest.mark.slow
def test_a_rank_killed_where_the_disk_is_not_shared_is_named_and_what_it_said_is_there(tmp_path, monkeypatch):
    for name in ("disk", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    spec = tiny(**LONG)
    options = {"nodes": 2, "rdzv_endpoint": f"127.0.0.1:{free_port()}", "rdzv_id": uuid.uuid4().hex}
    joined = started(
        [*without_the_folder(tmp_path / "disk"), *torchrun_command(spec, **options)], tmp_path / "joined.txt"
    )
    run = launch_torchrun(spec, tmp_path / "disk" / "run", **options)
    in_steady_state(run.dir)
    (folder,) = (tmp_path / "elsewhere").glob("paci-lab-*")
    kill([pid_of(folder, "rank1")])
    with pytest.raises(RunFailed, match=r"^rank 1 \(stage 1\) failed in operation 1[FBU].*Its log: .*/log/rank1.log"):
        run.wait(PATIENCE_S)
    assert joined.wait(PATIENCE_S) != 0
    assert not processes_of(run.path) and not processes_of(folder)
    theirs, ours = folder.joinpath("updates", "rank1.jsonl").read_bytes(), run.dir.updates_file(1).read_bytes()
    assert theirs.startswith(ours) and len(run.dir.updates(1)) > 3
    assert len(run.trace().of_kind("F")) > 8


# -- hosts with a cable between them ------------------------------


@dataclasses.dataclass(frozen=True)
class Cable:
    """Two hosts: names of their network namespaces, with addresses 10.77.0.1 and 10.77.0.2 on interface "cable"."""

    names: tuple[str, str]

    def on(self, host: int, *command: str) -> list[str]:
        """The words that run a command on one of the hosts."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def torchrun(self, host: int, port: int, *arguments: object) -> list[str]:
        """torchrun there: with an address of its own, for the hosts of this machine share their name."""
        command = torchrun_command(tiny(stages=2), nodes=2, rdzv_endpoint=f"10.77.0.1:{port}", rdzv_id="cable")
        place = ["--rdzv-conf", f"is_host={'false' if host else 'true'}", "--local-addr", f"10.77.0.{host + 1}"]
        at = command.index("--nnodes")
        return self.on(host, *command[:at], *place, *command[at:], *map(str, arguments))

    def processes(self, host: int) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.names[host]], capture_output=True, text=True, check=True)
        return [int(pid) for pid in found.stdout.split()]


def lives(pid: int) -> bool:
    """Not ended; one whose torchrun still waits for its store, and has not noticed, is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def cable() -> Iterator[Cable]:
    """Two hosts; skipped where they cannot be made."""
    made = Cable((f"paci-a-{uuid.uuid4().hex[:6]}", f"paci-b-{uuid.uuid4().hex[:6]}"))
    if shutil.which("ip") is None:
        pytest.skip("no command ip (package iproute2), which makes the network namespaces that stand for hosts")
    try:
        for name in made.names:
            _ip("netns", "add", name)
        _ip(
            "link",
            "add",
            "cable",
            "netns",
            made.names[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            made.names[1],
        )
        for number, name in enumerate(made.names, 1):
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            for link in ("lo", "cable"):
                _ip("-n", name, "link", "set", link, "up")
        yield made
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no right to make network namespaces, which stand for hosts: {error.stderr.strip()}")
    finally:
        for host, name in enumerate(made.names):
            if name in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout:
                kill(made.processes(host))
                _ip("netns", "del", name)


@pytest.mark.slow
@pytest.mark.parametrize("leads", [0, 1])
def test_a_host_that_vanishes_ends_the_run_and_is_named(cable, tmp_path, monkeypatch, leads):
    """The host of the command stays, and the one where torchrun keeps its store, or the one without, goes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tiny(**LONG).save(tmp_path / "spec.toml")
    asked = [tmp_path / "spec.toml", "--run-dir", tmp_path / "run"]
    sides = [
        started(cable.torchrun(host, 29511, *(asked if host == leads else [])), tmp_path / f"{host}.txt")
        for host in (0, 1)
    ]
    run = RunDir(tmp_path / "run")
    in_steady_state(run)
    before = {host: set(cable.processes(host)) for host in (0, 1)}
    _ip("-n", cable.names[0], "link", "set", "cable", "down")
    failure = wait_until(run.failure, timeout_s=VANISHED_S, what="the end of the run")
    assert failure["message"].startswith("nothing is heard of the host of rank 1: ") and failure["ranks"] == [1]
    wait_until(lambda: failure["message"] in (tmp_path / f"{leads}.txt").read_text(), what="the message on the screen")
    ranks = [pid for pid in set.union(*before.values()) if pid not in {side.pid for side in sides}]
    wait_until(lambda: not [pid for pid in ranks if lives(pid)], timeout_s=VANISHED_S, what="the end of every rank")
    assert len(run.trace()) > 20
    for side in sides:  # torchrun itself asks its store for longer
        side.kill()
        side.wait(PATIENCE_S)


@pytest.mark.slow
def test_a_slow_link_makes_a_run_slower_and_nothing_else(cable, tmp_path):
    """20 kilobytes a second: nothing can be faster than its messages, each of which takes 100 ms."""
    for name in cable.names:
        slow = [
            "tc",
            "qdisc",
            "add",
            "dev",
            "cable",
            "root",
            "tbf",
            "rate",
            "160kbit",
            "burst",
            "2kb",
            "latency",
            "10s",
        ]
        made = subprocess.run(["ip", "netns", "exec", name, *slow], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no right or no kernel module to slow a link down: {made.stderr.strip()}")
    spec = tiny(stages=2, partition=[3, 3], window=4, updates=4)
    spec.save(tmp_path / "spec.toml")
    other = started(cable.torchrun(1, 29512), tmp_path / "1.txt")
    first = cable.torchrun(0, 29512, tmp_path / "spec.toml", "--run-dir", tmp_path / "run")
    first = started(first, tmp_path / "0.txt")
    assert first.wait(PATIENCE_S) == 0, (tmp_path / "0.txt").read_text()
    assert other.wait(PATIENCE_S) == 0
    run = paci_lab.open_run(tmp_path / "run")
    assert_run_is_replay(run)
    size = 4 * math.prod(build_model(spec.model, context=spec.context).boundary_shape(1))
    messages_s = (spec.total_microbatches * size - 2048) / 20_000  # one way; what the bucket holds at first is free
    assert run.trace().makespan_ns / 1e9 > messages_s > 0.5
    assert run.dir.environment()["hosts"] == 2


def test_the_interface_is_the_one_that_leads_to_the_others(cable):
    ask = "from paci_lab.runtime.interface import interface_towards as to\n"
    ask += "print(to('10.77.0.1'), to('127.0.0.1'), to('no.such'))"
    for host in (0, 1):
        said = subprocess.run(cable.on(host, sys.executable, "-c", ask), capture_output=True, text=True, check=True)
        assert said.stdout.split() == ["cable", "lo", "None"]


def test_loopback_leads_to_this_host():
    assert interface_towards("localhost") == interface_towards("127.0.0.1") == "lo"


# -- ports ------------------------------


def listening(pids: list[int]) -> list[str]:
    """Addresses that these processes listen on, in the kernel's hexadecimal."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if (name := os.readlink(link)).startswith("socket:["):
                    inodes.add(name[8:-1])
            except OSError:  # closed while we looked
                continue
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            state = "0A" if table.startswith("tcp") else "07"
            if words[3] == state and words[9] in inodes:
                found.append(words[1].partition(":")[0])
    return found


def test_runs_at_once_listen_on_loopback_alone_and_do_not_meet(tmp_path):
    long = paci_lab.launch(tiny(**LONG), tmp_path / "long")
    try:
        wait_until(lambda: long.dir.metrics_file.exists() and long.dir.metrics(), what="the first update")
        addresses = listening(list(processes_of(long.path)))
        assert len(addresses) >= 3 and set(addresses) == {"0100007F"}  # the agent's store, and each rank's own
        assert_run_is_replay(run_to_end(tiny(stages=2, partition=[3, 3], seed=1), tmp_path / "short"))
        assert long.running
    finally:
        long.stop()


def test_a_port_that_is_taken_is_named_before_anything_starts(tmp_path):
    """By a program that is no torchrun; a torchrun that came first is joined."""
    spec = tiny(stages=2, partition=[3, 3])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"another program of this node listens on port {port}"):
            launch_torchrun(spec, tmp_path / "run", nodes=2, rdzv_endpoint=f"127.0.0.1:{port}")
    assert not list(tmp_path.iterdir())


# -- clocks ------------------------------


def clock(*, offset: int = 0, uncertainty: int = 1000, end: int | None = None) -> dict:
    last = {"clock_offset_end_ns": end, "uncertainty_end_ns": None if end is None else uncertainty}
    other = {"rank": 1, "host": 1, "clock_offset_ns": offset, "uncertainty_ns": uncertainty, **last}
    return {"hosts": 2, "ranks": [{"rank": 0, "host": 0, "clock_offset_ns": 0, "uncertainty_ns": 0}, other]}


@pytest.mark.parametrize(
    "hosts, measured, words",
    [
        (1, None, ""),
        (2, clock(offset=10**12), ""),
        (2, clock(offset=10**12, end=10**12 + 10**5), ""),
        (2, None, "the clocks of its 2 hosts were not measured"),
        (2, {"hosts": 2, "ranks": []}, "the clocks of its 2 hosts were not measured"),
        (2, clock(uncertainty=5 * 10**6), "agree to 5 ms only, more than its shortest operation takes (1 ms)"),
        (2, clock(offset=10**12, end=10**12 + 3 * 10**6), "agree to 3 ms only"),
    ],
)
def test_times_that_cannot_be_compared_are_labelled(tmp_path, hosts, measured, words):
    """Everywhere a trace is named: its source is in the heading of every chart and in the words under it."""
    run = RunDir(tmp_path / "run")
    run.create(tiny(stages=2, partition=[3, 3]), {"hosts": hosts})
    event = {
        "stage": 0,
        "rank": 0,
        "op": "F",
        "microbatch": 0,
        "start_ns": 0,
        "end_ns": 10**6,
        "version": 0,
        "update": 0,
    }
    run.trace_file(0).write_text(json.dumps(event) + "\n")
    if measured is not None:
        write_json(run.path / "clock.json", measured)
    source = run.trace().source
    assert source == "measured" if not words else source.startswith("measured; ") and words in source
