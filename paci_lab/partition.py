"""Where a model is cut: a partition is a list of layer counts, one per stage, such as [3, 2, 2, 3]."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from itertools import accumulate

import torch

from paci_lab.errors import InputError
from paci_lab.models import Model

__all__ = ["balanced_partition", "check_partition", "even_partition", "measure_layer_costs"]


def _check_stages(layers: int, stages: int) -> None:
    if not 1 <= stages <= layers:
        allowed = f"1 to {layers}, for the model has {layers} layers and a stage needs one"
        raise InputError("stages", stages, allowed, "use fewer stages or a model with more blocks")


def check_partition(partition: Sequence[int], layers: int, stages: int) -> None:
    """Refuse a partition that does not give every layer to one stage, with an InputError."""
    _check_stages(layers, stages)
    example = f"for example {even_partition(layers, stages)}"
    allowed = f"{stages} whole numbers from 1 that add up to {layers}, one per stage"
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in partition):
        raise InputError("partition", list(partition), allowed, f"give every stage a layer, {example}")
    if len(partition) != stages:
        fix = f"it has {len(partition)} stages: give {stages} numbers, {example}"
        raise InputError("partition", list(partition), allowed, fix)
    if sum(partition) != layers:
        raise InputError("partition", list(partition), allowed, f"it adds up to {sum(partition)}, {example}")


def even_partition(layers: int, stages: int) -> list[int]:
    """Share the blocks evenly; the first layer (embedding) goes with the first blocks, the last (head) with the last.

    Blocks left over go to middle stages, which have no embedding or head to do. With more stages than blocks the
    head has a stage of its own, then the embedding.

    >>> even_partition(10, 4), even_partition(10, 3), even_partition(10, 9)
    ([3, 2, 2, 3], [4, 3, 3], [2, 1, 1, 1, 1, 1, 1, 1, 1])
    """
    _check_stages(layers, stages)
    blocks = layers - 2
    if stages >= layers - 1:
        return [1 + layers - stages] + [1] * (stages - 1)
    each, left = divmod(blocks, stages)
    partition = [each] * stages
    for stage in [*range(1, stages - 1), 0][:left]:
        partition[stage] += 1
    partition[0] += 1
    partition[-1] += 1
    return partition


def balanced_partition(costs: Sequence[float], stages: int) -> list[int]:
    """The contiguous split whose dearest stage is cheapest; among equals, the one with the least sum of squares.

    Exact, by dynamic programming over (stages, layers): O(stages * layers^2).

    Args:
        costs: one non-negative, finite number per layer, in any unit.
        stages: from 1 to the number of layers.

    >>> balanced_partition([1, 2, 2, 2, 5], 3)
    [2, 2, 1]
    """
    _check_stages(len(costs), stages)
    if not all(math.isfinite(cost) and cost >= 0 for cost in costs):
        raise InputError("costs", list(costs), "finite numbers from 0", "measure the layers again")
    before = [0.0, *accumulate(costs)]
    ends = range(len(costs) + 1)

    def solve(ceiling: float, worst: bool) -> tuple[float, list[int]]:
        """Least (largest cost if ``worst`` else sum of squares) with no stage over the ceiling, and its cuts."""
        best = [0.0] + [math.inf] * len(costs)
        choices: list[list[int]] = []
        for _ in range(stages):
            extended, choice = [math.inf] * len(best), [0] * len(best)
            for end in ends:
                for start in range(end):
                    cost = before[end] - before[start]
                    if cost <= ceiling and best[start] < math.inf:
                        value = max(best[start], cost) if worst else best[start] + cost * cost
                        if value < extended[end]:
                            extended[end], choice[end] = value, start
            best = extended
            choices.append(choice)
        cuts = [len(costs)]
        for choice in reversed(choices):
            cuts.append(choice[cuts[-1]])
        return best[-1], cuts[::-1]

    ceiling, _ = solve(math.inf, worst=True)
    _, cuts = solve(ceiling, worst=False)
    return [end - start for start, end in zip(cuts, cuts[1:], strict=False)]


def measure_layer_costs(
    model: Model, microbatch_size: int, *, threads: int = 1, repeats: int = 5, device: str = "cpu"
) -> list[float]:
    """Seconds of forward plus backward of every layer for one micro-batch, in training mode; the loss included.

    Layers of one kind are measured once: the median of ``repeats`` passes after one that warms up. ``threads`` is
    the number of CPU threads that a stage will have. Other work on the machine disturbs the figures.
    """
    costs: dict[str, float] = {}
    had_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for layer in range(model.layers):
            if (kind := model.layer_kind(layer)) not in costs:
                costs[kind] = statistics.median(_passes(model, layer, microbatch_size, repeats, device))
    finally:
        torch.set_num_threads(had_threads)
    return [costs[model.layer_kind(layer)] for layer in range(model.layers)]


def _passes(model: Model, layer: int, microbatch_size: int, repeats: int, device: str) -> list[float]:
    module = model.build_layer(layer, seed=0).to(device)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocabulary, (microbatch_size, model.context), generator=generator).to(device)
    boundary = torch.randn(model.boundary_shape(microbatch_size), generator=generator).to(device)
    seconds = []
    for _ in range(repeats + 1):
        module.zero_grad()
        inputs = tokens if layer == 0 else boundary.clone().requires_grad_()
        _wait_for(device)
        start = time.perf_counter()
        output = module(inputs)
        if layer == model.layers - 1:
            model.loss(output, tokens).backward()
        else:
            output.backward(boundary)
        _wait_for(device)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def _wait_for(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
