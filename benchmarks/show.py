"""How long charts and notebook views take on the server's side, and what watching costs a run.

python -m benchmarks.show            redraws only, seconds
python -m benchmarks.show overhead   two real runs, each watched and not watched in turns, four minutes
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import paci_lab
from benchmarks.machine import machine_line
from paci_lab.runtime.launch import Run
from paci_lab.show.explorer import explorer
from paci_lab.show.feed import RunFeed
from paci_lab.show.gantt import gantt, update_gantt
from paci_lab.show.live import LiveView, live
from paci_lab.show.live_chart import LiveChart
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
        chart = LiveChart("measured", 8, theme="light", strips=())
        for name, draw in (("moving", chart.move), ("at rest", chart.rest)):
            moments = iter(range(5_000_000_000, 20_000_000_000, 100_000_000))

            def one(draw: Callable = draw, moments: Iterator[int] = moments) -> None:
                part, start, end = feed.window(next(moments), 1000)
                draw(part, (start / 1e6, end / 1e6))

            report(f"live view, one drawing of 1,000 events, {name}", timed(one, repeats))


def watching_overhead(pairs: int = 8, seconds: float = 5.0) -> None:
    """What watching takes from one and the same run, in slices that are watched and not, in turns.

    Processor time says it with far less noise than run times do: that of the watching process, as a share of the cores,
    and that of the run's processes per operation, which would grow if the watcher disturbed them. Browser and kernel
    are not in it: answers that cost nothing stand in for the first, nothing for the second's sending of messages.
    """
    specs = {
        "two computing stages": paci_lab.TrainSpec(
            schedule="paci",
            stages=2,
            window=8,
            updates=1_000_000,
            model="pico",
            microbatch_size=8,
            validation_batches=1,
        ),
        "eight paced stages": paci_lab.TrainSpec(
            schedule="paci",
            stages=8,
            window=8,
            updates=1_000_000,
            microbatch_size=1,
            validation_batches=1,
            model="gpt:blocks=8,width=16,heads=1,context=16",
            pace_forward_ms=25,
            pace_backward_ms=50,
        ),
    }
    for name, spec in specs.items():
        with tempfile.TemporaryDirectory() as folder:
            run = paci_lab.launch(spec, Path(folder) / "run")
            try:
                slices = _slices(run, pairs, seconds)
            finally:
                run.stop()
            _tell(name, slices, _ends(RunFeed(run.path)))


class _Slice(NamedTuple):
    watched: bool
    begin_ns: int  # of the run's clock
    end_ns: int
    run_s: float  # processor time of the run's processes
    watcher_s: float
    drawings: int


def _slices(run: Run, pairs: int, seconds: float) -> list[_Slice]:
    feed = RunFeed(run.path)
    while len(feed.metrics) < 3:
        time.sleep(0.5)
        feed.poll()
    processes, begun, found = _below(os.getpid()), -math.inf, []
    for pair in range(pairs):
        for watched in (True, False) if pair % 2 else (False, True):
            view = _watch(run.path) if watched else None
            while view is not None and view.frames < 3:  # it has read what there was
                time.sleep(0.05)
            frames = view.frames if view else 0
            before = time.monotonic_ns(), _processor_s(processes), time.process_time()
            time.sleep(seconds)
            after = time.monotonic_ns(), _processor_s(processes), time.process_time()
            begin, end, run_s, watcher_s = before[0], after[0], after[1] - before[1], after[2] - before[2]
            found.append(_Slice(watched, begin, end, run_s, watcher_s, (view.frames if view else 0) - frames))
            if view is not None:
                view.close()
            # An event is in its file at most a tenth of a second after its end: the newest tells the run's clock.
            for _ in range(10):
                while feed.poll():
                    pass
                begun = max(begun, feed.end_ns - time.monotonic_ns())
                time.sleep(0.02)
    return [one._replace(begin_ns=one.begin_ns + begun, end_ns=one.end_ns + begun) for one in found]


def _tell(name: str, slices: list[_Slice], ends: np.ndarray) -> None:
    done = [int(np.searchsorted(ends, one.end_ns) - np.searchsorted(ends, one.begin_ns)) for one in slices]
    took = [(one.end_ns - one.begin_ns) / 1e9 for one in slices]
    work = [one.run_s / count for one, count in zip(slices, done, strict=True)]
    wall = [s / count for s, count in zip(took, done, strict=True)]
    on = [i for i, one in enumerate(slices) if one.watched]
    off = {i: i + 1 if i % 2 == 0 else i - 1 for i in on}  # the other of the pair
    shares = [100 * slices[i].watcher_s / (took[i] * (os.cpu_count() or 1)) for i in on]
    print(f"{name}, watched at {statistics.median(slices[i].drawings / took[i] for i in on):.1f} drawings a second:")
    print(f"  the watching process takes {_spread(shares)} % of the cores")
    print(f"  processor time of the run per operation, watched / not: {_spread([work[i] / work[off[i]] for i in on])}")
    print(f"  wall time per operation, watched / not: {_spread([wall[i] / wall[off[i]] for i in on])}", flush=True)


def _ends(feed: RunFeed) -> np.ndarray:
    """When the run's forwards and backwards ended, in order, in nanoseconds of its clock."""
    while feed.poll():
        pass
    return np.sort(feed.trace().of_kind("F", "B").end_ns)


def _watch(path: Path) -> LiveView:
    view = live(path)
    view.front.observe(lambda change: setattr(view.front, "seen", change["new"]["number"]), "picture")
    view.front.seen = 0
    return view


def _below(ancestor: int) -> list[int]:
    """All descendants of a process: of this one, those are the run's agent, ranks and evaluator."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == ancestor:
                found += [int(entry.parent.name), *_below(int(entry.parent.name))]
    return found


def _processor_s(processes: list[int]) -> float:
    """Seconds of processor time that these processes have taken so far, in user and kernel mode."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _spread(values: list[float]) -> str:
    """Median and its 95 % interval by order statistics (of 8 values: the least and the greatest)."""
    ordered = sorted(values)
    low = _first_within(len(ordered))
    return f"{statistics.median(ordered):.3f} (95 % interval {ordered[low]:.3f} to {ordered[-1 - low]:.3f})"


def _first_within(count: int) -> int:
    """Index of the ordered value at which the 95 % interval of the median of `count` values begins."""
    index, chance = 0, 0.5**count
    while chance + math.comb(count, index + 1) * 0.5**count <= 0.025:
        index += 1
        chance += math.comb(count, index) * 0.5**count
    return index


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
