"""`paci-lab claims`: what follows from the paper's figures, the judgement on known curves, the command to its end."""

from __future__ import annotations

import json
import math

import pytest

from paci_lab.claims.judged import judge, share_at, throughput_table
from paci_lab.claims.measured import Clock, simulated_seconds
from paci_lab.claims.plan import SIZES, Size, replayed_specs, timed_specs
from paci_lab.claims.published import HOURS, TARGET_SHARES, microbatch_costs
from paci_lab.claims.replays import replay_all
from paci_lab.cli import main
from paci_lab.errors import RunFailed
from paci_lab.exact_replay import replay
from paci_lab.spec import TrainSpec

ONE = Size("gpt:blocks=8,width=16,heads=1,context=16", 2, 1, ("adamw",), 2, 1, 10.0)


def test_the_costs_give_the_papers_flush_hours_back():
    costs = microbatch_costs()
    hour = HOURS[128]["1f1b", 16] / 23 / costs[8]
    for batch, runs in HOURS.items():
        for (schedule, m), hours in runs.items():
            if schedule == "1f1b":  # two sizes are means of two runs, which differ by up to 9 %
                assert (m + 7) * costs[batch // m] * hour * 128 / batch == pytest.approx(hours, rel=0.05)
    assert list(TARGET_SHARES) == [18, 17, 16] and TARGET_SHARES[16] == pytest.approx(0.778, abs=1e-3)


def test_the_same_sequences_in_every_row():
    timed = timed_specs(SIZES["default"])
    assert len(timed) == 9
    for name, spec in timed.items():
        assert spec.window * spec.microbatch_size * 8 == int(name.split("-")[0])
    totals = {spec.total_microbatches * spec.microbatch_size for _, spec in replayed_specs(SIZES["full"])}
    assert totals == {600 * 16}
    paces = {spec.microbatch_size: spec.pace_forward_ms + spec.pace_backward_ms for spec in timed.values()}
    assert {size: pace / paces[2] for size, pace in paces.items()} == pytest.approx({1: 0.598, 2: 1, 4: 2}, abs=1e-3)


def test_simulated_updates_follow_the_formula():
    assert simulated_seconds("1f1b", 128, 8) == pytest.approx(15, rel=1e-6)
    assert simulated_seconds("paci", 128, 8) == pytest.approx(8, rel=1e-6)
    rows = {(row["stages"], row["batch"], row["window"]): row for row in throughput_table()}
    assert len(rows) == 18
    for (stages, _, m), row in rows.items():
        assert row["same"] == pytest.approx(row["formula"]) == pytest.approx((m + stages - 1) / m)
        assert row["best"] <= row["same"] + 1e-9 and row["gap"] == math.ceil((stages - 1) / m)


def test_judged_on_curves_that_are_known():
    """A flush whose loss falls from 4 to 2 in a straight line, and a PACI that is a tenth of the run behind it."""
    points = [number / 10 for number in range(1, 21)]
    flush = [(share / 2, 4 - share) for share in points]
    late = [(share / 2, 4 - share + 0.2) for share in points]
    curves, clocks = {}, {}
    for batch, runs in HOURS.items():
        curves[f"{batch}-1f1b-0-adamw-0"] = flush
        for schedule, window in runs:
            each = window + 7 if schedule == "1f1b" else window
            clocks[f"{batch}-{schedule}-{window}"] = Clock(each, each, [each], 0, [])
            if schedule == "paci":
                curves[f"{batch}-paci-{window}-adamw-0"] = late
    found = judge(SIZES["quick"].__class__(**{**vars(ONE), "updates": 100}), clocks, curves)
    same = next(s["same"] for s in found["speedups"] if (s["batch"], s["window"]) == (128, 8))
    assert same["published"] == pytest.approx(162.33 / 87.99) and same["timed"] == pytest.approx(15 / 8)
    for perplexity, share in TARGET_SHARES.items():
        assert same["to_target"]["adamw"][str(perplexity)] == pytest.approx(15 * share / (8 * (share + 0.1)))
    assert found["speedups"][0]["best"]["published"] == pytest.approx(148.64 / 111.51)
    assert share_at(late, 1.9) is None and share_at([(0.25, 1.0)], 2.0) == 0.25


def test_replays_are_kept_and_a_bad_one_ends_them(tmp_path):
    specs = {name: spec for name, spec in replayed_specs(ONE) if name.startswith("128")}
    said: list[str] = []
    curves = replay_all(specs, tmp_path, said=said.append)
    assert sorted(said) == sorted(specs) == ["128-1f1b-0-adamw-0", "128-paci-4-adamw-0", "128-paci-8-adamw-0"]
    exact = replay(specs["128-paci-4-adamw-0"])
    assert curves["128-paci-4-adamw-0"] == [(m / 8, loss) for m, _, loss in exact.validation]
    kept = json.loads((tmp_path / "128-paci-4-adamw-0.json").read_text())
    assert kept["train"] == exact.losses
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert replay_all(specs, tmp_path) == curves
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    with pytest.raises(RunFailed, match="the replay bad ended early"):
        replay_all({"bad": TrainSpec(model="femto", stages=2, data="missing.txt", updates=1)}, tmp_path)


@pytest.mark.slow
def test_the_quick_command_writes_figures_page_and_run_directories(tmp_path):
    assert main(["claims", "--quick", "--run-dir", str(tmp_path / "c"), "--json", str(tmp_path / "out.json")]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures == json.loads((tmp_path / "c" / "claims.json").read_text())
    assert len(figures["rows"]) == 9 and len(figures["speedups"]) == 4 and len(figures["throughput"]) == 18
    for row in figures["rows"]:
        assert (
            row["timed_seconds_per_update"] >= 0.99 * row["window"] * 0.02 * microbatch_costs()[16 // row["window"] * 8]
        )
        assert set(row["losses"]) == {"adamw", "nadam"}
    page = (tmp_path / "c" / "claims.md").read_text()
    assert "227.62" not in page and "15.480 ± 0.265" in page and "## Why they differ" in page
    assert len([*(tmp_path / "c").glob("timed-*/128-paci-8/result.json")]) == 1
