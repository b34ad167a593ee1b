"""Gantt charts: what is drawn is what the trace says, in few traces, in colours everyone can tell apart."""

from __future__ import annotations

import itertools
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from paci_lab.errors import InputError
from paci_lab.schedules import build_schedule
from paci_lab.show.bars import Rows, bar_arrays, duration_text, fitting_numbers, held_steps, version_spans
from paci_lab.show.gantt import STRIPS, gantt, gantt_pair, retheme, update_gantt
from paci_lab.show.loss import loss_curves
from paci_lab.show.palette import BACKWARD, DARK, FORWARD, LIGHT, contrast, ink_on, swap
from paci_lab.simulate import Costs, simulate
from paci_lab.trace import Trace, TraceEvent

# Machado, Oliveira and Fernandes 2009, severity 1.0, for linear RGB.
MACHADO = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def run(name="paci", *, stages=4, microbatches=16, window=4, **costs) -> Trace:
    return simulate(build_schedule(name, stages=stages, microbatches=microbatches, window=window), Costs(**costs))


def bars(figure, kind):
    """All bars of a kind as (stage row, start, length, text, hover), in order of row and start."""
    found = []
    for trace in figure.data:
        if trace.name == kind and trace.y is not None:
            texts = trace.text if trace.text is not None else [""] * len(trace.y)
            found += zip(
                np.round(trace.y).astype(int).tolist(), trace.base, trace.x, texts, trace.customdata, strict=True
            )
    return sorted(found, key=lambda bar: bar[:2])


def oklab(rgb):
    """sRGB (…, 3) in 0..1, linear, to OKLab (Ottosson 2020)."""
    lms = (
        np.clip(rgb, 0, 1)
        @ np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        ).T
    )
    return (
        np.cbrt(lms)
        @ np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        ).T
    )


def linear(color):
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("sight", MACHADO)
@pytest.mark.parametrize("cycle", [FORWARD, BACKWARD])
def test_neighbours_in_the_cycle_differ_for_every_kind_of_sight(cycle, sight):
    seen = [oklab(linear(color) @ np.array(MACHADO[sight]).T) for color in cycle]
    distance = [float(np.linalg.norm(one - other)) for one, other in zip(seen, [*seen[1:], seen[0]], strict=True)]
    assert min(distance) >= 0.1


@pytest.mark.parametrize("sight", MACHADO)
def test_forward_and_backward_of_a_micro_batch_differ_in_lightness_for_every_kind_of_sight(sight):
    matrix = np.array(MACHADO[sight]).T
    for forward, backward in zip(FORWARD, BACKWARD, strict=True):
        assert oklab(linear(forward) @ matrix)[0] - oklab(linear(backward) @ matrix)[0] >= 0.2


def test_every_ink_can_be_read():
    for color in (*FORWARD, *BACKWARD):
        assert contrast(ink_on(color), color) >= 4.5
    for theme in (LIGHT, DARK):
        assert contrast(theme.ink, theme.background) >= 7
        assert contrast(theme.muted, theme.background) >= 4.5
        assert all(contrast(theme.ink, strip) >= 4.5 for strip in theme.strip)
        assert all(contrast(color, theme.background) >= 3 for color in theme.series)


def test_swapping_themes_cannot_touch_a_micro_batch():
    used = {*FORWARD, *BACKWARD, *(ink_on(color) for color in (*FORWARD, *BACKWARD))}
    assert not used & swap().keys()


def test_bars_are_the_events_of_the_trace():
    trace = run("1f1b", stages=4, microbatches=8, window=8, forward_ms=1, backward_ms=1)
    figure = gantt(trace)
    for kind in ("F", "B"):
        events = sorted((e.stage, e.start_ns / 1e6, (e.end_ns - e.start_ns) / 1e6) for e in trace.of_kind(kind))
        assert [bar[:3] for bar in bars(figure, kind)] == events
    assert len(bars(figure, "wait")) == len(trace.of_kind("wait-F", "wait-B"))
    assert figure.layout.yaxis.range == (3.5, -0.5)  # stage 0 at the top
    assert figure.layout.xaxis.range == (0, 22)


def test_hue_is_the_micro_batch_and_shade_the_kind_of_work():
    figure = gantt(run(microbatches=25))
    for kind, fills in (("F", FORWARD), ("B", BACKWARD)):
        for trace in (t for t in figure.data if t.name == kind and t.y is not None):
            numbers = {int(words.split("micro-batch ")[1].split("<")[0]) for words in trace.customdata}
            assert numbers and {fills[n % len(fills)] for n in numbers} == {trace.marker.color}


