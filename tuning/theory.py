"""What is known before anything runs: windows worth trying first, and what a spec will do on ideal devices."""

from __future__ import annotations

import dataclasses

from paci_lab import Costs, TrainSpec, simulate

__all__ = ["Prediction", "flush_windows", "paci_windows", "predict"]


def paci_windows(stages: int, *, most: int) -> dict[int, str]:
    """Windows for PACI with the reason of each: the smallest with maximum version gap 4, 2 and 1, and wider ones.

    The gap at stage 0 is at most ceil((N-1)/a), so the smallest window for a gap g is ceil((N-1)/g). Wider windows
    lower the mean gap (N-1)/a further and make fewer updates; for few stages they fill the list up to four.

    Args:
        stages: N, from 2.
        most: no wider window than this.

    >>> paci_windows(8, most=100)
    {2: 'smallest window with version gap at most 4', 4: 'smallest window with version gap at most 2', \
7: 'smallest window with version gap at most 1', 14: 'version gap 1, mean 0.5'}
    """
    found: dict[int, str] = {}
    for gap in (1, 2, 4):
        found.setdefault(-(-(stages - 1) // gap), f"smallest window with version gap at most {gap}")
    window = 2 * (stages - 1)
    while len(found) < 4 or window == 2 * (stages - 1):
        found[window] = f"version gap 1, mean {(stages - 1) / window:g}"
        window *= 2
    return {w: found[w] for w in sorted(found) if w <= max(most, 1)}


def flush_windows(stages: int, *, most: int) -> dict[int, str]:
    """Windows for a flush schedule with the reason of each: bubbles (N-1)/(m+N-1) of 1/2, 1/3 and 1/5.

    >>> flush_windows(8, most=100)
    {7: 'bubble 50 %', 14: 'bubble 33 %', 28: 'bubble 20 %'}
    """
    found = {
        m: f"bubble {(stages - 1) / (m + stages - 1):.0%}".replace("%", " %")
        for m in ((stages - 1) * k for k in (1, 2, 4))
    }
    return {m: why for m, why in found.items() if m <= max(most, 1)}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Of one spec on ideal devices.

    Attributes:
        gap_max, gap_mean: version gap at stage 0, where it is largest.
        bubble: idle share of all stages' time over the stream.
        held: micro-batches whose activations stage 0 holds at once.
        per_update_s: seconds per update where the spec states its paces; None where only a run can tell.
        stream_s: seconds for the whole stream, likewise.
    """

    gap_max: int
    gap_mean: float
    bubble: float
    held: int
    per_update_s: float | None
    stream_s: float | None


_SIMULATED = 400
"""Micro-batches to simulate: enough for a steady state, and a fraction of a second."""


def predict(spec: TrainSpec) -> Prediction:
    """What theory says about `spec`; for paced devices the simulator says how long it takes."""
    schedule = spec.build_schedule()
    after = spec.stages - 1 + (schedule.slack_of(0) if not schedule.flushes else 0)
    per_update = stream = None
    if spec.paced:
        short = schedule.shortened(max(_SIMULATED, 4 * spec.window) // spec.window * spec.window)
        trace = simulate(short, Costs(forward_ms=spec.pace_forward_ms, backward_ms=spec.pace_backward_ms))
        ends = [event.end_ns for event in trace.of_kind("U") if event.stage == 0]
        stream = trace.makespan_ns / 1e9
        if len(ends) > 1:
            per_update = (ends[-1] - ends[0]) / (len(ends) - 1) / 1e9
            stream += (schedule.updates - short.updates) * per_update
        else:
            per_update = stream
    return Prediction(
        gap_max=schedule.gap_bound(0),
        gap_mean=0.0 if schedule.flushes else after / spec.window,
        bubble=schedule.ideal_bubble_fraction(),
        held=schedule.in_flight(0),
        per_update_s=per_update,
        stream_s=stream,
    )
