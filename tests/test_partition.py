"""Partitions: even, balanced (against brute force), measured, checked."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from paci_lab.errors import InputError
from paci_lab.models import build_model
from paci_lab.partition import balanced_partition, check_partition, even_partition, measure_layer_costs


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (10, 1, [10]),
        (10, 2, [5, 5]),
        (10, 4, [3, 2, 2, 3]),
        (10, 8, [2, 1, 1, 1, 1, 1, 1, 2]),
        (10, 3, [4, 3, 3]),
        (9, 2, [5, 4]),
        (10, 9, [2, 1, 1, 1, 1, 1, 1, 1, 1]),
        (10, 10, [1] * 10),
        (26, 8, [4, 3, 3, 3, 3, 3, 3, 4]),
        (2, 1, [2]),
        (2, 2, [1, 1]),
    ],
)
def test_even(layers, stages, expected):
    assert even_partition(layers, stages) == expected


def test_even_is_always_a_partition():
    for layers in range(1, 30):
        for stages in range(1, layers + 1):
            check_partition(even_partition(layers, stages), layers, stages)


def test_balanced_against_brute_force():
    draw = random.Random(0)
    for _ in range(150):
        costs = [draw.choice([0, 1, 2, 3, 5, 8]) for _ in range(draw.randint(1, 8))]
        stages = draw.randint(1, len(costs))

        def score(partition, costs=costs):
            edges = [0, *itertools.accumulate(partition)]
            sums = [sum(costs[a:b]) for a, b in itertools.pairwise(edges)]
            return max(sums), sum(s * s for s in sums)

        everything = [
            [b - a for a, b in itertools.pairwise([0, *cuts, len(costs)])]
            for cuts in itertools.combinations(range(1, len(costs)), stages - 1)
        ]
        found = balanced_partition(costs, stages)
        check_partition(found, len(costs), stages)
        assert score(found) == min(map(score, everything)), (costs, stages, found)


def test_balanced_gives_a_dear_head_its_own_stage():
    assert balanced_partition([0.1, 1, 1, 1, 1, 4.0], 2) == [5, 1]


def test_measured_costs():
    model = build_model("gpt:blocks=3,width=16,heads=2,context=8")
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    costs = measure_layer_costs(model, 2, repeats=1)
    assert len(costs) == 5 and min(costs) > 0
    assert costs[1] == costs[2] == costs[3]  # blocks are alike: measured once
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("partition", "layers", "stages", "words"),
    [
        ([3, 3], 10, 2, ["adds up to 6", "[5, 5]"]),
        ([5, 5], 10, 3, ["It has 2 stages", "[4, 3, 3]"]),
        ([10, 0], 10, 2, ["from 1 that add up to 10"]),
        ([5.0, 5], 10, 2, ["whole numbers"]),
        ([1] * 11, 10, 11, ["stages = 11", "1 to 10"]),
        ([], 10, 0, ["stages = 0"]),
    ],
)
def test_refusals(partition, layers, stages, words):
    with pytest.raises(InputError) as refusal:
        check_partition(partition, layers, stages)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_more_stages_than_layers():
    for split in (lambda: even_partition(10, 11), lambda: balanced_partition([1.0] * 10, 11)):
        with pytest.raises(InputError, match="stages = 11"):
            split()
    with pytest.raises(InputError, match="costs"):
        balanced_partition([1.0, float("nan")], 2)
