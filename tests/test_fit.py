"""`paci-lab fit`: the search on known curves, real probes that stop at their limit, and the command to its end."""

from __future__ import annotations

import json

import pytest
from engine_helpers import split_of, tiny

from paci_lab import InputError, TrainSpec
from paci_lab.cli import main
from paci_lab.fit import Fit, fit, parse_memory, probing, search, sizes_for, with_size
from paci_lab.runtime.probe import shortest
from paci_lab.runtime.resolve import resolve

WIDE = "gpt:blocks=2,width=128,heads=1,context=128"


def searched(cost, *, memory: int, batch: int = 64) -> tuple[Fit | None, list[int]]:
    """The search with ranks that need `cost(rank, size)` bytes, and the sizes that it tried."""
    tried: list[int] = []
    spec = tiny(stages=2, partition=split_of(2), updates=1, context=4)

    def probe(asked: TrainSpec, rank: int, limit: int) -> int | None:
        tried.append(asked.microbatch_size)
        assert asked.microbatch_size * asked.window == batch
        needs = cost(rank, asked.microbatch_size)
        return needs if needs <= limit else None

    found = search(spec, sizes_for(batch, spec), memory=memory, batch=batch, headroom=0.1, probe=probe)
    return found, tried


@pytest.mark.parametrize(("budget", "best"), [(1011, 1), (1025, 2), (1099, 8), (1169, 16), (10**6, 32)])
def test_the_largest_that_every_rank_can_hold(budget, best):
    found, tried = searched(lambda rank, size: 1000 + 10 * size - 200 * rank, memory=round(budget / 0.9) + 1)
    assert found.spec.microbatch_size == best and found.spec.window == 64 // best
    assert found.next_size == (None if best == 32 else 2 * best)
    assert found.predicted == [1000 + 10 * best, 800 + 10 * best] or best <= 2
    assert max(tried) <= 2 * best or best <= 2  # the straight line keeps it from trying what cannot fit


def test_a_curve_that_bends_upwards_is_found_out_by_probing():
    found, _ = searched(lambda rank, size: 1000 + size * size, memory=round(1300 / 0.9))
    assert found.spec.microbatch_size == 16 and found.next_size == 32


def test_sizes_leave_a_window_for_every_rank():
    assert sizes_for(24, tiny(stages=1, partition=[6])) == [1, 2, 3, 4, 6, 8, 12, 24]
    assert sizes_for(24, tiny(stages=4, partition=split_of(4))) == [1, 2, 3, 4, 6]
    assert sizes_for(2, tiny(stages=4, partition=split_of(4))) == [1]
    interleaved = tiny(schedule="interleaved", stages=6, partition=[1] * 6, updates=3)  # windows of 3, 6, ... alone
    assert sizes_for(24, interleaved) == [1, 2, 4, 8]
    with pytest.raises(InputError, match="window"):
        sizes_for(25, interleaved)


def test_a_length_in_micro_batches_stays_as_many_sequences():
    spec = tiny(updates=None, microbatches=64, evaluate_every=16, microbatch_size=2)
    changed = with_size(spec, 32, 8)
    assert (changed.window, changed.microbatches, changed.evaluate_every) == (4, 16, 4)


@pytest.mark.parametrize("schedule", ["paci", "1f1b", "gpipe", "pipedream", "pipedream-2bw", "interleaved"])
def test_the_short_stream_holds_what_the_whole_one_does(schedule):
    spec = tiny(schedule=schedule, stages=4, window=64, updates=20, partition=[1, 1, 2, 2])
    short = shortest(spec)
    assert short.total_microbatches < (250 if schedule == "gpipe" else 60)
    whole = spec.build_schedule()
    assert [short.build_schedule().in_flight(s) for s in range(4)] == [whole.in_flight(s) for s in range(4)]


@pytest.mark.parametrize("text", ["8", "GB", "-1GB", "8 parsecs", "0MB"])
def test_memory_without_sense_is_refused(text):
    with pytest.raises(InputError, match="--memory"):
        parse_memory(text)


def test_a_real_probe_grows_with_the_size_and_stops_at_its_limit():
    spec = resolve(TrainSpec(model=WIDE, stages=1, schedule="1f1b", window=2, updates=2, device="cpu"))
    with probing() as probe:
        small, large = (probe(spec.replace(microbatch_size=size), 0, 10**10) for size in (1, 32))
        # The two blocks keep 16 numbers per token and channel, the rest comes on top.
        assert large - small > 0.8 * 2 * 16 * 4 * 31 * 128 * 128
        assert probe(spec.replace(microbatch_size=4096), 0, small + 200_000_000) is None  # would take 12 GB


def test_nothing_fits_and_it_says_what_the_smallest_needs():
    with pytest.raises(InputError, match=r"--memory = 20 MB.*more stages") as refused:
        searched(lambda rank, size: 30_000_000 * (rank + 1) + size, memory=parse_memory("20MB"))
    # Measured beyond the memory that was given, on the rank that needs most; a tenth more than that, to leave it free.
    assert "allowed is 67 MB: rank 1 was seen to hold 60 MB with micro-batches of 1" in str(refused.value)
    with pytest.raises(InputError, match=r"more than .* on rank 0, for its tensors alone about \d+ MB"):
        searched(lambda rank, size: 10**15, memory=parse_memory("20MB"))


def test_a_peer_is_not_fitted():
    with pytest.raises(InputError, match="engine"):
        fit(tiny(engine="accumulation", schedule="1f1b", stages=1), memory=10**9, batch=8)


@pytest.mark.slow
def test_the_command_predicts_verifies_and_writes_the_spec(tmp_path):
    spec = str(tmp_path / "spec.toml")
    flags = ["--model", WIDE, "--stages", "2", "--partition", "[2,2]", "--device", "cpu", "--batch", "16"]
    code = main(["fit", "--memory", "900MB", *flags, "--output", spec, "--json", str(tmp_path / "fit.json")])
    figures = json.loads((tmp_path / "fit.json").read_text())
    assert code == 0
    chosen = TrainSpec.load(spec)
    assert chosen.to_dict() == figures["spec"] and chosen.window * chosen.microbatch_size == 16
    assert max(figures["measured"]) <= 900e6
    for predicted, measured in zip(figures["predicted"], figures["measured"], strict=True):
        assert measured == pytest.approx(predicted, rel=0.15)