def test_the_number_of_traces_does_not_grow_with_operations():
    assert len(gantt(run(microbatches=4)).data) == len(gantt(run(stages=8, microbatches=200)).data) <= 60


def test_hover_tells_versions_gap_and_what_was_waited_for():
    trace = run(stages=4, microbatches=16, window=4)
    texts = [bar[4] for bar in bars(gantt(trace), "B")]
    gaps = {(stage, m): gap for stage in range(4) for m, gap in trace.version_gaps(stage).items()}
    for (stage, microbatch), gap in gaps.items():
        text = next(t for t in texts if t.startswith(f"<b>stage {stage}: ") and f"micro-batch {microbatch}<" in t)
        assert text.endswith(f": gap {gap}")
    assert max(gaps.values()) == 1
    first = next(bar[4] for bar in bars(gantt(trace), "F") if bar[0] == 2)
    assert "after waiting 2 ms for its activation from stage 1" in first
    assert "for the gradient of micro-batch 0 from stage 1" in bars(gantt(trace), "wait")[0][4]


def test_a_forward_whose_backward_is_not_there_says_so():
    trace = Trace([TraceEvent(0, 0, "F", 0, 0, 10, 3, 0), TraceEvent(0, 0, "B", 9, 10, 20, 4, 0)], source="measured")
    columns = bar_arrays(trace, trace, origin_ns=0, unit_ns=1.0)
    assert columns["F"]["words"][0].endswith("weight version 3 at forward, backward still to come")
    assert columns["B"]["words"][0].endswith("weight version 4 at backward (its forward is not in view)")


def test_updating_in_place_equals_drawing_anew():
    first, second = run(stages=3, microbatches=5), run("gpipe", stages=6, microbatches=12)
    for options in ({}, {"strips": ("in-flight", "version"), "theme": "dark", "title": "a title"}):
        figure = gantt(first, **options)
        update_gantt(figure, second)
        drawn, anew = json.loads(figure.to_json()), json.loads(gantt(second, **options).to_json())
        assert drawn["layout"] == anew["layout"]
        for one, other in zip(drawn["data"], anew["data"], strict=True):
            if other.get("y") is not None:
                assert one == other
        update_gantt(figure, Trace([], source="measured", stages=2))
        assert all(
            trace.y is None or not len(trace.y) for trace in figure.data if trace.name in ("F", "B", "U", "wait")
        )


def test_every_chart_says_where_its_figures_come_from():
    trace = run()
    trace.source = "measured on paced devices"
    assert "easured on paced devices" in gantt(trace).layout.annotations[0].text
    pair = gantt_pair(trace, run("1f1b"), names=("one", "other"))
    assert [("<b>one</b>" in a.text, "simulated" in a.text) for a in pair.layout.annotations] == [
        (True, False),
        (False, True),
    ]


def test_the_share_of_work_is_one_minus_the_bubble():
    trace = run("1f1b", stages=4, microbatches=8, window=8, forward_ms=1, backward_ms=2)
    assert f"stages work {100 * (1 - 3 / 11):.1f} % of the time shown" in gantt(trace).layout.annotations[0].text
    pair = gantt_pair(trace, run("paci", microbatches=2), names=("a", "b"))  # the shorter is judged over its own time
    assert f"stages work {100 * 2 / 5:.1f} %" in pair.layout.annotations[1].text


def test_a_pair_shares_one_time_axis():
    figure = gantt_pair(run("1f1b"), run("paci"), names=("1f1b", "paci"), between_ms=(5, 20))
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range == (5, 20)
    rows = {trace.yaxis for trace in figure.data if trace.name == "F"}
    assert rows == {"y", "y2"}
    low, high = figure.layout.yaxis2.domain, figure.layout.yaxis.domain
    assert low[0] >= 0 and low[1] < high[0] and high[1] == 1


def test_predicted_bars_begin_with_the_measured_ones():
    measured = Trace(
        [e._replace(start_ns=e.start_ns + 7_000_000, end_ns=e.end_ns + 7_000_000) for e in run()], source="measured"
    )
    figure = gantt(measured, predicted=run())
    assert [bar[1:3] for bar in bars(figure, "predicted F")] == [bar[1:3] for bar in bars(figure, "F")]
    assert "below each row: simulated" in figure.layout.annotations[0].text


