"""Measured beside published: losses, times to target, speed-ups, and what makes them differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from paci_lab.claims.measured import Clock, simulated_seconds
from paci_lab.claims.plan import SCALE, Size
from paci_lab.claims.published import (
    HOURS,
    HOURS_TO_PERPLEXITY,
    PERPLEXITY,
    STAGES,
    TARGET_SHARES,
    microbatch_costs,
)
from paci_lab.schedules import build_schedule

__all__ = ["differences", "judge", "share_at", "throughput_table"]

Curve = list[tuple[float, float]]


def share_at(curve: Curve, loss: float) -> float | None:
    """Share of the run's tokens at which `curve` first is at `loss` or below, between two evaluations on a straight
    line; None when it never is.

    >>> share_at([(0.5, 3.0), (1.0, 2.0)], 2.5), share_at([(0.5, 3.0)], 2.5)
    (0.75, None)
    """
    before: tuple[float, float] | None = None
    for share, value in curve:
        if value <= loss:
            if before is None or value == before[1]:
                return share
            return before[0] + (share - before[0]) * (before[1] - loss) / (before[1] - value)
        before = (share, value)
    return None


def _loss_at(curve: Curve, share: float) -> float:
    """Loss at a share of the tokens, on straight lines between evaluations."""
    before = curve[0]
    for point in curve:
        if point[0] >= share:
            if point[0] == before[0]:
                return point[1]
            return before[1] + (point[1] - before[1]) * (share - before[0]) / (point[0] - before[0])
        before = point
    return curve[-1][1]


def judge(size: Size, clocks: Mapping[str, Clock], curves: Mapping[str, Curve]) -> dict[str, Any]:
    """All figures: one row per row of the paper's table, and the speed-ups of PACI's rows."""
    rows = []
    for batch, runs in HOURS.items():
        updates = size.updates * 128 // batch
        best = min(hours for (schedule, _), hours in runs.items() if schedule == "1f1b")
        for (schedule, window), hours in runs.items():
            clock = clocks[f"{batch}-{schedule}-{window}"]
            curve_of = f"{batch}-{schedule}-{0 if schedule == '1f1b' else window}"
            rows.append(
                {
                    "batch": batch,
                    "schedule": schedule,
                    "window": window,
                    "microbatch_size": batch // window // SCALE,
                    "published_hours": hours,
                    "published_hours_over_best_flush": hours / best,
                    "published_perplexity": PERPLEXITY[batch][schedule, 0 if schedule == "1f1b" else window],
                    "timed_seconds_per_update": clock.each_s,
                    "timed_rounds": clock.rounds,
                    "pace_overruns": clock.overruns,
                    "simulated_seconds_per_update": simulated_seconds(schedule, batch, window) * size.ms / 1000,
                    "run_s": clock.seconds(updates),
                    "losses": {
                        name: _losses(size, clock, updates, curves, f"{batch}-1f1b-0", curve_of, name)
                        for name in size.optimizers
                    },
                }
            )
    return {"rows": rows, "speedups": [_speedup(row, rows) for row in rows if row["schedule"] == "paci"]}


def _losses(
    size: Size, clock: Clock, updates: int, curves: Mapping[str, Curve], flush: str, own: str, optimizer: str
) -> dict[str, Any]:
    """Replayed losses of one row with one optimizer, and when it is where the flush was at the paper's targets."""
    ours = [curves[f"{own}-{optimizer}-{seed}"] for seed in range(size.seeds)]
    flushes = [curves[f"{flush}-{optimizer}-{seed}"] for seed in range(size.seeds)]
    final = [curve[-1][1] for curve in ours]
    targets = {}
    for perplexity, share in TARGET_SHARES.items():
        loss = statistics.mean(_loss_at(curve, share) for curve in flushes)
        shares = [share_at(curve, loss) for curve in ours]
        reached = None not in shares
        targets[str(perplexity)] = {
            "loss": loss,
            "shares": shares,
            "seconds": clock.seconds(statistics.mean(shares) * updates) if reached else None,
        }
    return {
        "final": final,
        "mean": statistics.mean(final),
        "spread": statistics.stdev(final) if len(final) > 1 else 0.0,
        "targets": targets,
    }


