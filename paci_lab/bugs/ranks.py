"""`python -m paci_lab.bugs.ranks`: two ranks, each a process, that run somebody's functions and may block each other.

Messages go through this process, which is what makes a deadlock a fact and not a guess: a `send` returns when the other
rank receives it, as with NCCL and gloo, so two ranks that both wait, and not for each other's call, wait for ever.

Standard input has JSON {"functions": [[name, source] for each rank], "windows", "microbatches" (per window)}, and
standard output gets JSON. The model is a two-layer network in numpy, for importing torch takes longer than all of this.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from paci_lab.language import _

__all__ = ["SILENCE_S", "STANDSTILL_S", "main"]

PACE_S = {"forward": 0.01, "backward": 0.02}
STANDSTILL_S = 0.15
"""How long ranks that have blocked each other are left standing, so that it can be seen in a chart."""

SILENCE_S = 5.0
"""A rank that neither works nor waits for so long is in a loop of its own."""

ROWS, WIDTH, RATE = 8, (4, 8, 1), 0.5
HELD_OUT = 1_000_000


def samples(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (8, 4) and targets (8, 1) of a micro-batch."""
    inputs = np.random.default_rng(number).standard_normal((ROWS, WIDTH[0]))
    return inputs, np.sin(inputs.sum(1, keepdims=True))


def main() -> None:
    asked = json.load(sys.stdin)
    functions = [_function(name, source) for name, source in asked["functions"]]
    json.dump(_run(functions, asked["windows"], asked["microbatches"]), sys.stdout)


def _function(name: str, source: str) -> Callable:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, f"<{name}>", "exec"), space)
    return space[name]


