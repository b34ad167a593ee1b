"""A study from a notebook: started in a process of its own, stopped, gone on with, and shown."""

from __future__ import annotations

import os

import pytest
from engine_helpers import wait_until
from test_tuning_search import settings

import tuning
from paci_lab import InputError
from tuning.notebook import start, table, windows_chart


@pytest.fixture(autouse=True)
def training(monkeypatch):
    monkeypatch.delenv("PACI_LAB_TRAIN", raising=False)


def test_a_study_is_started_shown_and_waited_for(tmp_path):
    controller = start("mine", settings(seeds=1, confirm_seeds=1), tmp_path)
    view = controller.live()
    assert controller.wait()["point"] == "paci-4" and not controller.running
    wait_until(lambda: "final" in view.children[0].value, what="the last row of the table")
    wait_until(lambda: view.children[1].disabled, what="the end of the thread")
    html = table(controller.study)
    assert html.count("<tr>") == 1 + len(controller.study.trials()) and "paci-4" in html
    assert any("PACI" in trace.name for trace in windows_chart(controller.study).data)


def test_a_study_that_is_stopped_is_gone_on_with(tmp_path):
    asked = settings(seeds=1, confirm_seeds=1, hang_s=60.0, launcher_options={"faults": {"paci-2": "hang"}})
    controller = start("mine", asked, tmp_path)
    try:
        wait_until(lambda: any(t.params["window"] == 2 for t in controller.study.trials()), what="the trial that hangs")
    finally:
        controller.stop()
    assert not controller.running
    assert [t.status for t in controller.study.trials() if t.params["window"] == 2] == ["lost"]
    with pytest.raises(InputError, match="another name"):
        start("mine", settings(seeds=2), tmp_path)
    again = start("mine", asked, tmp_path)
    assert again.running
    again.stop()


def test_without_training_a_recorded_study_is_opened_and_says_so(monkeypatch, capsys):
    monkeypatch.setenv("PACI_LAB_TRAIN", "0")
    controller = start("06-window", tuning.Settings(base=settings().base))
    assert "recorded study" in capsys.readouterr().out and not controller.running
    found = controller.wait()
    assert found["confirmed"] and found["sentence"]
    before = sorted(os.listdir(controller.study.folder))
    controller.live()
    assert sorted(os.listdir(controller.study.folder)) == before
    with pytest.raises(InputError, match="came with the lessons"):
        start("none", settings())
