"""Charts in words: what is said is what the trace says, and every Gantt chart that is shown has it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import plotly.io as pio
import pytest

from paci_lab.schedules import build_schedule
from paci_lab.show.explorer import explorer
from paci_lab.show.front import moving_picture
from paci_lab.show.gantt import STRIPS, gantt, gantt_pair, new_content, update_gantt
from paci_lab.show.loss import loss_curves
from paci_lab.show.page_figure import PageFigure
from paci_lab.show.palette import BACKWARD, DARK, FORWARD, LIGHT, theme_named
from paci_lab.show.report import Chart, Section, write_report
from paci_lab.show.spoken import MOST_ROWS, Spoken, details_html, summary, table_html
from paci_lab.simulate import Costs, simulate
from paci_lab.trace import Trace


class Rows(HTMLParser):
    """The cells of every row of a table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        self._in_cell = tag in ("td", "th")
        if self._in_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._in_cell = False

    def handle_data(self, data):
        if self._in_cell:
            self.rows[-1][-1] += data


def run(name="paci", *, microbatches=8, **costs) -> Trace:
    return simulate(build_schedule(name, stages=3, microbatches=microbatches, window=2), Costs(**costs))


def test_the_table_has_every_operation_with_its_idle_time_and_versions():
    trace = run(forward_ms=1, backward_ms=2)
    head, *rows = Rows(table_html(trace)).rows
    assert head == ["stage", "operation", "number", "start", "duration", "idle before it", "weight version"]
    assert len(rows) == len(trace.of_kind("F", "B", "U")) and rows == sorted(rows, key=lambda row: row[0])
    assert rows[0] == ["0", "forward", "0", "0 µs", "1 ms", "0 µs", "0"]
    last = [row for row in rows if row[:2] == ["0", "backward"]]
    gaps = trace.version_gaps(0)
    assert [int(row[-1].rpartition(" ")[2]) for row in last] == [
        gaps[int(row[2])] for row in last
    ] and 1 in gaps.values()
    idle = sum(float(row[5].split()[0]) for row in rows if row[0] == "2" and row[5].endswith(" ms"))
    end = max(e.end_ns for e in trace if e.stage == 2 and e.op == "B")
    assert idle == pytest.approx(end / 1e6 - trace.busy_ns()[2] / 1e6)
    assert [row[-1] for row in rows if row[:2] == ["1", "optimizer update"]] == [
        f"{n} becomes {n + 1}" for n in range(4)
    ]


def test_a_long_trace_ends_in_words():
    trace = run(microbatches=200)
    operations = len(trace.of_kind("F", "B", "U"))
    html = table_html(trace)
    assert len(Rows(html).rows) == 1 + MOST_ROWS
    assert f"<p>{operations - MOST_ROWS} more operations, after " in html
    shown = table_html(trace, between_ms=(10, 20))
    starts = [float(row[3].split()[0]) for row in Rows(shown).rows[1:]]
    assert 7 < min(starts) <= 10 and max(starts) <= 20


def test_the_summary_says_what_the_chart_shows():
    trace = run("1f1b", forward_ms=1, backward_ms=2)
    words = summary(trace, name="flush")
    assert words.startswith("flush: Gantt chart of 3 stages, simulated, from 0 µs to ")
    assert "24 × forward, 24 × backward, 12 × optimizer update" in words
    assert f"The stages work {100 * (1 - trace.bubble_fraction()):.1f} % of this time." in words
    assert "Stage 0 holds most: 2 micro-batches in flight. No version gap" in words
    assert "No operation is shown." in summary(Trace([], source="measured", stages=2))
    details_html([Spoken(Trace([], source="measured", stages=0))])  # of a run that has not begun


def test_a_figure_that_ends_a_cell_is_followed_by_its_words(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype")
    figure = gantt_pair(run(), run("1f1b"), names=("above & below", "other"))
    update_gantt(figure, run(microbatches=4), run("1f1b", microbatches=4), names=("<one>", "other"))
    InteractiveShell.instance()
    try:
        with capture_output() as captured:
            figure._ipython_display_()
    finally:
        InteractiveShell.clear_instance()
    chart, words = (output.data for output in captured.outputs)
    assert "application/vnd.plotly.v1+json" in chart
    assert words["text/html"].count("<table>") == 2 and "&lt;one&gt;: Gantt chart of 3 stages" in words["text/html"]
    assert "12 × forward" in words["text/html"]  # what is drawn now
    # ... and a dark page has the dark theme's counterpart of every colour the chart's own, whoever draws it
    assert words["text/html"].startswith("<style>") and isinstance(loss_curves({}), PageFigure)
    red, green, blue = (int(LIGHT.muted[i : i + 2], 16) for i in (1, 3, 5))
    assert f'[style*="fill: rgb({red}, {green}, {blue})"]{{fill:{DARK.muted} !important}}' in words["text/html"]


def test_a_report_has_the_table_under_its_chart(tmp_path):
    path = write_report(
        tmp_path / "r.html", title="", lead="", sections=[Section("", "", [Chart(gantt(run()), "", "a")])]
    )
    page = path.read_text(encoding="utf-8")
    assert re.search(r'role="img"[^>]*aria-label="a".*<details class="paci-lab-spoken".*<table>', page, re.S)


def test_the_explorer_speaks_while_somebody_reads():
    view = explorer(stages=2, microbatches=4)
    assert "<table" not in view._spoken.value and "1f1b, window 8" in view.figure.spoken
    view.front.reading = True  # what the page says when the words are unfolded
    assert view._spoken.value.count("<table") == 2
    view.controls["microbatches"].value = 6
    assert view._spoken.value.count("<tr>") == 2 * (1 + 2 * (6 + 6 + 1))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_canvas_has_no_colours_but_those_that_were_checked(theme):
    trace = simulate(build_schedule("zb-h1", stages=3, microbatches=24, window=8), Costs(update_ms=0.2))
    figure = gantt(trace, strips=STRIPS, theme=theme)
    slots, layout = new_content(figure, trace)
    table = moving_picture(figure, slots, tuple(layout["xaxis.range"]), 3)["table"]
    look = theme_named(theme)
    allowed = {*FORWARD, *BACKWARD, look.waiting, look.update, look.background, *look.strip}
    assert {row["fill"] for row in table} <= allowed and {row["fill"] for row in table} >= {*FORWARD, *BACKWARD}
