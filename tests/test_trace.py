"""`Trace`: what can be read off it, and its files."""

from __future__ import annotations

import json

import pytest

from paci_lab import PACI, Costs, InputError, OneFOneB, Trace, TraceEvent, simulate
from paci_lab.trace import OPS, read_events

EVENTS = [  # two stages, two micro-batches, one update each; times in ns
    TraceEvent(0, 0, "F", 0, 100, 110, 0, 0),
    TraceEvent(0, 0, "F", 1, 110, 120, 0, 0),
    TraceEvent(1, 1, "wait-F", 0, 100, 112, 0, 0),
    TraceEvent(1, 1, "F", 0, 112, 122, 0, 0),
    TraceEvent(1, 1, "B", 0, 122, 142, 0, 0),
    TraceEvent(0, 0, "wait-B", 0, 120, 145, 0, 0),
    TraceEvent(0, 0, "B", 0, 145, 165, 0, 0),
    TraceEvent(1, 1, "F", 1, 142, 152, 0, 0),
    TraceEvent(1, 1, "B", 1, 152, 172, 0, 0),
    TraceEvent(1, 1, "U", 0, 172, 177, 0, 0),
    TraceEvent(1, 1, "snapshot", 0, 177, 300, 1, 0),
    TraceEvent(0, 0, "wait-B", 1, 165, 175, 0, 0),
    TraceEvent(0, 0, "B", 1, 175, 195, 0, 0),
    TraceEvent(0, 0, "U", 0, 195, 200, 0, 0),
]


def test_times_by_hand():
    trace = Trace(reversed(EVENTS), source="by hand")
    assert len(trace) == 14 and trace.stages == 2
    assert trace.begin_ns == 100 and trace.makespan_ns == 100  # neither the wait before nor the snapshot after is work
    assert trace.busy_ns().tolist() == [65, 65]
    assert trace.waiting_ns().tolist() == [35, 12]
    assert trace.utilization().tolist() == [0.65, 0.65]
    assert trace.bubble_fraction() == pytest.approx(0.35)
    assert trace.updates() == [1, 1]
    assert [event.start_ns for event in trace] == sorted(event.start_ns for event in EVENTS)
    assert set(trace) == set(EVENTS)


def test_the_part_between_two_moments_cuts_events_at_its_ends():
    part = Trace(EVENTS, source="by hand").between(115, 150)
    assert (part.start_ns.min(), part.end_ns.max()) == (115, 150)
    assert part.busy_ns().tolist() == [5 + 5, 7 + 20 + 8]
    assert len(Trace(EVENTS, source="by hand").between(400, 500)) == 0
    assert part.stages == 2 and part.source == "by hand"


def test_steady_is_from_the_first_stages_first_backward_to_its_last_forward():
    trace = simulate(PACI(stages=4, microbatches=50, window=5), Costs(forward_ms=1, backward_ms=2))
    steady = trace.steady()
    assert steady.start_ns.min() == (4 * 1 + 3 * 2) * 1_000_000  # when the pipeline is full
    assert steady.end_ns.max() == trace.of_kind("F").end_ns[trace.of_kind("F").stage == 0].max()
    assert trace.steady_utilization().tolist() == [1.0, 1.0, 1.0, 1.0]
    assert trace.utilization().max() < 0.95
    # A stream too short to have a steady part has none, and says so with zeros.
    short = simulate(OneFOneB(stages=4, microbatches=2, window=2))
    assert len(short.steady()) == 0 and short.steady_utilization().tolist() == [0, 0, 0, 0]


def test_in_flight_counts_from_the_start_of_the_forward_to_the_end_of_the_backward():
    trace = Trace(EVENTS, source="by hand")
    times, held = trace.in_flight(0)
    assert list(zip(times.tolist(), held.tolist(), strict=True)) == [(100, 1), (110, 2), (165, 1), (195, 0)]
    assert trace.in_flight_peak() == [2, 1]


def test_a_split_backward_holds_until_its_second_half():
    events = [TraceEvent(0, 0, op, 0, start, start + 10, 0, 0) for op, start in (("F", 0), ("I", 10), ("W", 50))]
    assert Trace(events, source="by hand").in_flight(0)[0].tolist() == [0, 60]


