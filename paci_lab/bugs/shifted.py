"""The last stage of a pipeline takes one batch of targets to learn their shape, and is one ahead from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paci_lab.bugs.babble import batch, build_model
from paci_lab.bugs.loops import LEARNING_RATE, WINDOW
from paci_lab.bugs.seen import Seen
from paci_lab.bugs.watch import Watch

__all__ = ["faulty", "fixed", "run"]


def faulty(stage, optimizer, activations, send_back, targets, window):
    upcoming = iter(targets)
    rows, context = next(upcoming).shape
    for number, x in enumerate(activations, 1):
        logits = stage(x.view(rows, context, -1))
        loss = F.cross_entropy(logits.flatten(0, 1), next(upcoming).flatten())
        (loss / window).backward()
        send_back(x.grad)
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def fixed(stage, optimizer, activations, send_back, targets, window):
    upcoming = iter(targets)
    rows, context = targets[0].shape
    for number, x in enumerate(activations, 1):
        logits = stage(x.view(rows, context, -1))
        loss = F.cross_entropy(logits.flatten(0, 1), next(upcoming).flatten())
        (loss / window).backward()
        send_back(x.grad)
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def run(train: Callable, windows: int) -> Seen:
    """Two stages in one process, in the order of 1F1B with a flush: the first runs when the last one asks for more."""
    batches = [batch(number) for number in range(windows * WINDOW)]
    layers = list(build_model())
    first, last = nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:])
    optimizers = [torch.optim.SGD(stage.parameters(), lr=LEARNING_RATE) for stage in (first, last)]
    watch = Watch([(first, optimizers[0]), (last, optimizers[1])], batches, WINDOW)
    held: list[Tensor] = []  # outputs of the first stage that wait for their gradients
    done = 0

    def activations() -> Iterator[Tensor]:
        ready: list[Tensor] = []
        for number in range(len(batches)):
            ends = (number // WINDOW + 1) * WINDOW  # no forward of the next window before this one's update
            while len(ready) <= number + 1 and len(ready) < ends:
                held.append(first(batches[len(ready)][0]))
                ready.append(held[-1].detach().flatten(0, 1).requires_grad_())
            yield ready[number]

    def send_back(gradient: Tensor) -> None:
        nonlocal done
        output = held.pop(0)
        output.backward(gradient.view(output.shape))
        done += 1
        if done % WINDOW == 0:
            optimizers[0].step()
            optimizers[0].zero_grad()

    more = [batch(len(batches))[1]]  # the stream of targets goes on
    train(last, optimizers[1], activations(), send_back, [y for _x, y in batches] + more, WINDOW)
    return watch.seen()
