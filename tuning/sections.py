"""Sections and tables of the report that need more than the list of trials: loss curves, importance, Gantt charts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paci_lab import open_run
from tuning.pareto import Spot
from tuning.side import SIDES
from tuning.study import Study
from tuning.trial import Trial

__all__ = ["front_table", "gantt_section", "importance_section", "loss_section", "points_table", "trials_table"]

_ENOUGH = 20
"""Trials of a side, at least, before anything is said about which dimension matters."""

_CURVES = 3


def points_table(best: dict, label: Any) -> Any:
    from paci_lab.show.report import Column, Table
    from tuning.stats import interval_of_median

    rows = []
    for group in best.values():
        median, low, high = interval_of_median([t.value for t in group])
        figures = group[0].figures
        updates = figures.get("updates_to_target")
        rows.append(
            [
                label(group[0]),
                median,
                f"{low:.1f}–{high:.1f} s",
                len(group),
                group[0].value / updates if updates else None,
                updates,
                max(figures.get("version_gap_max") or [0]),
                figures.get("bubble_fraction"),
                group[0].reason,
            ]
        )
    return Table(
        [
            Column("point"),
            Column("median", "{:.1f} s", "time to target"),
            Column("interval"),
            Column("runs"),
            Column("per update", "{:.3f} s", "of the first run: time to target over updates"),
            Column("updates"),
            Column("version gap", "{}", "largest that was measured"),
            Column("bubble", "{:.0%}", "share of all stages' time"),
            Column("why it was tried"),
        ],
        rows,
        "The best point of every window.",
    )


def front_table(front: Sequence[Spot], label: Any) -> Any:
    """Time, memory and window of the points that no other beats in both."""
    from paci_lab.show.report import Column, Table

    rows = [
        [
            label(s.trial),
            s.trial.params["window"],
            s.time_s,
            f"{s.memory_bytes / 2**20:,.0f} MiB",
            f"{s.reached} of {s.runs}",
        ]
        for s in front
    ]
    return Table(
        [
            Column("point"),
            Column("window"),
            Column("median", "{:.1f} s", "time to target"),
            Column("peak memory"),
            Column("reached", "{}", "runs that reached the target"),
        ],
        rows,
        "The front of time and memory: the fastest first, least memory last.",
    )


def loss_section(study: Study, trials: Sequence[Trial]) -> list[Any]:
    from paci_lab.show.loss import loss_curves
    from paci_lab.show.report import Chart, Section

    curves = {}
    for side in SIDES:
        done = sorted((t for t in trials if t.side == side and t.status == "reached"), key=lambda t: t.value)
        first = {study.label(t): t for t in reversed(done)}  # the fastest run of each point
        for name, trial in sorted(first.items(), key=lambda item: item[1].value)[:_CURVES]:
            if (Path(trial.path) / "metrics.jsonl").exists():
                curves[name] = open_run(trial.path).dir.validation()
    if not curves:
        return []
    told = " ".join(
        f"{name} ends at {rows[-1]['val_loss']:.3f} after {rows[-1]['time_s']:.1f} s."
        for name, rows in curves.items()
        if rows
    )
    return [
        Section(
            "Loss against time",
            "On the right, per token, flush cannot lose: its gradients are exact. On the left the clock counts.",
            [
                Chart(
                    loss_curves(curves, target=study.frozen.target_loss),
                    "The fastest run of the best points of each side.",
                    told,
                )
            ],
        )
    ]


def importance_section(study: Study) -> list[Any]:
    """Optuna's estimate of what matters, and a sentence instead of it where there is too little data."""
    from paci_lab.show.report import Chart, Section

    wide = [
        side
        for side in study.sides.values()
        if sum(not isinstance(v, tuple) or len(v) > 1 for v in side.dimensions.values()) > 1
    ]
    if not wide:
        return []
    shares = {}
    for side in wide:
        if sum(t.side == side.name and t.status == "reached" for t in study.trials()) >= _ENOUGH:
            shares[side.name] = _shares(study, side)
    if not shares:
        return [
            Section(
                "Which dimension matters", f"Not said: fewer than {_ENOUGH} trials of a side have reached the target."
            )
        ]
    from tuning.charts import importance

    told = " ".join(
        f"{side}: " + ", ".join(f"{n} {v:.0%}" for n, v in found.items()) + "." for side, found in shares.items()
    )
    return [
        Section(
            "Which dimension matters",
            "",
            [Chart(importance(shares), "An estimate (PED-ANOVA) from the trials above.", told)],
        )
    ]


def _shares(study: Study, side: Any) -> dict[str, float]:
    import optuna

    from tuning.storage import as_frozen

    made = optuna.create_study()
    made.add_trials(
        [
            as_frozen(dataclasses.replace(t, curve={}), side)
            for t in study.trials()
            if t.side == side.name and t.status == "reached" and t.params.keys() == side.dimensions.keys()
        ]
    )
    return optuna.importance.get_param_importances(made, evaluator=optuna.importance.PedAnovaImportanceEvaluator())


def gantt_section(trials: Sequence[Trial], found: dict[str, Any], label: Any) -> list[Any]:
    from paci_lab.show.gantt import gantt_pair
    from paci_lab.show.report import Chart, Section

    pair = []
    for key in ("winner", "rival"):
        runs = [
            t
            for t in trials
            if found[key]
            and label(t) == found[key]["label"]
            and t.status == "reached"
            and (Path(t.path) / "trace").is_dir()
        ]
        if runs:
            trace = open_run(min(runs, key=lambda t: t.value).path).trace()
            if len(trace):
                pair.append((found[key]["label"], trace))
    if len(pair) < 2:
        return []
    (above, one), (below, other) = pair
    span = (0.0, min(int(trace.end_ns[min(len(trace), 1500) - 1]) / 1e6 for trace in (one, other)))
    told = " ".join(f"{name}: bubble {trace.bubble_fraction():.0%}." for name, trace in pair)
    return [
        Section(
            "What the two did",
            "",
            [
                Chart(
                    gantt_pair(one, other, names=(above, below), between_ms=span),
                    "The beginning of one run of each, over one time axis.",
                    told,
                )
            ],
        )
    ]


def trials_table(trials: Sequence[Trial], label: Any) -> Any:
    from paci_lab.show.report import Column, Table

    rows = [
        [label(t), t.phase, t.seed, t.status, t.time_s, t.training_s, t.wall_s, Path(t.path).name, t.why or t.reason]
        for t in trials
    ]
    return Table(
        [
            Column("point"),
            Column("phase"),
            Column("seed"),
            Column("outcome"),
            Column("to target", "{:.1f} s"),
            Column("trained", "{:.1f} s", "training time until it ended or was stopped"),
            Column("took", "{:.1f} s", "wall-clock time, start-up and warm-up included"),
            Column("run directory"),
            Column("note"),
        ],
        rows,
        "Draw the Gantt chart of any of them with paci-lab show and its run directory.",
    )