def _speedup(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one row of PACI over the flush with as many micro-batches, and over the fastest one of its batch."""
    flushes = [other for other in rows if other["batch"] == row["batch"] and other["schedule"] == "1f1b"]
    same = next(other for other in flushes if other["window"] == row["window"])
    found: dict[str, Any] = {"batch": row["batch"], "window": row["window"]}
    for key, against in (("same", same), ("best", min(flushes, key=lambda other: other["run_s"]))):
        published = against if key == "same" else min(flushes, key=lambda other: other["published_hours"])
        hours = published["published_hours"] / row["published_hours"]
        found[key] = {
            "against": against["window"],
            "published": hours,
            "timed": against["timed_seconds_per_update"] / row["timed_seconds_per_update"],
            "simulated": against["simulated_seconds_per_update"] / row["simulated_seconds_per_update"],
            "to_target": {name: _to_target(row, against, name) for name in row["losses"]},
            "published_to_target": _published_to_target(row, published),
        }
    return found


def _to_target(row: dict[str, Any], against: dict[str, Any], optimizer: str) -> dict[str, float | None]:
    """How many times sooner, by target; None where one of the two never gets there."""
    found = {}
    for perplexity, target in row["losses"][optimizer]["targets"].items():
        theirs = against["losses"][optimizer]["targets"][perplexity]["seconds"]
        found[perplexity] = None if None in (theirs, target["seconds"]) else theirs / target["seconds"]
    return found


def _published_to_target(row: dict[str, Any], against: dict[str, Any]) -> dict[str, float]:
    hours, theirs = (HOURS_TO_PERPLEXITY.get((r["schedule"], r["window"]), {}) for r in (row, against))
    return {str(ppl): theirs[ppl] / hours[ppl] for ppl in hours if ppl in theirs} if row["batch"] == 128 else {}


def throughput_table() -> list[dict[str, Any]]:
    """PACI over flush in throughput for more stages, simulated with the stated costs of a micro-batch."""
    rows = []
    for stages in (8, 16, 32):
        for batch in HOURS:
            windows = [batch // size for size in reversed(microbatch_costs())]
            flush = {window: simulated_seconds("1f1b", batch, window, stages) for window in windows}
            for window in windows:
                paci = simulated_seconds("paci", batch, window, stages)
                built = build_schedule("paci", stages=stages, window=window, microbatches=window)
                rows.append(
                    {
                        "stages": stages,
                        "batch": batch,
                        "window": window,
                        "gap": built.gap_bound(0),
                        "same": flush[window] / paci,
                        "formula": (window + stages - 1) / window,
                        "best": min(flush.values()) / paci,
                        "best_window": min(flush, key=flush.__getitem__),
                    }
                )
    return rows


def differences(figures: Mapping[str, Any], size: Size) -> list[str]:
    """What makes the measured figures differ from the published ones, in sentences."""
    costs = microbatch_costs()
    unit = statistics.mean([HOURS[128]["1f1b", 8] / 15, 2 * HOURS[256]["1f1b", 16] / 23])  # hours of a 16, all updates
    slower = {
        (batch, window): hours * batch / 128 / (window * costs[batch // window] * unit)
        for batch, runs in HOURS.items()
        for (schedule, window), hours in runs.items()
        if schedule == "paci"
    }
    sentences = [
        f"Costs: a stage is stated to take {', '.join(f'{size.ms * cost:.1f}' for cost in costs.values())} ms for a "
        f"micro-batch that stands for {', '.join(map(str, costs))} sequences of the paper. The ratios are solved from "
        "the hours of its flushes and from nothing of PACI's, so PACI's times are predictions.",
        "Published PACI needs "
        + ", ".join(f"{ratio:.2f} (batch {b}, a = {w})" for (b, w), ratio in slower.items())
        + " times what these costs give with no bubble at all: with micro-batches of 32 sequences something in its "
        "engine or its links takes over a quarter more than in its flush. Our devices do not know of it, so at those "
        "rows our speed-up is nearer to the formula than theirs.",
    ]
    for name in size.optimizers:
        lags = []
        for row in figures["rows"]:
            if row["schedule"] == "paci":
                flush = next(r for r in figures["rows"] if r["batch"] == row["batch"] and r["schedule"] == "1f1b")
                lag = row["losses"][name]["mean"] - flush["losses"][name]["mean"]
                lags.append(f"{lag:+.3f} (batch {row['batch']}, a = {row['window']})")
        sentences.append(f"Final loss of PACI minus that of the flush with {name}: {', '.join(lags)}.")
    published = [
        f"{math.log(PERPLEXITY[batch]['paci', window][0] / PERPLEXITY[batch]['1f1b', 0][0]):+.3f}"
        for batch, runs in HOURS.items()
        for schedule, window in runs
        if schedule == "paci"
    ]
    sentences += [
        f"The same in the paper, with AdamW, as differences of log perplexity: {', '.join(published)}. Its runs make "
        f"190 to 380 thousand updates, these {size.updates // 2} and {size.updates}, while the loss still falls fast: "
        "there a delay of one update costs more, most of all with AdamW. NAdam and Muon are not in the paper.",
        "Clock: an update costs no stated time, for every optimizer the same; Muon's own arithmetic is therefore not "
        "in it. Losses are replayed exactly, in one process; times are of real ranks on paced devices; time to target "
        "is the product of the two. Targets are the losses of the flush where in its run the paper's flush (m = 16) "
        "was at perplexity 18, 17 and 16.",
        f"Size: {size.model} on Python's own source instead of GPT-2 Medium on OpenWebText, an eighth of the batch, "
        f"{STAGES} stages, no dropout (paper: 0.1), float32 (paper: bfloat16), {size.seeds} seeds.",
    ]
    return sentences
