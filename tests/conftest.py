"""What every test runs under: one thread per process, browser tests only with a browser, no process left behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch is imported: many ranks share few cores, and exactness must not hang on the number of threads.
os.environ["OMP_NUM_THREADS"] = "1"

# Children inherit it, so a process found later is known to be ours and not that of another session.
SESSION_VARIABLE = "PACI_LAB_TEST_SESSION"
SESSION = uuid.uuid4().hex
os.environ[SESSION_VARIABLE] = SESSION


def find_leftovers() -> dict[int, str]:
    """Process ids and command lines of this session's ranks that are alive; empty where there is no /proc."""
    found = {}
    marker = f"{SESSION_VARIABLE}={SESSION}".encode()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().split(b"\0")
            ours = marker in (directory / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended while we looked, or belongs to somebody else
            continue
        if ours and int(directory.name) != os.getpid() and any(b"paci_lab.runtime" in word for word in command):
            found[int(directory.name)] = b" ".join(command).decode(errors="replace").strip()
    return found


@pytest.fixture(scope="session")
def leftovers():
    """The check behind `no_rank_left_behind`, for tests that stop a run and want to know at once."""
    return find_leftovers


@pytest.fixture(scope="session", autouse=True)
def no_rank_left_behind() -> Iterator[None]:
    """Fail the session, naming the processes, if a rank outlives the tests by more than a minute."""
    yield
    deadline = time.monotonic() + 60
    while (found := find_leftovers()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in found:  # they must not slow down whatever runs next
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert not found, "ranks left behind: " + "; ".join(f"{pid} ({command})" for pid, command in found.items())


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order, whatever a test before this one has set."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `browser` where no Chromium is installed; installing one needs root, so no test does."""
    from engine_helpers import BROWSERS  # which imports the package, and so comes after the threads are set

    if item.get_closest_marker("browser") and not any(map(shutil.which, BROWSERS)):
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")


LEFT_OUT = pytest.StashKey[list[pytest.Item]]()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remember what `make test` leaves out, to say it at the end."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        slow[0].config.stash.setdefault(LEFT_OUT, []).extend(slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say plainly which tests did not run, so that a green line is not taken for more than it is."""
    if left_out := config.stash.get(LEFT_OUT, []):
        browser = sum(1 for item in left_out if item.get_closest_marker("browser"))
        terminalreporter.write_line(
            f"left out: {len(left_out)} slow tests, {browser} of them in a real browser, because they take minutes; "
            "`make test-slow` runs them"
        )
