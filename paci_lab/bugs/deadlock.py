"""Two ranks, each of which wants its message taken before it takes the other's: a deadlock by send order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from paci_lab.bugs.seen import Seen
from paci_lab.classroom.source import gather
from paci_lab.language import _

__all__ = ["MICROBATCHES", "faulty", "fixed", "rank_0", "request", "run"]

MICROBATCHES = 4
"""Per update."""

_LIMIT_S = 60  # for a machine that is broken; `ranks` has a limit of its own for a function that does not end


def rank_0(stage, microbatches):
    stage.forward(0)
    stage.send(0)
    for k in range(microbatches):
        if k + 1 < microbatches:
            stage.forward(k + 1)
            stage.send(k + 1)
        stage.receive(k)
        stage.backward(k)


def faulty(stage, microbatches):
    stage.receive(0)
    for k in range(microbatches):
        stage.forward(k)
        stage.backward(k)
        stage.send(k)
        if k + 1 < microbatches:
            stage.receive(k + 1)


def fixed(stage, microbatches):
    stage.receive(0)
    for k in range(microbatches):
        stage.forward(k)
        stage.backward(k)
        if k + 1 < microbatches:
            stage.receive(k + 1)
        stage.send(k)


def run(train: Callable, windows: int) -> Seen:
    """`rank_0`, and `train` as rank 1, in processes of a process of their own: a notebook's kernel has threads and must
    not be forked.

    The functions go there as text, as a check takes them. Raises RuntimeError with what a rank raised, or that it does
    not come to an end, and NotTaken for a function that uses what it cannot take along.
    """
    child = subprocess.run(
        [sys.executable, "-m", "paci_lab.bugs.ranks"],
        input=request(train, windows),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # else threads wait in what is forked
    )
    if child.returncode:
        raise RuntimeError(child.stderr[-2000:])
    said = json.loads(child.stdout)
    if said["raised"]:
        raise RuntimeError(said["raised"])
    return Seen(
        losses=said["losses"],
        gradients=np.array(said["gradients"]).reshape(len(said["gradients"]), -1 if said["gradients"] else 0),
        rates=[said["rate"]] * len(said["losses"]),
        tokens=[said["rows"]] * (windows * MICROBATCHES),
        evaluations=0,
        events=said["events"],
        source=_("measured on two paced ranks"),
        computed_in="float64",
        stages=2,
        stuck=" ".join(map(_in_words, said["stuck"])),
    )


def request(train: Callable, windows: int) -> str:
    """What `ranks` reads."""
    functions = [[function.__name__, gather(function)] for function in (rank_0, train)]
    return json.dumps({"functions": functions, "windows": windows, "microbatches": MICROBATCHES})


def _in_words(waiting: list) -> str:
    rank, kind, number = waiting
    if kind == "send":
        sentence = _("Rank {rank} waits for rank {other} to take its message of micro-batch {number}.")
    elif kind == "receive":
        sentence = _("Rank {rank} waits for rank {other} to send it something about micro-batch {number}.")
    else:
        sentence = _("Rank {rank} has come to its end.")
    return sentence.format(rank=rank, other=1 - rank, number=number)
