"""Exercises of lesson 09: eight loops, each to be repaired until it does what the reference does, number by number."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from paci_lab.bugs.catalogue import BUGS, Bug
from paci_lab.bugs.compare import difference
from paci_lab.bugs.seen import Seen
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _, ngettext

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_repair(bug) for bug in BUGS]


def _repair(bug: Bug) -> Exercise:
    difficulty, minutes = {1: (1, 3), 2: (1, 3), 8: (3, 6)}.get(bug.number, (2, 4))
    mistakes = [Mistake(bug.module.faulty, _("This is the loop as it was: its fault is still in it.")), *_mistakes(bug)]
    return Exercise(
        id=f"09-{bug.number}",
        title=_("Loop {number}").format(number=bug.number),
        function=bug.function,
        difficulty=difficulty,
        minutes=minutes,
        hints=_hints(bug.fault),
        reference=bug.module.fixed,
        cases=[Case((updates,), _updates(updates)) for updates in ((1,) if bug.fault == "deadlock" else (1, 3, 6))],
        compare=functools.partial(difference, rounding=bug.rounding),
        mistakes=mistakes,
        call=functools.partial(_values, bug.run),
        draw=_draw,
        seconds=6,
    )


def _updates(count: int) -> str:
    return ngettext("{count} update", "{count} updates", count).format(count=count)


def _values(run: Callable[[Callable, int], Seen], train: Callable, updates: int) -> dict[str, Any]:
    return run(train, updates).values()


def _draw(mine: dict[str, Any], right: dict[str, Any], _case: Case) -> Any:
    if mine["events"] == [list(event) for event in right["events"]]:  # two charts that are the same help nobody
        return None
    from paci_lab.bugs.charts import operations  # plotly, which the process that runs learners' functions need not have

    return operations(Seen.of(mine), Seen.of(right))


def _hints(fault: str) -> tuple[str, str, str]:
    return {
        "summed": (
            _("`backward` adds to `.grad`. What is then in it after the four micro-batches of a window?"),
            _("It is the sum of four mean losses' gradients. The gradient of their mean is a quarter of it."),
            _("Divide each loss before its backward: (loss / window).backward()"),
        ),
        "scheduler": (
            _("How often does the schedule step in one window, and how often does the optimizer?"),
            _("The schedule is made for updates, so it has to step when the optimizer has stepped."),
            _("Move scheduler.step() into the `if`, below optimizer.step()."),
        ),
        "wiped": (
            _("Loop 3 evaluates after every sixth micro-batch. What does `.grad` hold at that moment?"),
            _("After micro-batch 6 it holds half a window, which the update after micro-batch 8 needs."),
            _("Leave out model.zero_grad(): under torch.no_grad() an evaluation adds nothing to the gradients."),
        ),
        "rescaled": (
            _("How often is the gradient of a window's first micro-batch divided before the optimizer steps?"),
            _("It is divided four times, by 4 each time; that of the last micro-batch is divided once."),
            _("Divide only when the window is full: move the inner loop into the `if`, above optimizer.step()."),
        ),
        "means": (
            _("A target of -100 does not count. How many count in each of the four micro-batches of a window?"),
            _("A target of the short micro-batch weighs 16 times as much as any other. All should weigh the same."),
            _(
                'Take sums, reduction="sum", and divide them by the targets that count in the whole window: '
                "count = sum((y != -100).sum() for _, y in batches[first : first + window])"
            ),
        ),
        "shifted": (
            _("Which targets does the last stage take for the activations of micro-batch 0?"),
            _("An iterator gives each item once: looking at the shape of its first item uses that item up."),
            _("Take the shape from the list, and leave the iterator alone: rows, context = targets[0].shape"),
        ),
        "stale": (
            _("Autocast casts each weight to 16 bits when it is first used. Until when does it keep the copy?"),
            _("It keeps it until the context ends, and in this loop the context ends after the last update."),
            _("Enter the context for every forward: put the `with` inside the `for`, around the line with the loss."),
        ),
        "deadlock": (
            _("A send returns when the other rank has received. What does each rank do after its first forward?"),
            _("Rank 0 sends activation 1 while rank 1 sends gradient 0, and neither receives: one of the two must."),
            _("On rank 1, receive the next activation before sending the gradient: swap these two steps."),
        ),
    }[fault]


# -- mistakes that learners make --------------------------------------------------------------------------------------
def _mistakes(bug: Bug) -> list[Mistake]:
    return {
        "summed": [Mistake(_over_all, _("Divide by the window: the mean is over one update's micro-batches."))],
        "wiped": [Mistake(_not_evaluated, _("The evaluation itself does no harm. Keep it, without what it clears."))],
        "rescaled": [Mistake(_never_divided, _("Now the mean is a sum: divide once, when the window is full."))],
        "means": [
            Mistake(_by_padding, _("Targets of -100 do not count, so leave them out of the number you divide by.")),
            Mistake(_own_count, _("Each micro-batch is divided by its own targets. Divide by those of the window.")),
        ],
        "stale": [Mistake(_in_float32, _("Without autocast there is no cache, and no 16-bit arithmetic either."))],
        "deadlock": [
            Mistake(
                _sends_at_the_end,
                _("Rank 0 needs gradient 0 before it sends activation 2: gradients cannot wait for the end."),
            ),
        ],
    }.get(bug.fault, [])


def _over_all(model, optimizer, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / len(batches)).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def _not_evaluated(model, optimizer, held_out, report, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def _never_divided(model, optimizer, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def _by_padding(model, optimizer, batches, window):
    for first in range(0, len(batches), window):
        part = batches[first : first + window]
        for x, y in part:
            total = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            (total / sum(y.numel() for _x, y in part)).backward()
        optimizer.step()
        optimizer.zero_grad()


def _own_count(model, optimizer, batches, window):
    for first in range(0, len(batches), window):
        for x, y in batches[first : first + window]:
            total = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            (total / (y != -100).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


def _in_float32(model, optimizer, batches, window):
    for number, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def _sends_at_the_end(stage, microbatches):
    stage.receive(0)
    for k in range(microbatches):
        stage.forward(k)
        stage.backward(k)
        if k + 1 < microbatches:
            stage.receive(k + 1)
    for k in range(microbatches):
        stage.send(k)
