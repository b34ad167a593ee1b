"""How long charts and notebook views take on the server's side, and what watching costs a run.

python -m benchmarks.show            redraws only, seconds
python -m benchmarks.show overhead   a real run watched and not watched, in turns, minutes
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import plotly.graph_objects as go

import paci_lab
from benchmarks.machine import machine_line
from paci_lab.show.explorer import explorer
from paci_lab.show.feed import RunFeed
from paci_lab.show.gantt import gantt, update_gantt
from paci_lab.show.live import live
from paci_lab.trace import Trace

__all__ = ["explorer_refresh", "gantt_redraw", "live_frame", "main", "watching_overhead"]


def gantt_redraw(repeats: int = 15) -> None:
    """Build, and update in place, the chart of 8 stages with 1,000 operations each."""
    schedule = paci_lab.build_schedule("paci", stages=8, microbatches=470, window=8)
    trace = paci_lab.simulate(schedule, paci_lab.Costs(update_ms=0.1))
    figure = gantt(trace)
    name = f"Gantt of 8 stages, {len(trace):,} events"
    report(f"{name}: build", timed(lambda: gantt(trace), repeats))
    report(f"{name}: update in place", timed(lambda: update_gantt(figure, trace), repeats))


def explorer_refresh(repeats: int = 15) -> None:
    """One move of a slider with 8 stages and 64 micro-batches: two simulations, both charts, all numbers."""
    view = explorer(stages=8, microbatches=64)
    windows = iter(range(2, repeats + 3))

    def move() -> None:
        view.controls["window"].value = next(windows)

    report("explorer, one move of a slider", timed(move, repeats))


def live_frame(repeats: int = 30) -> None:
    """One drawing of the live view of 8 stages with 1,000 events in view, a tenth of a second further each time."""
    schedule = paci_lab.build_schedule("paci", stages=8, microbatches=300, window=8)
    trace = paci_lab.simulate(schedule, paci_lab.Costs(forward_ms=25, backward_ms=50, latency_ms=1, jitter=0.05))
    with tempfile.TemporaryDirectory() as folder:
        feed = RunFeed(_write(Path(folder), trace))
        feed.poll()
        figure = go.FigureWidget(gantt(Trace([], source="measured", stages=8), origin_ns=0))
        moments = iter(range(5_000_000_000, 20_000_000_000, 100_000_000))

        def draw() -> None:
            part, start, end = feed.window(next(moments), 1000)
            update_gantt(figure, part, origin_ns=0, between_ms=(start / 1e6, end / 1e6))

        report("live view, one drawing of 1,000 events", timed(draw, repeats))


def watching_overhead(pairs: int = 3) -> None:
    """Seconds per update of two real-compute stages, watched by a live view and not, in turns."""
    spec = paci_lab.TrainSpec(schedule="paci", stages=2, window=8, updates=30, model="pico", microbatch_size=8)
    ratios = []
    for pair in range(pairs):
        seconds = {}
        for watched in (True, False) if pair % 2 else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                run = paci_lab.launch(spec, Path(folder) / "run")
                view = live(run.path) if watched else None
                seconds[watched] = run.wait()["seconds_per_update"]
                if view is not None:
                    view.close()
        ratios.append(seconds[True] / seconds[False])
        print(
            f"  pair {pair}: watched {seconds[True]:.4f} s, not watched {seconds[False]:.4f} s per update", flush=True
        )
    print(
        f"watching a run: {statistics.median(ratios):.3f}x the time per update "
        f"(median of {pairs} pairs, {min(ratios):.3f} to {max(ratios):.3f})"
    )


def timed(action: Callable[[], object], repeats: int) -> list[tuple[float, float]]:
    """(milliseconds, milliseconds of processor time) of every repetition after a first one that warms up."""
    action()
    found = []
    for _ in range(repeats):
        began, worked = time.perf_counter(), time.process_time()
        action()
        found.append(((time.perf_counter() - began) * 1e3, (time.process_time() - worked) * 1e3))
    return found


def report(what: str, times: list[tuple[float, float]]) -> None:
    """Print median and spread (middle half), and the processor time, which a busy machine distorts less."""
    low, middle, high = statistics.quantiles([wall for wall, _ in times], n=4)
    worked = statistics.median(work for _, work in times)
    print(
        f"{what}: median {middle:.1f} ms, middle half {low:.1f} to {high:.1f} ms; of processor time {worked:.1f} ms",
        flush=True,
    )


def _write(folder: Path, trace: Trace) -> Path:
    (folder / "trace").mkdir()
    for rank in range(trace.stages):
        lines = [json.dumps(event._asdict()) + "\n" for event in trace if event.rank == rank]
        (folder / "trace" / f"rank{rank}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "spec.toml").write_text(f"stages = {trace.stages}\n", encoding="utf-8")
    return folder


def main(arguments: list[str]) -> None:
    """Run what the module's docstring says."""
    print(machine_line())
    if arguments == ["overhead"]:
        watching_overhead()
    else:
        gantt_redraw()
        explorer_refresh()
        live_frame()


if __name__ == "__main__":
    main(sys.argv[1:])
