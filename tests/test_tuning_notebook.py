"""A study from a notebook: started in a process of its own, stopped, gone on with, and shown."""

from __future__ import annotations

import os
import re

import pytest
from engine_helpers import PATIENCE_MS, open_chromium, tiny, wait_until
from test_tuning_runs import small
from test_tuning_search import settings

import paci_lab
import tuning
from paci_lab import InputError
from paci_lab.show.page_figure import PageFigure
from paci_lab.show.palette import swap
from tuning.locks import Presence
from tuning.notebook import RECORDINGS, Controller, start, table, windows_chart
from tuning.trial import Trial
from tuning.trial_view import TrialTable


@pytest.fixture(autouse=True)
def training(monkeypatch):
    monkeypatch.delenv("PACI_LAB_TRAIN", raising=False)


def test_a_study_is_started_shown_and_waited_for(tmp_path):
    controller = start("mine", settings(seeds=1, confirm_seeds=1), tmp_path)
    view = controller.live()
    assert controller.wait()["point"] == "paci-4" and not controller.running
    wait_until(lambda: "final" in view.table.html, what="the last row of the table")
    wait_until(lambda: view.stop.disabled, what="the end of the study")
    html = table(controller.study)
    assert html.count("<tr ") == len(controller.study.trials()) and "paci-4" in html
    view.table.chosen = "baseline"  # runs of this launcher have no trace
    wait_until(lambda: "flush-8, seed 0: reached" in view._note.value, what="the chosen trial's note")
    assert "There is no trace of this run" in view._note.value and not view.problems.last
    view.close()
    assert any("PACI" in trace.name for trace in windows_chart(controller.study).data)


class Busy(Controller):
    """A controller that is at work until the test says otherwise."""

    running = True


def test_a_chosen_trial_shows_its_gantt_while_it_runs_and_afterwards(tmp_path):
    study = small(tmp_path / "s")
    endless = tiny(updates=1_000_000, schedule="paci", window=2, pace_forward_ms=5.0, pace_backward_ms=5.0)
    run_dir = study.folder / "trials" / "paci-0000"
    trial = Trial(side="paci", number=0, phase="search", params={"window": 2}, seed=0, path=str(run_dir))
    controller = Busy(study)
    with Presence(study.folder, exclusive=False):
        study.freeze(study.launcher(), lambda sentence, about: None)
        run = paci_lab.launch(endless, run_dir)
        try:
            trial.save(run_dir)
            view = controller.live()
            view.table.chosen = "trials/paci-0000"
            wait_until(lambda: view.figure is not None and bars(view.figure), what="its chart")
            first = view.figure.layout.xaxis.range
            wait_until(lambda: view.figure.layout.xaxis.range[1] > first[1], what="operations that came later")
            assert "paci-2, seed 0: running" in view._note.value and not view.stop.disabled
        finally:
            run.stop()
    running, figure = bars(view.figure), view.figure
    view.table.chosen = "baseline"
    wait_until(lambda: "flush-3, seed 0: reached" in view._note.value, what="the other trial")
    assert view.figure is figure and bars(figure) and bars(figure) != running
    assert view._chart.children == (figure.in_page,)
    again = controller.live()
    assert view._closed.is_set() and view.stop.disabled and not view.problems.last
    again.close()


def bars(figure) -> list:
    """Starts of all bars in the chart."""
    return [float(at) for trace in figure.data if trace.type == "bar" and trace.base is not None for at in trace.base]


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


_MODEL = """
(code) => import(URL.createObjectURL(new Blob([code], { type: "text/javascript" }))).then(async (module) => {
  const values = { html: window.first, chosen: "" }, hears = {};
  window.model = {
    get: (name) => values[name],
    set: (name, value) => { values[name] = value; (hears[`change:${name}`] ?? []).forEach((call) => call()); },
    on: (name, call) => (hears[name] ??= []).push(call),
    save_changes: () => { window.saved = values.chosen; },
  };
  const manager = { get_model: async (id) => id === "the table" && window.model };
  await module.default.render({ model: { get: () => "the table", widget_manager: manager }, el: document.body });
})
"""


def test_the_chart_of_the_windows_follows_its_page_into_the_dark():
    figure = windows_chart(tuning.Study.open(RECORDINGS / "06-window"))
    assert isinstance(figure, PageFigure)
    figure.layout.template = None  # plotly's own, most of which nothing draws
    assert set(re.findall("#[0-9a-f]{6}", figure.to_json().lower())) <= {color.lower() for color in swap()}


@pytest.mark.browser
def test_a_row_is_chosen_by_click_or_enter_and_stays_chosen_when_the_table_is_renewed():
    playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    made = tuning.Study.open(RECORDINGS / "06-window")
    with playwright_api.sync_playwright() as playwright:
        page = open_chromium(playwright).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.evaluate("html => { window.first = html; }", table(made))
        page.evaluate(_MODEL, str(TrialTable(html="").in_page._esm))
        page.click("tr[data-run='trials/paci-0001'] td")
        assert page.evaluate("window.saved") == "trials/paci-0001"
        page.focus("tr[data-run='baseline']")
        page.keyboard.press("Enter")
        assert page.evaluate("window.saved") == "baseline"
        page.evaluate("window.model.set('html', window.first.replace('used', 'used up'))")
        assert "used up" in page.inner_text("body")
        assert page.evaluate("[...document.querySelectorAll('[aria-selected=true]')].map(r => r.dataset.run)") == [
            "baseline"
        ]
        assert page.evaluate("document.activeElement.dataset.run") == "baseline"
        page.context.browser.close()
