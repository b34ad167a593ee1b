"""The explorer: the numbers are those of the formulas, the sentences are true, and refusals are seen."""

from __future__ import annotations

import dataclasses
import importlib.util

import pytest

from paci_lab.errors import InputError
from paci_lab.schedules import build_schedule
from paci_lab.show.explorer import explorer
from paci_lab.show.notebook import figure_widget
from paci_lab.show.palette import DARK, LIGHT
from paci_lab.show.settings import Settings, activation_bytes, explore
from paci_lab.show.why import Moments, flushes, why_idle
from paci_lab.simulate import Costs, simulate

MS = 1_000_000


def run(name, *, stages=4, microbatches=16, window=8, **costs):
    return simulate(build_schedule(name, stages=stages, microbatches=microbatches, window=window), Costs(**costs))


# -- numbers ------------------------------------------------------------------------------------------------------
def test_numbers_follow_the_formulas():
    settings = Settings(schedule="1f1b", stages=4, microbatches=8, window=8, forward_ms=1, backward_ms=1)
    trace, numbers = explore(settings)
    assert trace.makespan_ns == 22 * MS
    assert numbers.bubble == pytest.approx(3 / 11)
    assert numbers.held == [4, 3, 2, 1] and numbers.gap_max == [0, 0, 0, 0] and numbers.against_flush == 1


def test_paci_against_flush_nears_the_ideal_speed_up():
    _, numbers = explore(Settings(schedule="paci", stages=8, microbatches=512, window=8))
    assert numbers.against_flush == pytest.approx((8 + 7) / 8, rel=0.02)
    assert numbers.gap_max == [1] * 7 + [0]


def test_slack_counts_for_every_schedule_that_has_it():
    for schedule, slack, held in (("paci", 3, 7), ("pipemare", 3, 7), ("interleaved-paci", 1, 4), ("1f1b", 3, 4)):
        trace, numbers = explore(Settings(schedule=schedule, stages=4, slack=slack))
        assert numbers.held[0] == held == max(trace.in_flight_peak()), schedule
    assert explore(Settings(schedule="zb-v", stages=8))[1].bubble < 0.05


def test_memory_is_that_of_the_activations_held():
    _, numbers = explore(Settings(schedule="paci", stages=4, microbatches=16, window=4, microbatch_size=2))
    one = activation_bytes("GPT-2 medium", stages=4, microbatch_size=2)
    assert one == 24 / 4 * 1024 * 2 * (34 * 1024 + 5 * 16 * 1024)
    assert numbers.memory == [4 * one, 3 * one, 2 * one, one]


def test_a_straggler_beyond_the_last_stage_counts_for_nothing():
    plain = Settings(stages=4)
    assert explore(dataclasses.replace(plain, straggler=9))[1] == explore(plain)[1]
    assert explore(dataclasses.replace(plain, straggler=2))[1].bubble > explore(plain)[1].bubble


# -- why a stage is idle ------------------------------------------------------------------------------------------
def test_every_moment_of_every_stage_has_a_sentence_that_agrees_with_the_trace():
    for name in ("paci", "1f1b", "gpipe"):
        moments = Moments(run(name, latency_ms=0.5, jitter=0.2, update_ms=0.3))
        for event in moments.work:
            assert event == moments.at(event.stage, event.start_ns)
            for stage, sentence in enumerate(moments.sentences(event.start_ns)):
                there = moments.at(stage, event.start_ns)
                working = there is not None and not there.op.startswith("wait")
                assert sentence.startswith(f"Stage {stage} ") and sentence.endswith(".")
                assert working == (" runs " in sentence or " makes update " in sentence)


def test_flush_is_told_apart_from_paci():
    assert flushes(run("1f1b")) and flushes(run("gpipe"))
    assert not flushes(run("paci"))


def test_the_fill_says_where_the_first_micro_batch_is():
    sentence = why_idle(run("paci"), 3, 1 * MS + 1)
    assert "waits for the activation of micro-batch 0 from stage 2. It has come as far as stage 1." in sentence
    assert "Stage 1 is computing it for 1 ms more." in sentence
    assert "The pipeline is filling" in sentence


def test_the_drain_of_a_flush_names_its_window():
    trace = run("1f1b", stages=4, microbatches=16, window=8)
    waits = [e for e in trace.of_kind("wait-B") if e.stage == 0 and e.microbatch == 7]
    sentence = why_idle(trace, 0, waits[0].start_ns)
    assert "All forwards of window 0 are done" in sentence and "the pipeline drains" in sentence
    refill = [e for e in trace.of_kind("wait-F") if e.stage == 3 and e.microbatch == 8]
    assert "this is the bubble of a flush" in why_idle(trace, 3, refill[0].start_ns)


