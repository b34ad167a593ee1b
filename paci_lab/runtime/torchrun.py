"""Start a run under torchrun: on this node, or on several that meet at an address."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from paci_lab.errors import InputError, RunFailed
from paci_lab.runtime.checkpoint import open_checkpoint
from paci_lab.runtime.launch import Run, check_launch, new_folder
from paci_lab.runtime.resume import adopt
from paci_lab.runtime.rundir import RunDir
from paci_lab.runtime.watch import HANG_TIMEOUT_S
from paci_lab.spec import TrainSpec

__all__ = ["ENDS_WITH_STDIN", "launch_torchrun", "ranks_per_node", "torchrun_command"]

ENDS_WITH_STDIN = "PACI_LAB_ENDS_WITH_STDIN"
"""Environment variable: the run ends when standard input closes, because whoever started torchrun went away."""

_SETTLE_S, _SETTLE_NODES_S = 3.0, 20.0
"""How long rank 0 may take to write its last file after torchrun has ended here. With several nodes it may be on
another one, where it waits for the word of ranks that have gone."""


def ranks_per_node(spec: TrainSpec, nodes: int) -> int:
    """torchrun starts as many processes on every node; raises InputError when the ranks cannot be shared out so."""
    ranks = spec.world_size
    if not isinstance(nodes, int) or nodes < 1 or ranks % nodes:
        raise InputError(
            "nodes", nodes, f"a divisor of {ranks}, the number of ranks", "take as many ranks on each node"
        )
    return ranks // nodes


def torchrun_command(
    spec: TrainSpec,
    *,
    nodes: int = 1,
    rdzv_endpoint: str | None = None,
    rdzv_id: str = "paci",
    max_restarts: int = 0,
) -> list[str]:
    """The command up to `-m paci_lab.train`: with a spec file behind it, it asks for that run; as it is, it joins.

    Args:
        spec: for the number of ranks.
        nodes: how many take part, all with the same number of ranks.
        rdzv_endpoint: HOST:PORT where several nodes meet; HOST is one of them.
        rdzv_id: name of the meeting, the same on all nodes.
        max_restarts: how often torchrun starts all ranks again when one has failed, the same on all nodes.

    Raises InputError when these do not go together.
    """
    processes = ranks_per_node(spec, nodes)
    command = [sys.executable, "-m", "torch.distributed.run"]
    if nodes == 1:
        if rdzv_endpoint is not None:
            raise InputError("rdzv-endpoint", rdzv_endpoint, "none for one node", "leave it out, or give --nodes")
        command += ["--standalone"]
    else:
        host, _, port = (rdzv_endpoint or "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise InputError(
                "rdzv-endpoint", rdzv_endpoint, "HOST:PORT with a free port of one of the nodes", "try FIRST_NODE:29400"
            )
        command += ["--nnodes", str(nodes), "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", rdzv_endpoint, "--rdzv-id", rdzv_id]
    if max_restarts:
        command += ["--max-restarts", str(max_restarts)]
    return [*command, "--nproc-per-node", str(processes), "-m", "paci_lab.train"]


def launch_torchrun(
    spec: TrainSpec,
    run_dir: str | Path | None = None,
    *,
    nodes: int = 1,
    rdzv_endpoint: str | None = None,
    rdzv_id: str = "paci",
    resume: str | Path | None = None,
    max_restarts: int = 0,
    hang_timeout_s: float = HANG_TIMEOUT_S,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """`launch` by way of torchrun; returns when all ranks have met and the run directory is there.

    With several nodes, `run_dir` is on a disk that they share, and the others join with what `say` is told.

    Args:
        spec, run_dir, resume, max_restarts, hang_timeout_s: as for `launch`; torchrun itself starts the ranks again.
        nodes, rdzv_endpoint, rdzv_id: as for `torchrun_command`.
        say: is told the commands, this node's first.

    Raises InputError or ScheduleError when the spec cannot run, RunFailed when torchrun cannot start it. The ranks of
    this node end with this process, however it ends, and the others after them.
    """
    from paci_lab.runtime.resolve import resolve  # imports torch, which writing a command does not need

    path = (Path(run_dir) if run_dir is not None else new_folder(spec)).absolute()
    check_launch(max_restarts, hang_timeout_s)
    join = torchrun_command(spec, nodes=nodes, rdzv_endpoint=rdzv_endpoint, rdzv_id=rdzv_id, max_restarts=max_restarts)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError("run directory", path, "a new or empty folder", "name another one with --run-dir")
    if resume is not None:
        spec = adopt(spec, open_checkpoint(resume)[0])
    if rdzv_endpoint is not None:
        _check_meeting(rdzv_endpoint)
    # Refused before anything starts, and measured once. How many GPUs the other nodes have is not known here.
    spec = spec.replace(partition=resolve(spec.replace(backend="auto")).partition)
    jobs = path.parent / "jobs"
    try:
        jobs.mkdir(parents=True, exist_ok=True)
        spec.save(jobs / f"{path.name}.toml")
        output = open(jobs / f"{path.name}.log", "w+b")
    except OSError as error:
        raise InputError(
            "run directory", path, "a folder that can be written", f"choose another one ({error})"
        ) from None
    command = [*join, str(jobs / f"{path.name}.toml"), "--run-dir", str(path)]
    if resume is not None:
        command += ["--resume", str(Path(resume).absolute())]
    if hang_timeout_s != HANG_TIMEOUT_S:
        command += ["--hang-timeout", str(hang_timeout_s)]
    say(shlex.join(command))
    if nodes > 1:
        say(f"on the other nodes: {shlex.join(join)}")
    with output:
        torchrun = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # inherited by the ranks, who see it close when this process is gone
            stdout=output,
            stderr=output,
            env={**os.environ, ENDS_WITH_STDIN: "1", "OMP_NUM_THREADS": str(spec.threads)},
            start_new_session=True,  # a Ctrl-C reaches this process alone, which then stops the run in order
        )
    run = Run(RunDir(path), torchrun, settle_s=_SETTLE_S if nodes == 1 else _SETTLE_NODES_S)
    try:
        while not (path / "log" / "agent.log").exists():
            if torchrun.poll() is not None:
                said = (jobs / f"{path.name}.log").read_text(errors="replace")
                told = [line for line in said.splitlines() if line.startswith("paci_lab.train: ")]
                raise RunFailed(
                    told[0].removeprefix("paci_lab.train: ")
                    if told
                    else f"torchrun ended with exit code {torchrun.returncode} before the run began: "
                    f"see {jobs / path.name}.log"
                )
            time.sleep(0.05)
    except BaseException:
        run.stop()
        raise
    return run


_ANSWER_S = 15
"""How long a torchrun that came first may take to answer, the start of the process that asks included."""


def _check_meeting(endpoint: str) -> None:
    """Refuse a port of this node that another program listens on: torchrun would take that one for a node that came
    first, and wait a minute for its answer."""
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_server((host, int(port))):
            return
    except OSError as error:
        if error.errno != errno.EADDRINUSE:  # the address of another node, or a name that is not known here
            return
    # In a process of its own: what never answers may hold a store's client for ever, whatever its timeout is.
    asks = (
        "import sys, torch.distributed as dist\n"
        "dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, wait_for_workers=False)"
    )
    try:
        subprocess.run([sys.executable, "-c", asks, host, port], check=True, capture_output=True, timeout=_ANSWER_S)
    except subprocess.SubprocessError:
        raise InputError(
            "rdzv-endpoint",
            endpoint,
            f"a free port: another program of this node listens on port {port}",
            "choose another port, the same on all nodes",
        ) from None
