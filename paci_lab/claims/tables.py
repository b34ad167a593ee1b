"""The figures as tables of text, for the console and for a page in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["markdown", "tables"]

Table = tuple[str, list[str], list[list[str]]]
"""Title, columns, rows."""

_NAMES = {"1f1b": "flush, m =", "paci": "PACI, a ="}


def tables(figures: Mapping[str, Any]) -> Iterator[Table]:
    """The headline table, the speed-ups and the throughput for more stages."""
    optimizers = list(figures["rows"][0]["losses"])
    fastest = {
        batch: min(r["run_s"] for r in figures["rows"] if r["batch"] == batch and r["schedule"] == "1f1b")
        for batch in {row["batch"] for row in figures["rows"]}
    }
    yield (
        "Time of the whole training as a share of the fastest flush's, and final loss (mean ± spread over the seeds)",
        ["batch", "run", "published time", "timed", "simulated", "published PPL"]
        + [f"{name}, final loss" for name in optimizers],
        [
            [
                str(row["batch"]),
                f"{_NAMES[row['schedule']]} {row['window']}",
                f"{row['published_hours_over_best_flush']:.2f}",
                f"{row['run_s'] / fastest[row['batch']]:.2f}",
                f"{row['simulated_seconds_per_update'] / _simulated_fastest(figures, row['batch']):.2f}",
                "{:.3f} ± {:.3f}".format(*row["published_perplexity"]),
                *(f"{row['losses'][name]['mean']:.3f} ± {row['losses'][name]['spread']:.3f}" for name in optimizers),
            ]
            for row in figures["rows"]
        ],
    )
    yield (
        "Speed-up of PACI. To target: to the flush's loss where the paper's was at perplexity 18 / 17 / 16; – when a "
        "seed is never there",
        ["batch", "PACI", "over flush", "published", "timed", "simulated", "published to target"]
        + [f"{name}, to target" for name in optimizers],
        [
            [
                str(speedup["batch"]),
                f"a = {speedup['window']}",
                f"m = {found['against']}" + (", the fastest" if key == "best" else ""),
                f"{found['published']:.2f}×",
                f"{found['timed']:.2f}×",
                f"{found['simulated']:.2f}×",
                _ratios(found["published_to_target"]),
                *(_ratios(found["to_target"][name]) for name in optimizers),
            ]
            for speedup in figures["speedups"]
            for key in (("same", "best") if speedup["same"]["against"] != speedup["best"]["against"] else ("best",))
            for found in [speedup[key]]
        ],
    )
    yield (
        "Throughput of PACI over flush for more stages, simulated with the stated costs",
        ["stages", "batch", "a = m", "largest gap", "over the same m", "(m+N-1)/m", "over the fastest flush"],
        [
            [
                str(row["stages"]),
                str(row["batch"]),
                str(row["window"]),
                str(row["gap"]) + (" (over 2)" if row["gap"] > 2 else ""),
                f"{row['same']:.2f}×",
                f"{row['formula']:.2f}×",
                f"{row['best']:.2f}× (m = {row['best_window']})",
            ]
            for row in figures["throughput"]
        ],
    )


def _simulated_fastest(figures: Mapping[str, Any], batch: int) -> float:
    of_batch = [row for row in figures["rows"] if row["batch"] == batch and row["schedule"] == "1f1b"]
    return min(row["simulated_seconds_per_update"] for row in of_batch)


def _ratios(ratios: Mapping[str, float | None]) -> str:
    """One per target, in the order of the paper."""
    return " / ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios.values()) or "–"


def markdown(figures: Mapping[str, Any]) -> str:
    """A page with everything that was found."""
    lines = ["# The paper's claims, measured again on paced devices", ""]
    for title, columns, rows in tables(figures):
        lines += [f"## {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines.append("")
    lines += ["## Why they differ", "", *(f"- {sentence}" for sentence in figures["differences"]), ""]
    overruns = sum(row["pace_overruns"] for row in figures["rows"])
    spread = max(_relative_spread(row["timed_rounds"]) for row in figures["rows"])
    lines += [
        f"Size {figures['size']}: {figures['seeds']} seeds, {figures['rounds']} rounds of timing"
        + (f" (largest spread of a row {spread:.1%})" if figures["rounds"] > 1 else "")
        + f", {overruns} operations took longer than stated. {figures['machine']}.",
        "",
    ]
    return "\n".join(lines)


def _relative_spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)