def test_gaps_need_a_forward_and_a_backward():
    events = [
        TraceEvent(0, 0, "F", 0, 0, 1, 3, 0),
        TraceEvent(0, 0, "F", 1, 1, 2, 3, 0),
        TraceEvent(0, 0, "B", 0, 2, 3, 5, 0),
        TraceEvent(0, 0, "B", 7, 3, 4, 5, 0),
    ]
    trace = Trace(events, source="by hand")
    assert trace.version_gaps(0) == {0: 2}
    assert trace.version_gap_max() == [2] and trace.version_gap_mean() == [2.0]


def test_gap_shares_of_a_stream_too_short_for_them_are_empty():
    assert simulate(PACI(stages=4, microbatches=4, window=4)).gap_shares(0) == {}


def test_an_empty_trace_answers_everything():
    trace = Trace([], source="nothing", stages=3)
    assert trace.makespan_ns == trace.begin_ns == 0 and trace.bubble_fraction() == 0.0
    for per_stage in (
        trace.utilization(),
        trace.steady_utilization(),
        trace.busy_ns(),
        trace.waiting_ns(),
        trace.version_gap_max(),
        trace.version_gap_mean(),
        trace.in_flight_peak(),
        trace.updates(),
    ):
        assert list(per_stage) == [0, 0, 0]
    assert list(trace) == [] and trace.version_gaps(0) == {} and trace.gap_shares(0) == {}


# -- files ------------------------------


def test_a_trace_comes_back_from_its_file(tmp_path):
    trace = simulate(PACI(stages=3, microbatches=12, window=2), Costs(latency_ms=0.4, update_ms=0.1))
    trace.save(tmp_path / "trace.jsonl")
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert set(json.loads(lines[0])) == {"stage", "rank", "op", "microbatch", "start_ns", "end_ns", "version", "update"}
    again = Trace.load(tmp_path / "trace.jsonl", source="simulated")
    assert list(again) == list(trace) and again.stages == 3
    assert {event.op for event in again} == {"F", "B", "U", "wait-F", "wait-B"}


def test_several_files_are_one_trace(tmp_path):
    for rank in (0, 1):
        Trace([e for e in EVENTS if e.rank == rank], source="part").save(tmp_path / f"rank{rank}.jsonl")
    whole = Trace.load(*sorted(tmp_path.glob("*.jsonl")), source="by hand", stages=2)
    assert list(whole) == list(Trace(EVENTS, source="by hand"))


def test_a_line_cut_short_is_left_out(tmp_path):
    path = tmp_path / "rank0.jsonl"
    Trace(EVENTS, source="by hand").save(path)
    whole = path.read_bytes()
    for cut in (1, 20, 60):
        path.write_bytes(whole[:-cut])
        assert len(read_events(path)) == len(EVENTS) - 1
    path.write_bytes(b"")
    assert read_events(path) == []


def test_a_reader_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "rank0.jsonl"
    Trace(EVENTS, source="by hand").save(path)
    offset = len(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    assert read_events(path, offset=offset) == list(Trace(EVENTS, source="by hand"))[5:]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "{}",
        '{"stage": 0}',
        json.dumps({**EVENTS[0]._asdict(), "op": "Z"}),
        json.dumps({**EVENTS[0]._asdict(), "stage": "0"}),
        json.dumps({**EVENTS[0]._asdict(), "start_ns": 1.5}),
        json.dumps({**EVENTS[0]._asdict(), "end_ns": 2**70}),
        json.dumps({**EVENTS[0]._asdict(), "more": 1}),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_place(tmp_path, line):
    path = tmp_path / "rank0.jsonl"
    path.write_text(json.dumps(EVENTS[0]._asdict()) + "\n" + line + "\n")
    with pytest.raises(InputError) as refusal:
        Trace.load(path, source="by hand")
    assert refusal.value.what == f"{path} line 2"


def test_the_chrome_export_has_a_thread_per_stage_and_microseconds(tmp_path):
    trace = Trace(EVENTS, source="measured on paced devices")
    trace.save_chrome(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document["otherData"] == {"source": "measured on paced devices"}
    names = [row for row in document["traceEvents"] if row["ph"] == "M"]
    assert [(row["tid"], row["args"]["name"]) for row in names] == [(0, "stage 0"), (1, "stage 1")]
    rows = [row for row in document["traceEvents"] if row["ph"] == "X"]
    assert len(rows) == len(EVENTS)
    assert {row["cat"] for row in rows} <= set(OPS)
    last = next(row for row in rows if row["cat"] == "U" and row["tid"] == 0)
    assert (last["ts"], last["dur"], last["name"]) == (0.195, 0.005, "U 0")
    assert last["args"] == {"rank": 0, "microbatch": 0, "version": 0, "update": 0}
