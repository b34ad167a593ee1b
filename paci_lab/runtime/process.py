"""What every process of a rank does, whoever started it: say how it ended, end with its parent, keep to its host."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from paci_lab.runtime.p2p import PeerLost
from paci_lab.runtime.recorder import read_now
from paci_lab.runtime.rundir import RunDir
from paci_lab.runtime.stage import NonFiniteLoss
from paci_lab.schedules import Op

if TYPE_CHECKING:
    from paci_lab.runtime.worker import Worker

__all__ = [
    "PEER_LOST_EXIT",
    "all_there",
    "device_of",
    "end_with_parent",
    "peak_memory",
    "perform",
    "stay_on_this_host",
]

PEER_LOST_EXIT = 3
"""Exit code of a rank that ended because another one did."""

_PR_SET_PDEATHSIG = 1  # of Linux's sys/prctl.h


def perform(run: RunDir, rank: int, begin: Callable[[], Worker]) -> tuple[int, dict[str, Any] | None]:
    """Run the worker that `begin` makes; return its exit code and what its error file should say."""
    try:
        begin().run()
        return 0, None
    except BaseException as error:  # whatever ends this rank, the agent is told what it was
        traceback.print_exc()
        op = read_now(run.now_file(rank))
        if isinstance(error, NonFiniteLoss) and op is not None:
            op = Op(op.stage, "F", error.microbatch)  # found out later than it happened, on a GPU
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        code = PEER_LOST_EXIT if isinstance(error, PeerLost | dist.DistError) else 1
        return code, {"rank": rank, "op": str(op) if op else None, "cause": cause}


def stay_on_this_host() -> None:
    """Messages between ranks of one host are for nobody else: listen on the loopback interface alone."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"


@contextlib.contextmanager
def all_there() -> Iterator[None]:
    """What all ranks do together fails on the living ones when one is gone: a consequence, not the cause."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"a rank has gone: {error}") from error


def device_of(kind: str, rank: int) -> torch.device:
    """Where a rank computes, its GPU by its number on its host."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def peak_memory(device: torch.device) -> int:
    """Bytes: most allocated on the GPU, or most resident of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def end_with_parent() -> None:
    """End this process when the agent does, however it ends: its end of the pipe on standard input closes. Where the
    system offers it, it ends a process that is stopped as well, which no thread of its own can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(PEER_LOST_EXIT)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
