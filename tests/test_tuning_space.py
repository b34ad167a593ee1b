"""The space: theory's windows, points and their specs, and what is refused before anything runs."""

from __future__ import annotations

import doctest
import math

import pytest

import tuning.settings
import tuning.theory
from paci_lab import InputError, TrainSpec, simulate
from tuning import Settings, Space
from tuning.plan import plan, stage_memory_bytes
from tuning.side import SIDES
from tuning.storage import distributions
from tuning.theory import flush_windows, paci_windows, predict

BASE = TrainSpec(stages=8, window=8, microbatches=800, microbatch_size=2, learning_rate=1e-3, model="pico")


def test_examples_in_docstrings_hold():
    for module in (tuning.theory, tuning.settings):
        found = doctest.testmod(module)
        assert found.attempted and not found.failed


@pytest.mark.parametrize("stages", [2, 3, 4, 8, 16])
def test_theory_windows_are_the_smallest_with_their_gap(stages):
    for window, why in paci_windows(stages, most=1000).items():
        gap = BASE.replace(
            stages=stages, schedule="paci", window=window, model="gpt:blocks=32,width=8,heads=1,context=8"
        ).build_schedule()
        if why.startswith("smallest"):
            assert gap.gap_bound(0) <= int(why[-1])
            assert window == 1 or -(-(stages - 1) // (window - 1)) > int(why[-1])
        else:
            assert gap.gap_bound(0) == 1 and f"mean {(stages - 1) / window:g}" in why


def test_flush_windows_have_the_bubble_they_name():
    for window, why in flush_windows(8, most=100).items():
        bubble = (
            BASE.replace(schedule="1f1b", window=window, microbatches=window * 50)
            .build_schedule()
            .ideal_bubble_fraction()
        )
        assert f"bubble {bubble:.0%}".replace("%", " %") == why


def test_prediction_of_a_paced_flush_is_the_simulators():
    spec = BASE.replace(schedule="1f1b", pace_forward_ms=1.0, pace_backward_ms=2.0, microbatches=80)
    found = predict(spec)
    assert found.stream_s == pytest.approx(0.330 + 9 * found.per_update_s - 0.285, rel=0.2)
    assert found.per_update_s == pytest.approx((8 + 7) * 0.003)
    assert found.bubble == pytest.approx(7 / 15) and found.gap_max == 0 and found.held == 8


def test_prediction_of_paci_matches_its_trace():
    spec = BASE.replace(schedule="paci", window=5, microbatches=400)
    found, trace = predict(spec), simulate(spec.build_schedule())
    assert found.gap_max == trace.version_gap_max()[0]
    assert found.gap_mean == pytest.approx(trace.version_gap_mean()[0], abs=0.05)
    assert found.per_update_s is None


def test_points_of_a_small_grid_are_all_there_once_and_start_from_what_is_known():
    space = Space(windows=(2, 7, 14), learning_rate_scales=(0.5, 1.0), optimizers=("nadam", "muon"), slacks=(0, 1))
    paci, flush = (space.side(name, BASE) for name in SIDES)
    assert paci.size == 24 and paci.enumerable and len({str(p) for p in paci.points()}) == 24
    assert paci.points()[0] == {"window": 7, "learning_rate_scale": 1.0, "optimizer": "nadam", "slack": 0}
    assert "slack" not in flush.dimensions
    assert paci.reason({"window": 7}) == "smallest window with version gap at most 1"


def test_a_point_becomes_a_spec_with_the_same_tokens_and_the_rules_learning_rate():
    space = Space(windows=(2, 32), microbatch_sizes=(2, 4), learning_rate_scales=(2.0,), momenta=(0.9,))
    spec = space.side("paci", BASE).spec(
        {"window": 32, "microbatch_size": 4, "learning_rate_scale": 2.0, "momentum": 0.9}, 3
    )
    assert spec.total_microbatches * spec.microbatch_size == BASE.total_microbatches * BASE.microbatch_size
    assert spec.learning_rate == pytest.approx(BASE.learning_rate * 2 * math.sqrt(32 * 4 / (8 * 2)))
    assert (spec.schedule, spec.seed, spec.momentum) == ("paci", BASE.seed + 3, 0.9)
    constant = Space(windows=(32,), learning_rate_rule="constant").side("paci", BASE).spec({"window": 32}, 0)
    assert constant.learning_rate == BASE.learning_rate


def test_the_base_spec_is_a_point_of_flush_unless_the_space_leaves_it_out():
    assert Space().side("flush", BASE).base_point() == {"window": 8}
    assert Space(flush_windows=(4, 16)).side("flush", BASE).base_point() is None
    assert Space(learning_rate_scales=(0.5, 2.0)).side("flush", BASE).base_point() is None


def test_a_range_goes_to_a_sampler_with_theorys_windows_first():
    space = Space.from_dict({"windows": "2..64", "learning_rate_scales": "0.25..4"})
    side = space.side("paci", BASE)
    assert side.size == math.inf and not side.enumerable
    assert [point["window"] for point, _ in side.first()] == [14, 7, 4, 2]
    found = distributions(side)
    assert (found["window"].low, found["window"].high, found["window"].log) == (2, 64, True)
    assert all(found[name]._contains(found[name].to_internal_repr(v)) for p, _ in side.first() for name, v in p.items())


def test_settings_survive_their_file(tmp_path):
    space = Space.from_dict({"windows": "2..64", "partitions": [[1, 1, 1, 1, 1, 1, 2, 2]], "optimizers": ["muon"]})
    settings = Settings(base=BASE, space=space, memory="90%", launcher="slurm", launcher_options={"gpus": 8}, price=2.5)
    settings.save(tmp_path / "study.toml")
    assert Settings.load(tmp_path / "study.toml") == settings


@pytest.mark.parametrize(
    ("base", "space", "named"),
    [
        ({"stages": 1}, {}, "stages"),
        ({"evaluate": "after"}, {}, "evaluate"),
        ({"pace_forward_ms": 1.0}, {"microbatch_sizes": (2, 4)}, "microbatch_sizes"),
        ({"partition": [1, 1, 1, 1, 1, 1, 1, 1]}, {"stages": (4, 8)}, "stages"),
        ({"pace_forward_ms": [1.0] * 8}, {"stages": (4, 8)}, "stages"),
        ({}, {"windows": (900,)}, "windows"),
        ({}, {"flush_windows": (401,)}, "flush_windows"),
        ({}, {"windows": ()}, "windows"),
        ({}, {"windows": (0, 4)}, "windows"),
        ({}, {"learning_rate_scales": (0.0, 1.0)}, "learning_rate_scales"),
        ({}, {"momenta": (1.5,)}, "momentum"),
        ({}, {"partitions": ((3, 3),)}, "partition"),
        ({}, {"learning_rate_rule": "cube"}, "learning_rate_rule"),
    ],
)
def test_contradictions_are_refused_by_name(base, space, named):
    with pytest.raises(InputError) as refusal:
        Settings(base=BASE.replace(**base), space=Space(**space))
    assert refusal.value.what == named


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("windows", "8..2"),
        ("windows", "a..b"),
        ("optimizers", "1..2"),
        ("windows", 8),
        ("windows", ["x"]),
        ("colour", [1]),
    ],
)
def test_a_space_file_with_wrong_values_is_refused(name, value):
    with pytest.raises(InputError):
        Space.from_dict({name: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"budget_s": 0},
        {"slack": 1},
        {"seeds": 0},
        {"memory": "half"},
        {"memory": "120%"},
        {"price": -1},
        {"sampler": "x"},
        {"pareto": 1},
    ],
)
def test_wrong_settings_are_refused(changes):
    with pytest.raises(InputError):
        Settings(base=BASE, **changes)


def test_a_plan_starts_nothing_and_counts_in_the_budget(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paced = BASE.replace(pace_forward_ms=1.0, pace_backward_ms=2.0)
    small, large = (plan(Settings(base=paced, budget_s=s)) for s in (100, 1000))
    assert small["trials"] < large["trials"] and small["trial_s"] == large["trial_s"] > 0
    assert small["sides"]["flush"]["points"] == 4
    assert plan(Settings(base=BASE))["trial_s"] is None
    assert not list(tmp_path.iterdir())


def test_predicted_memory_counts_weights_optimizer_and_what_is_in_flight():
    from paci_lab.models import build_model

    spec = BASE.replace(model="femto", stages=2, partition=[3, 3], schedule="paci", optimizer="sgd")
    model = build_model("femto")
    held = [
        sum(model.activation_bytes_per_microbatch(layer, 2) for layer in layers) for layers in (range(3), range(3, 6))
    ]
    weights = model.parameters_per_layer()
    assert stage_memory_bytes(spec) == [12 * sum(weights[:3]) + 2 * held[0], 12 * sum(weights[3:]) + held[1]]
    assert stage_memory_bytes(spec.replace(optimizer="adamw"))[0] - stage_memory_bytes(spec)[0] == 4 * sum(weights[:3])
