"""Reports: one file that needs nothing else, in which no text can become markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from paci_lab.schedules import build_schedule
from paci_lab.show.gantt import gantt
from paci_lab.show.loss import loss_curves
from paci_lab.show.report import Chart, Column, Facts, Section, Table, comparison_table, write_report
from paci_lab.simulate import simulate

NASTY = '</script><script>alert("x")</script>&<b>'
ROWS = [{"time_s": t, "tokens": 1000 * t, "update": t, "val_loss": 5 - t} for t in range(4)]


class Page(HTMLParser):
    """Elements with their attributes, and the text of scripts and of everything else."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.text, self.scripts, self._inside = [], "", [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside.append(tag)

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self._inside and self._inside[-1] == "script":
            self.scripts.append(data)
        elif not self._inside or self._inside[-1] != "style":
            self.text += data


def chart():
    figure = gantt(simulate(build_schedule("paci", stages=2, microbatches=4, window=2)), title=NASTY)
    return Chart(figure, caption=NASTY, alternative=NASTY)


def write(tmp_path, *parts):
    return write_report(
        tmp_path / "new folder" / "report.html",
        title=NASTY,
        lead=NASTY + "\n\nsecond paragraph",
        sections=[Section(NASTY, NASTY, parts)],
        footer=NASTY,
    )


def test_every_text_is_escaped(tmp_path):
    table = Table([Column(NASTY, meaning=NASTY), Column("n", "{:.1f}")], [[NASTY, 1.25], [NASTY, None]], caption=NASTY)
    page = Page(write(tmp_path, chart(), table, Facts([(NASTY, NASTY)])))
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert len(scripts) == 4  # plotly.js, the colours to swap, the page's own, and the figure's data
    assert not any("alert" in script for script in page.scripts if not script.startswith("{"))
    assert page.text.count('alert("x")') >= 10 and "<b>" in page.text


def test_the_page_needs_nothing_else(tmp_path):
    path = write(tmp_path, chart(), Chart(loss_curves({"a": ROWS}), "caption", "words"))
    page = Page(path)
    for tag, attributes in page.elements:
        assert "src" not in attributes and tag not in ("link", "iframe", "img")
    style = re.search(r"<style>(.*?)</style>", path.read_text(encoding="utf-8"), re.S)[1]
    assert "url(" not in style and "@import" not in style
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1  # plotly.js once, for both charts


def test_a_page_without_charts_is_small(tmp_path):
    assert write(tmp_path, Facts([("1", "one")])).stat().st_size < 20_000


def test_every_chart_has_words_for_those_who_cannot_see_it(tmp_path):
    page = Page(write(tmp_path, chart(), Chart(loss_curves({"a": ROWS}), "caption", "falls from 5 to 2")))
    labels = [attributes.get("aria-label") for _, attributes in page.elements if attributes.get("role") == "img"]
    assert labels == [NASTY, "falls from 5 to 2"]


def test_the_figure_in_the_page_is_the_figure(tmp_path):
    one = chart()
    page = Page(write(tmp_path, one))
    data = next(json.loads(script) for script in page.scripts if script.startswith("{"))
    assert data == json.loads(one.figure.to_json())


def test_both_themes_and_a_switch(tmp_path):
    path = write(tmp_path, chart())
    text = path.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text and ':root[data-theme="dark"]' in text and 'id="theme"' in text


def test_the_table_of_results_sums_up_lists_and_leaves_out_empty_columns():
    results = [
        {
            "name": "1f1b",
            "reached": True,
            "time_to_target_s": 118.2,
            "utilization": [0.5, 0.7],
            "version_gap_max": [0, 0],
            "ratio": 1.0,
        },
        {
            "name": "paci",
            "reached": False,
            "time_to_target_s": None,
            "utilization": [0.9, 1.0],
            "version_gap_max": [2, 0],
            "ratio": None,
        },
    ]
    table = comparison_table(results, caption="c", extra={"ratio": Column("ratio", "{:.2f}×")})
    assert [column.heading for column in table.columns] == ["run", "time to target", "working", "version gap", "ratio"]
    assert [list(row) for row in table.rows] == [
        ["1f1b", 118.2, pytest.approx(0.6), 0, 1.0],
        ["paci", "not reached", pytest.approx(0.95), 2, None],
    ]


def test_cells_are_printed_in_their_format(tmp_path):
    table = comparison_table([{"name": "r", "time_to_target_s": 66.84, "utilization": [0.5]}], caption="c")
    text = write(tmp_path, table).read_text(encoding="utf-8")
    assert ">66.8 s<" in text and ">50.0%<" in text


def test_loss_curves_show_time_and_samples_and_where_the_target_is_reached():
    rows = [*ROWS, {"time_s": 9, "tokens": 9, "update": 9, "train_loss": 1.0}]
    figure = loss_curves({"a": rows, "b": ROWS[:2]}, target=3.0)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert [(trace.name, trace.xaxis, list(trace.x)) for trace in lines[:2]] == [
        ("a", "x", [0, 1, 2, 3]),
        ("a", "x2", [0, 1000, 2000, 3000]),
    ]
    dots = [(trace.name, trace.xaxis, list(trace.x), list(trace.y)) for trace in figure.data if trace.mode == "markers"]
    assert dots == [("a", "x", [2], [3]), ("a", "x2", [2000], [3])]  # b never gets there
    assert {shape.y0 for shape in figure.layout.shapes} == {3.0} and len(figure.layout.shapes) == 2
