"""By torchrun: on this node, or on several that meet at an address.

With several nodes the controller starts torchrun on its own, once a trial. The others join trial after trial, each in a
loop around the command that `paci-lab train --launcher torchrun` prints for them:

    while true; do torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint THIS_NODE:29400 --rdzv-id paci \\
        --nproc-per-node RANKS_PER_NODE -m paci_lab.train; sleep 1; done

They need no spec: the controller's has it. The study's folder is on a disk that all of them share.
"""

from __future__ import annotations

from pathlib import Path

from paci_lab import InputError, TrainSpec
from paci_lab.runtime.torchrun import launch_torchrun
from tuning.launchers.local import LocalJob

__all__ = ["Torchrun"]


class Torchrun:
    """Starts a trial with torchrun, whose ranks end with the controller, however it ends.

    Args:
        nodes: how many take part, all with the same number of ranks.
        rdzv_endpoint: HOST:PORT where several nodes meet; HOST is this node, so that every trial meets anew.
        rdzv_id: name of the meeting, the same on all nodes.
    """

    name = "torchrun"
    here = True

    def __init__(self, *, nodes: int = 1, rdzv_endpoint: str | None = None, rdzv_id: str = "paci") -> None:
        if not isinstance(nodes, int) or nodes < 1:
            raise InputError("launcher options", f"nodes={nodes}", "a whole number from 1", "try nodes=2")
        if (nodes > 1) != (rdzv_endpoint is not None):
            raise InputError(
                "launcher options",
                f"nodes={nodes}, rdzv_endpoint={rdzv_endpoint}",
                "rdzv_endpoint for several nodes, and only for them",
                "try nodes=2 and rdzv_endpoint=THIS_NODE:29400",
            )
        self.options = {"nodes": nodes, "rdzv_endpoint": rdzv_endpoint, "rdzv_id": rdzv_id}

    def start(self, spec: TrainSpec, run_dir: Path) -> LocalJob:
        return LocalJob(launch_torchrun(spec, run_dir, **self.options))

    def cancel(self, job_id: str) -> None:
        """Nothing is left to end: the ranks went with their controller."""
