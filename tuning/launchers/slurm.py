"""On a SLURM cluster: one job per trial, written as a script, submitted with sbatch and watched with squeue.

A trial uses one node, or several of them under torchrun, which meet at the first node of the job. The study's folder
must be on a file system that the nodes share with the machine of the controller.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from paci_lab import InputError, TrainSpec
from paci_lab.runtime.torchrun import ranks_per_node, torchrun_command
from tuning.launchers import State

__all__ = ["Slurm"]

_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SUSPENDED"}
_RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT"}
_SETTLE_S = 10.0
"""A shared file system may show a node's last files this much later."""


class Slurm:
    """Submits trials.

    Args:
        nodes: nodes of one trial, which share its ranks evenly.
        partition, gpus, cpus, time_limit: --partition, --gpus-per-node, --cpus-per-task and --time of sbatch; left out
            when None. `cpus` is one per rank and thread of a node when None.
        sbatch: further #SBATCH lines, such as "--account=vision".
        setup: shell lines to run first, such as "module load cuda".
        poll_s: seconds between questions to squeue.
    """

    name = "slurm"
    here = False

    def __init__(
        self,
        *,
        nodes: int = 1,
        partition: str | None = None,
        gpus: int | None = None,
        cpus: int | None = None,
        time_limit: str | None = None,
        sbatch: Sequence[str] = (),
        setup: Sequence[str] = (),
        poll_s: float = 5.0,
    ) -> None:
        if not isinstance(nodes, int) or nodes < 1:
            raise InputError("launcher options", f"nodes={nodes}", "a whole number from 1", "try nodes=2")
        self.nodes = nodes
        self.partition, self.gpus, self.cpus, self.time_limit = partition, gpus, cpus, time_limit
        self.sbatch, self.setup, self.poll_s = tuple(sbatch), tuple(setup), poll_s

    def start(self, spec: TrainSpec, run_dir: Path) -> SlurmJob:
        run_dir = run_dir.absolute()
        jobs = run_dir.parent / "jobs"
        jobs.mkdir(parents=True, exist_ok=True)
        spec.save(jobs / f"{run_dir.name}.toml")
        script = jobs / f"{run_dir.name}.sh"
        script.write_text(self.script(spec, run_dir, jobs), encoding="utf-8")
        answer = _call("sbatch", "--parsable", str(script))
        if answer.returncode:
            raise InputError(
                "slurm: sbatch", script, "a script that the scheduler accepts", answer.stderr.strip() or "see its log"
            )
        return SlurmJob(answer.stdout.strip().split(";")[0], run_dir, self.poll_s)

    def script(self, spec: TrainSpec, run_dir: Path, jobs: Path) -> str:
        """The batch script of one trial."""
        wanted = {
            "--job-name": f"paci-{run_dir.name}",
            "--output": str(jobs / f"{run_dir.name}.log"),
            "--nodes": self.nodes,
            "--ntasks": self.nodes,
            "--ntasks-per-node": 1 if self.nodes > 1 else None,
            "--cpus-per-task": self.cpus or ranks_per_node(spec, self.nodes) * spec.threads,
            "--partition": self.partition,
            "--gpus-per-node": self.gpus,
            "--time": self.time_limit,
        }
        lines = [f"#SBATCH {flag}={value}" for flag, value in wanted.items() if value is not None]
        asked = [str(jobs / f"{run_dir.name}.toml"), "--run-dir", str(run_dir)]
        if self.nodes == 1:
            srun = f"exec srun {shlex.join([sys.executable, '-m', 'paci_lab.cli', 'train', *asked])}"
        else:
            # The job's number makes a port that other jobs on the node do not share, below those that systems hand out.
            meet = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 10000))'
            names = {"MEET:1": '"$PACI_MEET"', "JOB": '"$SLURM_JOB_ID"'}
            command = torchrun_command(spec, nodes=self.nodes, rdzv_endpoint="MEET:1", rdzv_id="JOB")
            words = [names.get(word, shlex.quote(word)) for word in [*command, *asked]]
            srun = f"PACI_MEET={meet}\nexec srun {' '.join(words)}"
        return "\n".join(
            [
                "#!/bin/bash",
                *lines,
                *(f"#SBATCH {line}" for line in self.sbatch),
                "set -e",
                *self.setup,
                srun,
                "",
            ]
        )

    def cancel(self, job_id: str) -> None:
        _call("scancel", job_id)


class SlurmJob:
    """A submitted job; its state is asked for at most every `poll_s` seconds."""

    def __init__(self, job_id: str, run_dir: Path, poll_s: float) -> None:
        self.id, self._run_dir, self._poll_s = job_id, run_dir, poll_s
        self._said: State = "waiting"
        self._asked = self._gone = 0.0

    def state(self) -> State:
        now = time.monotonic()
        if self._said != "ended" and now - self._asked >= self._poll_s:
            self._asked = now
            self._said = self._ask(now)
        return self._said

    def _ask(self, now: float) -> State:
        answer = _call("squeue", "--noheader", "--format=%T", f"--jobs={self.id}")
        if answer.returncode and "Invalid job id" not in answer.stderr:
            return self._said  # the scheduler does not answer; that says nothing about the job
        word = answer.stdout.strip()
        if word in _WAITING:
            return "waiting"
        if word in _RUNNING:
            return "running"
        self._gone = self._gone or now
        there = any((self._run_dir / name).exists() for name in ("result.json", "failure.json"))
        return "ended" if there or now - self._gone > _SETTLE_S else "running"

    def stop(self) -> None:
        _call("scancel", self.id)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = _call("squeue", "--noheader", "--format=%T", f"--jobs={self.id}")
            if answer.returncode or answer.stdout.strip() not in _RUNNING | _WAITING:
                break
            time.sleep(min(self._poll_s, 1.0))
        self._said = "ended"


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise InputError(
            "launcher",
            "slurm",
            "a machine with sbatch, squeue and scancel",
            f"run this on a login node of the cluster ({command[0]} is missing)",
        ) from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} did not answer within 60 s")