def test_paci_waits_because_of_its_in_flight_limit():
    trace = run("paci", latency_ms=1)
    wait = [e for e in trace.of_kind("wait-B") if e.stage == 0 and e.microbatch == 4][0]
    assert "holds the activations of 4 micro-batches, as many as its schedule lets it" in why_idle(
        trace, 0, wait.start_ns
    )
    assert "the message is on its way" in why_idle(trace, 0, wait.end_ns - 1)


def test_before_and_after_all_work():
    trace = run("paci")
    assert "it has done all its work" in why_idle(trace, 3, trace.makespan_ns - 1)
    assert "the stream ends and the pipeline drains" in why_idle(trace, 0, trace.makespan_ns - 3 * MS)


def test_a_journey_goes_down_and_up_through_all_stages():
    path = Moments(run("paci")).journey(5)
    assert [(event.op, event.stage) for event in path] == [("F", s) for s in range(4)] + [
        ("B", s) for s in (3, 2, 1, 0)
    ]


# -- the widget ---------------------------------------------------------------------------------------------------
def test_one_slider_moves_both_charts_and_the_numbers():
    view = explorer(stages=4, microbatches=16, window=4)
    before = len(view.traces[0]), view._table.value
    view.controls["microbatches"].value = 24
    assert [int(trace.microbatch.max()) for trace in view.traces] == [23, 23]
    assert len(view.traces[0]) > before[0] and view._table.value != before[1]
    drawn = sum(len(trace.y) for trace in view.figure.data if trace.name == "F" and trace.y is not None)
    assert drawn == 2 * 4 * 24 and view.problems.last == ""


def test_windows_can_be_unlinked():
    view = explorer(stages=4, microbatches=16, window=4)
    view.controls["linked"].value = False
    view.controls["window below"].value = 8
    assert [settings.window for settings in view.settings()] == [4, 8]
    assert not view.controls["window below"].disabled


def test_the_number_of_stages_may_change():
    view = explorer(stages=4, microbatches=8, window=4)
    view.controls["stages"].value = 7
    assert view.figure.layout.yaxis.range == view.figure.layout.yaxis2.range == (6.5, -0.5)


def test_steps_go_forward_and_back_and_draw_the_versions():
    view = explorer(stages=3, microbatches=8, window=2)
    for _ in range(3):
        view.controls["forward"].click()
    view.controls["back"].click()
    assert view.controls["step mode"].value and view.controls["step"].value == 2
    moment, journey = view.figure.data[-2:]
    event = Moments(view.traces[1]).work[2]
    assert moment.x == (event.start_ns / MS,) * 2 and moment.yaxis == "y2"
    assert len(journey.text) == 6 and all(text.startswith("v") for text in journey.text)
    assert view._words.value.count("<li>") == 3
    view.controls["step in"].value = "above"
    assert view.figure.data[-2].yaxis == "y"
    view.controls["microbatches"].value = 1  # fewer operations than the step stands at
    assert view.problems.last == "" and view.controls["step"].value <= view.controls["step"].max
    view.controls["step mode"].value = False
    assert len(view.figure.data[-1].x) == 0 and view._words.value == ""


def test_an_error_in_a_callback_is_shown(monkeypatch):
    view = explorer(stages=2, microbatches=4, window=2)

    def broken(settings):
        raise RuntimeError("this must be seen")

    monkeypatch.setattr("paci_lab.show.explorer.explore", broken)
    view.controls["window"].value = 3
    assert "this must be seen" in view.problems.widget.outputs[0]["text"]
    monkeypatch.undo()
    view.controls["window"].value = 4
    assert view.problems.widget.outputs == ()


def test_a_missing_notebook_package_is_named_with_its_command(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "anywidget" else found(name))
    with pytest.raises(InputError, match="pip install anywidget"):
        figure_widget(None)


def test_the_explorer_follows_the_page():
    view = explorer(stages=2, microbatches=8)
    view.front.page = "dark"
    assert view.figure.layout.paper_bgcolor == DARK.background and view.figure.data[-1].line.color == DARK.ink
    assert view.figure.layout.annotations[0].font.color == DARK.ink
    view.front.page = "light"
    assert view.figure.layout.paper_bgcolor == LIGHT.background
