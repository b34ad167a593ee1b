"""The live view: what is read, in whatever state the run directory is, and what the reader can do with it."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from paci_lab.errors import InputError
from paci_lab.runtime import rundir
from paci_lab.schedules import build_schedule
from paci_lab.show.feed import SCHEMA, RunFeed
from paci_lab.show.front import Front
from paci_lab.show.live import LiveView, live
from paci_lab.show.palette import LIGHT, theme_named
from paci_lab.show.playhead import Playhead
from paci_lab.simulate import Costs, simulate

S = 1_000_000_000


@pytest.fixture
def trace():
    schedule = build_schedule("paci", stages=3, microbatches=40, window=4)
    return simulate(schedule, Costs(forward_ms=25, backward_ms=50, latency_ms=2))


@pytest.fixture
def run_dir(tmp_path, trace):
    """The directory of a run that ended well."""
    (tmp_path / "trace").mkdir()
    for rank in range(3):
        lines = [json.dumps(event._asdict()) + "\n" for event in trace if event.rank == rank]
        (tmp_path / "trace" / f"rank{rank}.jsonl").write_text("".join(lines))
    (tmp_path / "spec.toml").write_text('stages = 3\nschedule = "paci"\npace_forward_ms = 25.0\n')
    rows = [{"time_s": 0.3 * (n + 1), "tokens": 300 * (n + 1), "update": n, "train_loss": 5 - n / 4} for n in range(10)]
    rows.append({"time_s": 3.0, "tokens": 3000, "update": 9, "val_loss": 2.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "environment.json").write_text('{"schema": 1}')
    (tmp_path / "result.json").write_text('{"schema": 1}')
    return tmp_path


@pytest.fixture
def still(run_dir):
    """A view whose own thread has ended, so that a test makes each drawing itself."""
    view = live(run_dir)
    view.close()
    return view


def draw(view):
    view._sender._in_browser.set()
    return view.tick()


# -- reading ------------------------------------------------------------------------------------------------------
def test_a_finished_run_is_read_whole(run_dir, trace):
    feed = RunFeed(run_dir)
    assert feed.poll() and not feed.poll()
    assert list(feed.trace()) == list(trace) or sorted(feed.trace()) == sorted(trace)
    assert feed.source == "measured on paced devices" and feed.stages == 3
    assert feed.status() == "The run ended well." and feed.problems() == []
    assert feed.end_ns == trace.makespan_ns
    assert feed.losses(float("inf"))["val_loss"] == ([3.0], [2.5])
    assert feed.tokens_per_second(3.0) == pytest.approx(1000)


def test_only_what_is_new_is_read(run_dir):
    path = run_dir / "trace" / "rank0.jsonl"
    text = path.read_bytes()
    path.write_bytes(text[:1000])  # ends within a line
    feed = RunFeed(run_dir)
    feed.poll()
    before = len(feed.trace().of_kind("F"))
    with open(path, "ab") as file:
        file.write(text[1000:])
    assert feed.poll()
    assert len(feed.trace().of_kind("F")) == 3 * 40 > before
    assert feed.problems() == []


def test_a_growing_run_is_shown_up_to_where_all_stages_are(run_dir, trace):
    (run_dir / "result.json").unlink()
    path = run_dir / "trace" / "rank1.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:20]))
    feed = RunFeed(run_dir)
    feed.poll()
    last = [event for event in trace if event.rank == 1][19]
    assert feed.end_ns == last.end_ns and not feed.ended and feed.status() == "Running."


def test_a_killed_run_says_so(run_dir, monkeypatch):
    (run_dir / "result.json").unlink()
    feed = RunFeed(run_dir)
    feed.poll()
    feed._grown_at -= 60
    assert "it was killed, or it stands still" in feed.status() and len(feed.trace())


def test_a_failed_run_gives_its_reason(run_dir):
    (run_dir / "result.json").unlink()
    (run_dir / "failure.json").write_text('{"message": "rank 1, stage 1, backward of micro-batch 7: out of memory"}')
    feed = RunFeed(run_dir)
    feed.poll()
    assert feed.ended and "backward of micro-batch 7: out of memory" in feed.status()


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"stage": 1}',
        '{"stage":0,"rank":0,"op":"X","microbatch":0,"start_ns":0,"end_ns":1,"version":0,"update":0}',
        '{"stage":-1,"rank":0,"op":"F","microbatch":0,"start_ns":0,"end_ns":1,"version":0,"update":0}',
    ],
)
def test_a_bad_line_is_left_out_and_counted(run_dir, trace, line):
    path = run_dir / "trace" / "rank0.jsonl"
    path.write_text(line + "\n" + path.read_text())
    (run_dir / "metrics.jsonl").write_text("[1]\n" + (run_dir / "metrics.jsonl").read_text())
    feed = RunFeed(run_dir)
    feed.poll()
    assert len(feed.trace()) == len(trace) and len(feed.metrics) == 10
    assert feed.problems() == [
        "1 line of the trace cannot be read and is left out.",
        "1 unreadable line of metrics.jsonl left out.",
    ]


def test_a_newer_schema_is_shown_with_a_warning(run_dir):
    (run_dir / "environment.json").write_text('{"schema": 99}')
    feed = RunFeed(run_dir)
    feed.poll()
    assert "schema 99" in feed.problems()[0] and len(feed.trace())


def test_the_reader_knows_the_layout_that_runs_are_written_in():
    assert SCHEMA == rundir.SCHEMA


def test_a_directory_without_spec_or_with_a_missing_rank_is_shown(run_dir):
    (run_dir / "trace" / "rank2.jsonl").unlink()
    feed = RunFeed(run_dir)
    feed.poll()
    assert feed.problems() == ["No trace from stage 2."]
    (run_dir / "spec.toml").unlink()
    feed = RunFeed(run_dir)
    feed.poll()
    assert "spec.toml is missing" in feed.problems()[0] and feed.stages == 2


def test_a_run_without_trace_says_so(run_dir):
    for path in (run_dir / "trace").iterdir():
        path.unlink()
    feed = RunFeed(run_dir)
    feed.poll()
    assert feed.problems() == ["There is no trace: the run was made without one, or it was not copied."]
    assert feed.window(5, 100)[0].stages == 3


def test_no_run_directory_is_refused(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(InputError, match="run directory"):
            RunFeed(path)


def test_a_window_holds_the_last_events_before_a_moment(run_dir, trace):
    feed = RunFeed(run_dir)
    feed.poll()
    part, start, end = feed.window(S, 60)
    assert end == S and 0 < start < S
    expected = [e for e in trace if e.start_ns < S and e.end_ns > start]
    assert sorted(part) == sorted(expected) and len(expected) <= 60
    assert feed.window(10 * S, 10**6)[1] == 0  # room for everything


# -- the playhead -------------------------------------------------------------------------------------------------
def test_the_playhead_follows_plays_holds_and_jumps():
    head = Playhead()
    assert head.position(0, 100) == 100 and head.position(5, 140) == 140
    head.pause()
    assert head.position(9, 500) == 140
    head.seek(40)
    assert head.position(10, 500) == 40
    head.play(2.0)
    assert head.position(20, 500) == 40  # the clock starts with the first look
    assert head.position(30, 500) == 60
    head.speed = 10.0
    assert head.position(31, 500) == 70
    assert head.position(1000, 500) == 500  # the end is as far as it goes
    head.go_live()
    assert head.position(1001, 600) == 600


# -- the view -----------------------------------------------------------------------------------------------------
def test_the_view_draws_the_moment_it_stands_at(still):
    still.playhead.seek(S)
    assert draw(still) and not draw(still)  # nothing new, no drawing
    ends = [
        base + length
        for t in still.figure.data
        if t.name in ("F", "B") and t.y is not None
        for base, length in zip(t.base, t.x, strict=True)
    ]
    assert max(ends) == pytest.approx(1000) and still.figure.layout.xaxis.range[1] == pytest.approx(1000)
    assert list(still.figure.data[-2].x) == pytest.approx([0.3, 0.6, 0.9])  # training loss so far
    told = still.controls["position"].value
    assert told == pytest.approx(100 * S / still.feed.end_ns, abs=0.07)
    assert 8 * told == round(8 * told)  # of what a browser rounds, it says that a reader has moved it
    assert "version gap" in still._facts.value and "4.500" in still._facts.value


def test_moving_the_slider_rewinds_and_live_jumps_back(still):
    still.controls["position"].value = 5
    assert still.playhead.mode == "pause"
    assert draw(still) and still.playhead.position(0, still.feed.end_ns) == pytest.approx(0.05 * still.feed.end_ns)
    still.controls["live"].click()
    assert draw(still) and still.controls["position"].value == 100
    still.controls["pause"].click()
    assert still.playhead.mode == "pause"
    still.controls["speed"].value = 4.0
    still.controls["play"].click()
    assert (still.playhead.mode, still.playhead.speed) == ("play", 4.0)


def test_a_picture_waits_until_the_browser_has_drawn_the_last(still):
    still.playhead.seek(S)
    assert draw(still)
    still.playhead.seek(S // 2)
    assert not still.tick()
    still.front.seen = still.frames  # what the front end sends
    assert still.tick()


def unpacked(picture):
    boxes = np.frombuffer(picture["boxes"], np.float32).reshape(-1, 4)
    return boxes, np.frombuffer(picture["looks"], np.uint8), picture["words"].decode().split("\n"), picture["texts"]


def test_a_moving_picture_has_the_bars_that_plotly_draws_when_it_rests(run_dir, trace):
    view = live(run_dir, strips=("in-flight", "version"))
    view.close()
    view.front.seen = 0  # a browser is there
    view.playhead.seek(S)
    assert draw(view) and view.chart.moving
    assert all(t.x is None or not len(t.x) for t in view.figure.data[:-2] if t.showlegend is False)
    boxes, looks, words, texts = unpacked(view.front.picture)
    assert len(boxes) == len(looks) == len(words) == len(texts)
    painted = {
        word: (box, view.front.picture["table"][look]) for word, box, look in zip(words, boxes, looks, strict=True)
    }

    view._moved_at -= 60  # nothing has moved for a while
    assert draw(view) and not view.chart.moving and view.front.picture == {"number": view.frames}
    bars = 0
    for drawn in view.figure.data[:-2]:
        if drawn.type != "bar" or not len(drawn.customdata if drawn.customdata is not None else ()):
            continue
        for start, length, row, word in zip(drawn.base, drawn.x, drawn.y, drawn.customdata, strict=True):
            if drawn.name == "version":
                word = f"stage {word[0]}: weight version {word[1]}"
            box, look = painted[word]
            half = drawn.width / 2
            assert box == pytest.approx([start, start + length, row - half, row + half], abs=0.01), word
            assert look["fill"] in drawn.marker.color
            bars += 1
    held = [box for word, (box, _) in painted.items() if "holds" in word]
    assert bars + sum("holds" in word for word in words) == len(boxes) and bars > 100
    assert all(top < base for _, _, top, base in held) or min(base - top for _, _, top, base in held) == 0


def test_the_view_follows_the_page_unless_a_theme_was_asked_for(run_dir, monkeypatch):
    monkeypatch.setattr(Front, "known", "light")
    for asked, expected in (("auto", "dark"), ("light", "light")):
        view = live(run_dir, theme=asked)
        view.close()
        view.playhead.seek(S)
        draw(view)
        assert view.figure.layout.paper_bgcolor == LIGHT.background
        view.front.page = "dark"
        assert draw(view) == (expected == "dark")
        assert view.figure.layout.paper_bgcolor == theme_named(expected).background
        assert view.figure.data[-2].line.color == theme_named(expected).muted
        Front.known = "light"
    with pytest.raises(InputError, match="auto"):
        live(run_dir, theme="blue")


def test_a_finished_run_is_played_and_a_running_one_followed(run_dir):
    view = live(run_dir)
    assert view.playhead.mode == "play"
    (run_dir / "result.json").unlink()
    view = live(run_dir)
    assert view.playhead.mode == "live"
    view.close()


def test_a_second_view_closes_the_first(run_dir):
    first = live(run_dir)
    second = live(run_dir)
    assert not first._thread.is_alive() and LiveView._open is second
    assert all(control.disabled for control in first.controls.values()) and "closed" in first._notes.value
    second.close()
    assert not second._thread.is_alive()


def test_stop_is_called_in_a_thread_of_its_own_and_its_errors_are_seen(run_dir):
    (run_dir / "result.json").unlink()
    called = threading.Event()

    def stop():
        called.set()
        raise RuntimeError("the agent does not answer")

    view = live(run_dir, stop=stop)
    shown = threading.Event()
    view.problems.widget.observe(lambda change: shown.set(), "outputs")
    view.controls["stop"].click()
    assert called.wait(60) and shown.wait(60)
    assert "the agent does not answer" in view.problems.last
    view.close()


def test_an_error_while_drawing_is_seen_and_the_view_goes_on(run_dir, monkeypatch):
    shown = threading.Event()
    view = live(run_dir)
    view.problems.widget.observe(lambda change: shown.set(), "outputs")
    monkeypatch.setattr(view.feed, "poll", lambda: 1 / 0)
    view.controls["live"].click()
    assert shown.wait(60) and "ZeroDivisionError" in view.problems.last and view._thread.is_alive()
    view.close()


def test_the_chart_has_as_many_traces_after_a_long_run(still):
    count = len(still.figure.data)
    still.playhead.go_live()
    draw(still)
    assert len(still.figure.data) == count <= 60
