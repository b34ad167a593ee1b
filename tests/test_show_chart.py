"""A chart reaches a page whole, at its first announcement and whenever the page asks again."""

from __future__ import annotations

import comm
import plotly.graph_objects as go

from paci_lab.show.chart import Chart
from paci_lab.show.notebook import figure_widget


def test_a_chart_is_announced_whole_and_told_as_it_is_now(monkeypatch):
    announced, create = {}, comm.create_comm

    def record(**what):
        made = create(**what)
        announced[made.comm_id] = what["data"]["state"]
        return made

    monkeypatch.setattr(comm, "create_comm", record)
    monkeypatch.setattr(Chart, "_code", None)  # as in a fresh kernel
    chart = figure_widget(go.Figure({"data": [{"type": "bar", "x": [1, 2]}], "layout": {"height": 500}}))
    first = announced[chart.model_id]
    assert list(first["_widget_data"][0]["x"]) == [1, 2] and first["_widget_layout"]["height"] == 500
    shown = announced[chart.in_page.model_id]
    assert shown["of"] == chart.model_id and "Plotly" in announced[shown["code"]]["source"]
    assert max(map(len, map(str, (first, shown)))) < 50_000  # plotly's code is sent once, not with every chart

    with chart.batch_update():
        chart.data[0].x = [3, 4, 5]
        chart.layout.height = 700
    now = chart.get_state()
    assert list(now["_widget_data"][0]["x"]) == [3, 4, 5] and now["_widget_layout"]["height"] == 700
    assert now["_last_trace_edit_id"] > first["_last_trace_edit_id"]  # so that a page can tell which is the newer

    again = figure_widget(go.Figure())
    assert announced[again.in_page.model_id]["code"] == shown["code"]
