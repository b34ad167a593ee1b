"""Start, watch and stop a run from any Python process: a terminal, a notebook, the tuner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError, RunFailed
from paci_lab.runtime.rundir import RunDir, write_json
from paci_lab.runtime.watch import HANG_TIMEOUT_S
from paci_lab.schedules import Op, Reason, ScheduleError
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace

__all__ = ["Run", "check_launch", "launch", "new_folder", "open_run"]


class Run:
    """Handle of a run: one that this process started, or one that is opened from its directory.

    Attributes:
        dir: its run directory, with everything the run has said so far.
    """

    def __init__(self, run_dir: RunDir, agent: subprocess.Popen | None = None, *, settle_s: float = 0.0) -> None:
        self.dir, self._agent = run_dir, agent
        # Under torchrun the process that writes the last file may outlive the one that we started.
        self._settle_s, self._ended_at = settle_s, None

    @property
    def path(self) -> Path:
        return self.dir.path

    @property
    def spec(self) -> TrainSpec:
        return self.dir.spec()

    @property
    def running(self) -> bool:
        """True while this process's run goes on; a run that was opened is judged by its files alone."""
        return self._agent is not None and (self._agent.poll() is None or self._settling())

    def _settling(self) -> bool:
        """The process has ended, and its last word may still come."""
        if self._ended_at is None:
            self._ended_at = time.monotonic()
        late = time.monotonic() - self._ended_at >= self._settle_s
        return not late and self.dir.result() is None and self.dir.failure() is None

    def trace(self, replica: int = 0) -> Trace:
        """The trace of one replica so far."""
        return self.dir.trace(replica)

    def result(self) -> dict[str, Any]:
        """`result.json`; raises RunFailed with the reason when the run has not ended well."""
        result = self.dir.result()
        if result is None:
            failure = self.dir.failure() or {}
            raise RunFailed(failure.get("message", f"no result in {self.path}: the run is still going, or was killed"))
        return result

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Block until the run ends and return its result.

        Raises RunFailed when it ends badly, TimeoutError when it does not end in time. A KeyboardInterrupt stops the
        run before it goes on.
        """
        if self._agent is not None:
            try:
                self._agent.wait(timeout_s)
                while self._settling():
                    time.sleep(0.05)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"{self.path} has not ended after {timeout_s} s") from None
            except KeyboardInterrupt:
                self.stop()
                raise
        return self.result()

    def stop(self) -> None:
        """End all ranks at once; returns when they are gone. What they wrote stays readable.

        Raises InputError for a run that may be going on and was started by another process.
        """
        if self._agent is None and self.dir.result() is None and self.dir.failure() is None:
            raise InputError(str(self.path), "opened", "a run of this process", "stop it where it was started")
        if not self.running:
            return
        self._agent.send_signal(signal.SIGTERM)
        try:
            self._agent.wait(10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._agent.pid, signal.SIGKILL)
            self._agent.wait()
            if self.dir.result() is None and self.dir.failure() is None:  # nobody else is left to say it
                write_json(self.path / "failure.json", {"message": "stopped by the user", "stopped": True})

    def live(self, **options: Any):
        """The live view of this run, for a notebook; see `paci_lab.show.live`."""
        from paci_lab.show.live import live

        return live(self.path, stop=self.stop if self._agent is not None else None, **options)

    def __repr__(self) -> str:
        known = "ended well" if self.dir.result() else "not ended well" if self.dir.failure() else "no result yet"
        state = "running" if self.running else known
        return f"<Run {self.path}: {state}>"


def launch(
    spec: TrainSpec,
    run_dir: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    max_restarts: int = 0,
    hang_timeout_s: float = HANG_TIMEOUT_S,
) -> Run:
    """Start a run and return at once, when its spec has been accepted and its ranks are being started.

    Args:
        spec: what to train.
        run_dir: a new or empty folder; `runs/<schedule>-<stages>x<window>-<time>` when None.
        resume: go on from this checkpoint, or from the newest one of this run directory. Stages, partition, schedule,
            length and more may be others than there, but not model, data, micro-batch size, seed and optimizer.
        max_restarts: how often the run may go on from its newest checkpoint (or begin again) when a rank dies or hangs.
        hang_timeout_s: a rank that stands still in one operation for so long is ended; 0 for never. See `Watch`.

    Raises InputError or ScheduleError when the spec cannot run; nothing has been written then. The ranks end with this
    process, however it ends.
    """
    check_launch(max_restarts, hang_timeout_s)
    path = Path(run_dir) if run_dir is not None else new_folder(spec)
    # A session of its own: a Ctrl-C in the terminal reaches this process alone, which then stops the run in order.
    agent = subprocess.Popen(
        [sys.executable, "-m", "paci_lab.runtime.agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        asked = {"spec": spec.to_dict(), "run_dir": str(path), "resume": None if resume is None else str(resume)}
        asked |= {"max_restarts": max_restarts, "hang_timeout_s": hang_timeout_s}
        agent.stdin.write(json.dumps(asked) + "\n")
        agent.stdin.flush()
        line = agent.stdout.readline()
    except (BrokenPipeError, KeyboardInterrupt):
        agent.kill()
        raise
    answer = json.loads(line) if line else {}
    agent.stdout.close()
    if "ready" in answer:
        return Run(RunDir(path), agent)
    agent.stdin.close()
    agent.wait()
    if "input_error" in answer:
        raise InputError(*answer["input_error"])
    if "schedule_error" in answer:
        code, op, reason, grid = answer["schedule_error"]
        raise ScheduleError(code, Op.parse(op), Reason(reason), grid)
    raise RunFailed(
        f"the agent of {path} ended with exit code {agent.returncode} before it started; its error is above"
    )


def check_launch(max_restarts: object, hang_timeout_s: object) -> None:
    """Raise InputError for a number of restarts or a timeout that is none."""
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or not 0 <= max_restarts <= 1000:
        raise InputError("max_restarts", max_restarts, "a whole number from 0 to 1000", "use 0 for none")
    if isinstance(hang_timeout_s, bool) or not isinstance(hang_timeout_s, int | float) or not 0 <= hang_timeout_s < 1e9:
        raise InputError("hang_timeout_s", hang_timeout_s, "seconds from 0", "use 0 to let ranks stand still for ever")


def open_run(path: str | Path) -> Run:
    """A finished, running or killed run by its directory; raises InputError when it is not one."""
    return Run(RunDir.open(path))


def new_folder(spec: TrainSpec) -> Path:
    now = time.time_ns()  # to the millisecond, for runs that are started together
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(now // 10**9)) + f"-{now // 10**6 % 1000:03d}"
    name = f"{spec.build_schedule().name}-{spec.stages}x{spec.window}-{moment}"
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path