def test_strips_show_what_is_held_and_the_version():
    trace = run(stages=4, microbatches=12, window=4)
    figure = gantt(trace, strips=("in-flight", "version"))
    assert [label.split(">holds ")[1] for label in figure.layout.yaxis.ticktext] == [
        f"{n}</span>" for n in (4, 3, 2, 1)
    ]
    steps = held_steps(trace, 0, trace.makespan_ns)
    assert [int(held.max()) for _, held in steps] == trace.in_flight_peak()
    spans = version_spans(trace, 0, trace.makespan_ns)
    assert spans["version"][spans["stage"] == 0].tolist() == [0, 1, 2]
    covered = spans["end_ns"] - spans["start_ns"]
    assert [int(covered[spans["stage"] == s].sum()) for s in range(4)] == [trace.makespan_ns] * 4


def test_held_steps_of_a_part_begin_with_what_is_held_then():
    trace = run(stages=4, microbatches=12, window=4)
    times, held = trace.in_flight(0)
    begin = int(times[7])
    part_times, part_held = held_steps(trace, begin, trace.makespan_ns)[0]
    assert part_held[0] == held[np.flatnonzero(times == begin)[-1]] and part_times[0] == begin


def test_held_steps_of_a_trace_cut_out_of_a_run_are_those_of_the_run():
    trace = run(stages=4, microbatches=40, window=4, jitter=0.1)
    begin, end = 40_000_000, 80_000_000
    cut = Trace([e for e in trace if e.start_ns < end and e.end_ns > begin], source="measured", stages=4)
    for whole, part in zip(held_steps(trace, begin, end), held_steps(cut, begin, end), strict=True):
        assert int(part[1].max()) == int(whole[1].max()) and int(part[1].min()) >= 0


def test_numbers_stand_only_where_they_fit():
    assert fitting_numbers(np.array([7, 7, 1234]), np.array([0.1, 0.001, 0.02])).tolist() == ["7", "", ""]


def test_row_bands_fill_the_row_without_overlap():
    for parts in (("work",), ("work", "predicted", "in-flight", "version")):
        rows = Rows(parts)
        edges = [(centre - height / 2, centre + height / 2) for centre, height in map(rows.band, parts)]
        assert edges[0][0] >= -0.5 and edges[-1][1] <= 0.5
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(edges))


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 µs"),
        (1_500, "1.5 µs"),
        (999_600, "1 ms"),
        (25_340_000, "25.3 ms"),
        (999_900_000, "1 s"),
        (2_000_000_000, "2 s"),
        (123_456_000_000, "123 s"),
    ],
)
def test_durations_read_well(ns, text):
    assert duration_text(ns) == text


@pytest.mark.parametrize("wrong", [{"theme": "blue"}, {"strips": ("memory",)}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InputError):
        gantt(run(microbatches=2), **wrong)


def test_a_pair_is_updated_with_two_traces():
    with pytest.raises(InputError, match="2, as many"):
        update_gantt(gantt_pair(run(), run(), names=("a", "b")), run())


def test_a_figure_that_changes_its_theme_is_one_made_in_it():
    trace = simulate(build_schedule("zb-h1", stages=3, microbatches=8, window=4), Costs(update_ms=0.2))
    figure = gantt(trace, strips=STRIPS, title="a title")
    for theme in ("dark", "light"):
        retheme(figure, theme)
        update_gantt(figure, trace)
        assert figure.to_json() == gantt(trace, theme=theme, strips=STRIPS, title="a title").to_json()


def test_a_figure_that_nothing_updates_changes_its_theme_whole():
    trace = run()
    for draw in (lambda theme: gantt(trace, theme=theme), lambda theme: pair(trace, theme)):
        figure = draw("light")  # its headings too
        retheme(figure, "dark")
        assert figure.to_json() == draw("dark").to_json()
    losses = {"a": [{"time_s": 1, "tokens": 9, "val_loss": 2.0}]}
    figure = loss_curves(losses, target=2.5)
    figure.layout.meta = {"gantt": {"theme": "light"}}
    retheme(figure, "dark")
    figure.layout.meta = None
    assert figure.to_json() == loss_curves(losses, target=2.5, theme="dark").to_json()  # the target's line and name


def pair(trace: Trace, theme: str) -> go.Figure:
    return gantt_pair(trace, run("1f1b"), names=("one", "other"), theme=theme)
