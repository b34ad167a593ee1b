"""Exercises of lesson 01: the loop, unequal micro-batches, memory, and the learning rate.

The loops are called with a small model that is the same every time, and what they leave in `.grad` is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from paci_lab.classroom.compare import close, close_tensor, same
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.language import _

__all__ = ["exercises"]


def exercises() -> list[Exercise]:
    """The exercises of this lesson."""
    return [_loop(), _unequal(), _memory(), _rate()]


# -- the loops: torch is imported where it is needed, for a table of exercises does without it ------------------------
def _gradient_of(function: Callable, rows: int, parts: int, short: int):
    """What `function(model, x, y, parts)` leaves in .grad: a vector, or None. The last `short` rows have one target."""
    import torch
    from torch import nn

    draw = torch.Generator().manual_seed(rows)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw))
    x, y = (torch.randint(11, (rows, 8), generator=draw) for _ in range(2))
    if short:
        y[rows - short :, 1:] = -100
    function(model, x, y, parts)
    gradients = [weight.grad for weight in model.parameters()]
    return None if None in gradients else torch.cat([gradient.flatten() for gradient in gradients])


def _call(function: Callable, rows: int, parts: int, short: int):
    return _gradient_of(function, rows, parts, short)


def _sum_of_losses(model, x, y):
    import torch.nn.functional as F

    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")


def _right(model, x, y, parts):
    count = (y != -100).sum()
    for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (_sum_of_losses(model, xs, ys) / count).backward()


def _mean_of_means(model, x, y, parts):
    for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (_sum_of_losses(model, xs, ys) / (ys != -100).sum() / parts).backward()


def _sum_of_means(model, x, y, parts):
    for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (_sum_of_losses(model, xs, ys) / (ys != -100).sum()).backward()


def _sum_of_sums(model, x, y, parts):
    for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
        _sum_of_losses(model, xs, ys).backward()


def _only_the_last(model, x, y, parts):
    for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
        model.zero_grad()
        (_sum_of_losses(model, xs, ys) / (ys != -100).sum() / parts).backward()


def _padding_counted(model, x, y, parts):
    for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (_sum_of_losses(model, xs, ys) / y.numel()).backward()


def _no_gradient() -> str:
    return _("nothing is in .grad afterwards. Do you call backward(), and does nothing clear .grad after it?")


def _loop() -> Exercise:
    return Exercise(
        id="01-loop",
        title=_("The loop"),
        function="accumulate",
        difficulty=1,
        minutes=3,
        hints=(
            _("Go through the micro-batches: x.chunk(parts) and y.chunk(parts). Call backward() for each."),
            _("PyTorch adds to .grad, so do not clear it inside the loop. What makes a sum of means a mean?"),
            _("In the loop: (mean_loss_of(model, xs, ys) / parts).backward()"),
        ),
        reference=_right,
        call=_call,
        cases=[
            Case((2, 1, 0), _("2 rows as one micro-batch")),
            Case((4, 2, 0), _("4 rows as 2 micro-batches")),
            Case((32, 8, 0), _("32 rows as 8 micro-batches")),
        ],
        compare=close_tensor(none=_no_gradient()),
        mistakes=[
            Mistake(_sum_of_means, _("Each micro-batch gives a mean. The mean of them all is their sum over parts.")),
            Mistake(_only_the_last, _("Only the last micro-batch is left: something clears .grad inside the loop.")),
        ],
    )


def _unequal() -> Exercise:
    return Exercise(
        id="01-unequal",
        title=_("Micro-batches of unequal length"),
        function="accumulate_targets",
        difficulty=2,
        minutes=3,
        hints=(
            _("Which number must every micro-batch be divided by, so that each target counts the same?"),
            _("Count the targets of the whole window first: (y != -100).sum(). Then use sums, not means."),
            _('In the loop: F.cross_entropy(…, reduction="sum") / count, and backward() on that.'),
        ),
        reference=_right,
        call=_call,
        cases=[
            Case((2, 2, 1), _("2 rows, the second one short, as 2 micro-batches")),
            Case((8, 4, 2), _("8 rows, 2 of them short, as 4 micro-batches")),
            Case((32, 8, 8), _("32 rows, 8 of them short, as 8 micro-batches")),
        ],
        compare=close_tensor(none=_no_gradient()),
        mistakes=[
            Mistake(_mean_of_means, _("That is the mean of means: a target in a short row counts for more.")),
            Mistake(_sum_of_means, _("Those are means, added up. Divide sums by the targets of the window.")),
            Mistake(_sum_of_sums, _("The sum is right; now divide it by the number of targets that count.")),
            Mistake(_padding_counted, _("You divide by all places; targets of -100 do not count.")),
        ],
    )


def _fewest(rows: int, row_mb: float, budget_mb: float) -> int:
    return next(parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts * row_mb <= budget_mb)


def _memory() -> Exercise:
    return Exercise(
        id="01-memory",
        title=_("As few micro-batches as memory allows"),
        function="fewest_parts",
        difficulty=1,
        minutes=3,
        hints=(
            _("One micro-batch is held at a time: rows / parts rows of it."),
            _("Try parts = 1, 2, 3, …; skip those that do not divide the rows: rows % parts != 0."),
            _("Return the first parts with rows % parts == 0 and rows / parts * row_mb <= budget_mb."),
        ),
        reference=_fewest,
        cases=[
            Case((2, 1.0, 4.0), _("2 rows of 1 MB in 4 MB")),
            Case((8, 1.0, 4.0), _("8 rows of 1 MB in 4 MB")),
            Case((12, 1.0, 2.5), _("12 rows of 1 MB in 2.5 MB")),
            Case((32, 3.5, 20.0), _("32 rows of 3.5 MB in 20 MB")),
        ],
        compare=same(),
        mistakes=[
            Mistake(
                lambda rows, row_mb, budget_mb: math.ceil(rows * row_mb / budget_mb),
                _("That many do not divide the rows, so micro-batches would be unequal, and the largest too large."),
            ),
            Mistake(
                lambda rows, row_mb, budget_mb: rows // _fewest(rows, row_mb, budget_mb),
                _("That is the rows of a micro-batch; asked for is the number of micro-batches."),
            ),
        ],
    )


def _rate() -> Exercise:
    def scaled(microbatch: int, window: int, replicas: int, batch: int, rate: float) -> list[float]:
        effective = microbatch * window * replicas
        return [effective, rate * math.sqrt(effective / batch)]

    def linear(microbatch: int, window: int, replicas: int, batch: int, rate: float) -> list[float]:
        effective = microbatch * window * replicas
        return [effective, rate * effective / batch]

    def alone(microbatch: int, window: int, replicas: int, batch: int, rate: float) -> list[float]:
        return [microbatch * window, rate * math.sqrt(microbatch * window / batch)]

    return Exercise(
        id="01-rate",
        title=_("The effective batch and its learning rate"),
        function="scaled",
        difficulty=1,
        minutes=3,
        hints=(
            _("How many sequences does the optimizer see in one update, over all replicas?"),
            _("effective = microbatch * window * replicas. The rule for Adam is the square root of the ratio."),
            _("return [effective, rate * (effective / batch) ** 0.5]"),
        ),
        reference=scaled,
        cases=[
            Case((4, 1, 1, 4, 0.001), _("the batch that the rate was found for")),
            Case((4, 4, 1, 4, 0.001), _("4 micro-batches of 4, from batch 4")),
            Case((4, 8, 2, 16, 0.002), _("8 micro-batches of 4 on 2 replicas, from batch 16")),
        ],
        compare=close(),
        mistakes=[
            Mistake(linear, _("That is the rule for SGD. For Adam, the square root of the ratio.")),
            Mistake(alone, _("Replicas have data of their own: they multiply the batch as well.")),
        ],
    )
