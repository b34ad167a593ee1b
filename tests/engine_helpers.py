"""Shared by the tests: a tiny spec, a real run against its replay, patience, processes, ports and a browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import paci_lab
from paci_lab.schedules import validate

PATIENCE_S = 240.0
PATIENCE_MS = 1000 * PATIENCE_S
"""How long a test waits for what must happen, on a machine that is busy or stalls: nothing is decided by how long
something takes. Below pytest's own limit, so that the message is the test's."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

FEMTO = {"model": "femto", "microbatch_size": 1, "context": 16, "validation_batches": 1, "device": "cpu"}
"""Six layers, 60,000 weights, 16 tokens a micro-batch: an operation takes about a millisecond."""


def tiny(**changes: Any) -> paci_lab.TrainSpec:
    """A spec that trains in a fraction of a second; the partition is fixed so that nothing has to be measured."""
    values = {**FEMTO, "updates": 4, "window": 3, **changes}
    if "updates" in changes and changes["updates"] is None:
        values.pop("updates")
    return paci_lab.TrainSpec(**values)


def split_of(stages: int, layers: int = 6) -> list[int]:
    """An uneven partition, so that a stage's number and its layers cannot be mistaken for one another."""
    return [1] * (stages - 1) + [layers - stages + 1]


def run_to_end(spec: paci_lab.TrainSpec, path: Path, *, timeout_s: float = PATIENCE_S) -> paci_lab.Run:
    """Launch, wait, and give the run back; a run that fails raises RunFailed."""
    run = paci_lab.launch(spec, path)
    try:
        run.wait(timeout_s)
    finally:
        run.stop()
    return run


def assert_run_is_replay(run: paci_lab.Run) -> paci_lab.Replay:
    """Losses, weights, validation losses, updates and version gaps of a real run, bit for bit those of its replay."""
    import torch

    exact, found = paci_lab.replay(run.spec), run.dir
    assert found.losses() == exact.losses
    parameters = found.parameters()
    assert parameters.keys() == exact.parameters.keys()
    different = [name for name in parameters if not torch.equal(parameters[name], exact.parameters[name])]
    assert not different
    assert [(row["update"], row["val_loss"]) for row in found.validation()] == [row[1:] for row in exact.validation]
    assert [row["learning_rate"] for row in found.metrics()] == [record.learning_rate for record in exact.updates[-1]]
    for stage, records in enumerate(exact.updates):
        assert [(r["update"], r["tokens"], r["grad_norm"]) for r in found.updates_of(stage)] == [
            (r.update, r.tokens, r.grad_norm) for r in records
        ]
    assert_trace_is_simulated(run.trace(), run.spec)
    assert_trace_is_simulated(exact.trace, run.spec)
    return exact


def assert_trace_is_simulated(trace: paci_lab.Trace, spec: paci_lab.TrainSpec) -> None:
    """Version gaps, updates, in-flight peaks and the order of operations are those of the simulator."""
    schedule = spec.build_schedule()
    validate(schedule)
    expected = paci_lab.simulate(schedule)
    assert order_of(trace) == order_of(expected)
    for stage in range(spec.stages):
        assert trace.version_gaps(stage) == expected.version_gaps(stage)
    assert trace.updates() == expected.updates() == [schedule.updates] * spec.stages
    assert trace.in_flight_peak() == expected.in_flight_peak() == list(map(schedule.in_flight, range(spec.stages)))


def order_of(trace: paci_lab.Trace) -> list[list[tuple[str, int]]]:
    """Per stage, the operations in the order they ran."""
    kinds = "FBIWU"
    orders: list[list[tuple[str, int]]] = [[] for _ in range(trace.stages)]
    for event in trace:
        if event.op in kinds:
            orders[event.stage].append((event.op, event.microbatch))
    return orders


def wait_until(true: Callable[[], Any], *, timeout_s: float = PATIENCE_S, what: str = "it") -> Any:
    """Look until `true` gives something that counts as true, and return that."""
    deadline = time.monotonic() + timeout_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} has not happened after {timeout_s} s"
        time.sleep(0.02)
    return found


def session_processes(named: str) -> list[int]:
    """Live processes of this test session with `named` in their command line."""
    ours = f"PACI_LAB_TEST_SESSION={os.environ['PACI_LAB_TEST_SESSION']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended while we looked
            continue
        if named.encode() in line and ours in environment:
            found.append(int(folder.name))
    return found


def processes_of(path: Path) -> dict[int, str]:
    """Live processes that have a file of the run directory `path` open or name it: its ranks, evaluator and agent."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            if pid == os.getpid() or folder.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            links = list(folder.joinpath("fd").iterdir())
        except OSError:  # it ended while we looked
            continue
        opened = set()
        for link in links:
            with contextlib.suppress(OSError):  # closed while we looked, by a process that goes on
                opened.add(os.readlink(link))
        if mine := sorted(name for name in opened if name.startswith(f"{path}/")):
            found[pid] = mine[0]
    return found


def pid_of(path: Path, name: str) -> int:
    """Process id of "rank0", "agent" or "evaluator" of the run at `path`: whose standard error is its log."""
    log = f"{path}/log/{name}.log"

    def find() -> int | None:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "fd" / "2") == log:
                    return int(folder.name)
            except OSError:  # it ended while we looked, or belongs to somebody else
                continue
        return None

    return wait_until(find, what=f"the start of {name}")


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, number)


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def open_chromium(playwright: Any) -> Any:
    """A headless browser; `playwright` is what `sync_playwright()` gives."""
    return playwright.chromium.launch(
        executable_path=next(filter(None, map(shutil.which, BROWSERS))),
        timeout=PATIENCE_MS,
        args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
    )


def wait_in_page(page: Any, true: Callable[[], Any], *, what: str = "it") -> None:
    """`wait_until` while the page goes on: what it says meanwhile is heard."""

    def look() -> Any:
        return true() or page.wait_for_timeout(200)

    wait_until(look, what=what)
