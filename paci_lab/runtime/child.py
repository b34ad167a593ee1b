"""Processes that an agent starts: a rank, or the evaluator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from paci_lab.spec import TrainSpec

__all__ = ["Child", "may_fork"]


class Child:
    """A rank or the evaluator: forked from the agent where that is safe, started afresh otherwise.

    A fork shares the memory of torch and skips its import, seconds for each process on a laptop. It is safe on Linux
    while this process has used neither a GPU nor a pool of CPU threads.

    Args:
        module: what it runs, by its `run_as_child`, or as a program.
        arguments, log: for it.
        fork: whether to.
        others: the children before it.
        own_session: a signal to the agent's process group does not reach it.
    """

    def __init__(
        self,
        module: Any,
        arguments: list[str],
        log: Path,
        *,
        fork: bool,
        others: list[Child],
        own_session: bool = False,
    ) -> None:
        their_input, self.input = os.pipe()
        self.output, their_output = os.pipe()
        self.exit_code: int | None = None
        if fork:
            self.pid = os.fork()
            if self.pid == 0:
                if own_session:
                    os.setsid()
                self._become(module, arguments, log, their_input, their_output, others)
        else:
            with open(log, "ab") as errors:
                command = [sys.executable, "-m", module.__name__, *arguments]
                self._process = subprocess.Popen(
                    command, stdin=their_input, stdout=their_output, stderr=errors, start_new_session=own_session
                )
            self.pid = self._process.pid
        os.close(their_input)
        os.close(their_output)
        os.set_blocking(self.output, False)

    def _become(
        self, module: Any, arguments: list[str], log: Path, their_input: int, their_output: int, others: list[Child]
    ) -> None:
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # An end of a brother's pipe that stays open here would hide from him that the agent has gone.
            for other in others:
                os.close(other.input)
                os.close(other.output)
            os.close(self.input)
            os.close(self.output)
            errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for descriptor, number in ((their_input, 0), (their_output, 1), (errors, 2)):
                os.dup2(descriptor, number)
            sys.stdin = os.fdopen(0, "r", closefd=False)
            code = module.run_as_child(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    def how_it_ended(self) -> str:
        """Cause of a bad end, for a child that said nothing about it."""
        if self.exit_code >= 0:
            return f"ended with exit code {self.exit_code}"
        cause = f"killed by {signal.Signals(-self.exit_code).name}"
        if self.exit_code == -signal.SIGKILL:
            cause += " (the system does that to a process when memory runs out)"
        return cause

    def strike(self) -> None:
        """End it at once, and do not wait for that: `kill` does."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End it at once and wait until it is gone."""
        if self.exit_code is None:
            self.strike()
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def may_fork(spec: TrainSpec) -> bool:
    """Whether children of this process may be forked, see `Child`."""
    # With a GPU in sight, autograd starts threads of its own at the first backward (measuring layers is one).
    return sys.platform == "linux" and spec.device == "cpu" and spec.threads == 1 and not torch.cuda.is_available()