class Stage:
    """What a function gets as its rank's stage. Micro-batches are numbered from 0 in each window."""

    def __init__(self, rank: int, hub: Connection, start_ns: int) -> None:
        self._rank, self._hub, self._start_ns, self._first = rank, hub, start_ns, 0
        self._weight = np.random.default_rng(rank).standard_normal(WIDTH[rank : rank + 2]) / 2
        self._gradient = np.zeros_like(self._weight)
        self._inputs: dict[int, np.ndarray] = {}
        self._outputs: dict[int, np.ndarray] = {}
        self._came: dict[int, np.ndarray] = {}  # messages, by micro-batch
        self._goes: dict[int, np.ndarray] = {}

    def forward(self, k: int) -> None:
        begin = self._now()
        x = self._need(self._came, k, "activation") if self._rank else samples(self._first + k)[0]
        self._inputs[k], self._outputs[k] = x, x @ self._weight
        if self._rank == 0:
            self._outputs[k] = self._goes[k] = np.tanh(self._outputs[k])
        self._did("forward", k, begin)

    def backward(self, k: int) -> None:
        begin = self._now()
        output = self._need(self._outputs, k, "forward")
        if self._rank:
            back = 2 * (output - samples(self._first + k)[1]) / ROWS
            self._goes[k] = back @ self._weight.T
        else:
            back = self._need(self._came, k, "gradient") * (1 - output**2)
        self._gradient += self._inputs.pop(k).T @ back
        del self._outputs[k]
        self._did("backward", k, begin)

    def send(self, k: int) -> None:
        self._hub.send(("send", self._first + k, self._need(self._goes, k, "message")))
        self._hub.recv()

    def receive(self, k: int) -> None:
        self._hub.send(("receive", self._first + k))
        number, message = self._hub.recv()
        if number != self._first + k:
            sentence = _(
                "rank {rank} asks for micro-batch {k} and is sent {number}: messages come in the order of the sends."
            )
            raise RuntimeError(sentence.format(rank=self._rank, k=k, number=number - self._first))
        self._came[k] = message

    def _update(self, microbatches: int) -> None:
        begin = self._now()
        gradient = self._gradient / microbatches
        self._weight -= RATE * gradient
        self._hub.send(("update", gradient, self._weight, begin, self._now()))
        self._gradient = np.zeros_like(self._weight)
        self._first += microbatches
        for held in (self._inputs, self._outputs, self._came, self._goes):
            held.clear()

    def _need(self, of: dict[int, np.ndarray], k: int, what: str) -> np.ndarray:
        if k not in of:
            sentence = {
                "activation": _("rank {rank} does not have the activation of micro-batch {k} yet."),
                "forward": _("rank {rank} has not made the forward of micro-batch {k} yet."),
                "gradient": _("rank {rank} does not have the gradient of micro-batch {k} yet."),
                "message": _("rank {rank} does not have anything to send of micro-batch {k} yet."),
            }[what]
            raise RuntimeError(sentence.format(rank=self._rank, k=k))
        return of[k]

    def _now(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def _did(self, what: str, k: int, begin: int) -> None:
        time.sleep(PACE_S[what])
        self._hub.send(("did", what[0].upper(), self._first + k, begin, self._now()))


def _be(rank: int, hub: Connection, start_ns: int, function: Callable, windows: int, microbatches: int) -> None:
    """The life of a rank's process. Does not return."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that forked it
    signal.alarm(int(SILENCE_S + 2 * windows + 10))
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)  # what a function prints is no answer
    try:
        stage = Stage(rank, hub, start_ns)
        for _window in range(windows):
            function(stage, microbatches)
            stage._update(microbatches)
        hub.send(("end", windows * microbatches))
    except BaseException as error:
        hub.send(("raised", str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"))
    os._exit(0)


def _run(functions: list[Callable], windows: int, microbatches: int) -> dict[str, Any]:
    start_ns, hubs, pids = time.monotonic_ns(), [], []
    try:
        for rank in range(2):
            mine, theirs = Pipe()
            pid = os.fork()
            if not pid:
                for other in (*hubs, mine):
                    other.close()
                _be(rank, theirs, start_ns, functions[rank], windows, microbatches)
            pids.append(pid)
            theirs.close()
            hubs.append(mine)
        return _listen(hubs, start_ns, microbatches)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _listen(hubs: list[Connection], start_ns: int, microbatches: int) -> dict[str, Any]:
    """Carry messages until both ranks have ended or can go on no more."""
    events: list[list[Any]] = []
    updates: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]  # gradient and weight after it, per rank
    waits: dict[int, tuple] = {}  # what a rank waits for or has ended with, and since when
    raised = ""

    def note(rank: int, op: str, number: int, begin: int, end: int) -> None:
        update = number if op == "U" else number // microbatches
        events.append([rank, rank, op, number, begin, end, len(updates[rank]), update])

    def waited(rank: int, end: int) -> None:
        # In the words of a trace: the first stage waits for gradients, the last one for activations.
        kind, number, *_data, since = waits[rank]
        if kind != "end" and end - since > 1_000_000:
            note(rank, "wait-F" if rank else "wait-B", number, since, end)

    looks = 0
    while not raised and len(waits) < 2:
        # In ten looks: a machine that stalls for longer than that costs one of them.
        ready = wait([hub for rank, hub in enumerate(hubs) if rank not in waits], SILENCE_S / 10)
        looks = 0 if ready else looks + 1
        if looks == 10:
            silent = next(rank for rank in range(2) if rank not in waits)
            raised = _("rank {rank} has done nothing for {seconds} s.").format(rank=silent, seconds=f"{SILENCE_S:g}")
        for hub in ready:
            rank = hubs.index(hub)
            try:
                what, *rest = hub.recv()
            except EOFError:
                what, rest = "raised", [_("rank {rank} ended in the middle of its work.").format(rank=rank)]
            if what == "did":
                note(rank, *rest)
            elif what == "update":
                note(rank, "U", len(updates[rank]), *rest[2:])
                updates[rank].append((rest[0], rest[1]))
            elif what == "raised":
                raised = rest[0]
            else:
                waits[rank] = (what, *rest, time.monotonic_ns() - start_ns)
        if {waits[rank][0] for rank in waits} == {"send", "receive"}:
            sender = next(rank for rank in waits if waits[rank][0] == "send")
            for rank in waits:
                waited(rank, time.monotonic_ns() - start_ns)
            message = waits[sender][1:3]
            waits.clear()
            hubs[sender].send(None)
            hubs[1 - sender].send(message)
    stuck = [[rank, *waits[rank][:2]] for rank in sorted(waits)] if {w[0] for w in waits.values()} != {"end"} else []
    if stuck and not raised:
        time.sleep(STANDSTILL_S)
        for rank in waits:
            waited(rank, time.monotonic_ns() - start_ns)
    inputs, targets = samples(HELD_OUT)
    both = list(zip(*updates, strict=False))
    return {
        "losses": [float(np.mean((np.tanh(inputs @ w0) @ w1 - targets) ** 2)) for (_g, w0), (_h, w1) in both],
        "gradients": [[*g0.ravel(), *g1.ravel()] for (g0, _w), (g1, _v) in both],
        "events": events,
        "stuck": stuck,
        "raised": raised,
        "rate": RATE,
        "rows": ROWS,
    }


if __name__ == "__main__":
    main()
