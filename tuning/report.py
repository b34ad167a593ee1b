"""The report of a study: report.html, trials.csv, recommended.toml."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paci_lab import InputError
from tuning.pareto import pareto_front
from tuning.recommend import recommend, write_recommendation
from tuning.sections import front_table, gantt_section, importance_section, loss_section, points_table, trials_table
from tuning.settings import duration_text
from tuning.study import Study
from tuning.trial import Trial

__all__ = ["write_all"]

_CSV = ("side", "number", "phase", "seed", "status", "value", "training_s", "wall_s", "reason", "why", "path")
_CSV_FIGURES = (
    "updates_to_target",
    "tokens_to_target",
    "seconds_per_update",
    "bubble_fraction",
    "best_val_loss",
    "device_memory_bytes",
)


def write_all(study: Study) -> dict[str, Any]:
    """Write the three files and return the recommendation; raises InputError when they cannot be written."""
    found, trials = recommend(study), study.trials()
    try:
        _write_csv(trials, study.folder / "trials.csv")
        write_recommendation(found, study.folder / "recommended.toml")
        _write_page(study, found, trials)
    except OSError as error:
        raise InputError(
            "report",
            study.folder,
            "a folder that can be written",
            f"free space, then run paci-tune report {study.folder} ({error.strerror or error})",
        ) from None
    return found


def _write_csv(trials: Sequence[Trial], path: Path) -> None:
    dimensions = list(dict.fromkeys(name for trial in trials for name in trial.params))
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([*_CSV[:4], *dimensions, *_CSV[4:], *_CSV_FIGURES, "version_gap_max"])
        for t in trials:
            rows.writerow(
                [
                    *(getattr(t, n) for n in _CSV[:4]),
                    *(t.params.get(n) for n in dimensions),
                    *(getattr(t, n) for n in _CSV[4:]),
                    *(t.figures.get(n) for n in _CSV_FIGURES),
                    max(t.figures.get("version_gap_max") or [0]),
                ]
            )


def _write_page(study: Study, found: dict[str, Any], trials: list[Trial]) -> None:
    from paci_lab.show.report import Chart, Facts, Section, write_report
    from tuning import charts

    frozen, label = study.frozen, study.label
    counted = [t for t in trials if t.value is not None]
    stopped = sum(t.status in ("capped", "pruned") for t in counted)
    paced = (
        " Devices are paced: stages do their real work and then sleep to a stated duration."
        if frozen.device_kind == "cpu-paced"
        else ""
    )
    windows = charts.time_against_window(counted, study.settings.base.stages, label)
    best, front = charts.best_of_windows(counted), pareto_front(counted)
    words = " ".join(f"{label(group[0])}: {min(t.value for t in group):.1f} s at best." for group in best.values())
    sections = [
        Section("What it comes to", "", [Facts(_facts(found, study, trials))]),
        Section(
            "Time to target against window",
            f"The target is a validation loss of {frozen.target_loss:.4f}, which the flush run of the "
            f"base spec reached after {frozen.baseline_s:.1f} s; it was settled before the search.{paced} Both "
            f"sides were searched out "
            f"of the same budget. {stopped} of {len(counted)} trials were stopped early, "
            f"{study.settings.slack:g} times behind the best "
            "of their side.",
            [
                Chart(
                    windows,
                    "Each dot is one run. A cross is a run that was stopped, at the time when it was. For every "
                    "window the line shows the best point with that window.",
                    words,
                )
            ],
        ),
        Section(
            "Why a window wins",
            "Time to target is seconds per update times updates to target. A small window makes cheap updates and "
            "needs many, with larger version gaps; a wide one the reverse.",
            [
                Chart(
                    charts.decomposition(counted), "Down and left is faster; a dotted line joins equal times.", words
                ),
                points_table(best, label),
            ],
        ),
    ]
    sections += loss_section(study, counted)
    sections.append(
        Section(
            "Time against memory" if study.settings.pareto else "Memory",
            "No trial was stopped that needed less memory than every faster one of its side. Peaks that differ by less "
            "than 1 % count as the same."
            if study.settings.pareto
            else "",
            [
                Chart(
                    charts.memory(counted, front, label, frozen.memory_bytes),
                    "Peak memory "
                    + (
                        "of the fullest GPU."
                        if frozen.device_kind == "cuda"
                        else "of all ranks together, torch itself included."
                    ),
                    words,
                ),
                *([front_table(front, label)] if study.settings.pareto else []),
            ],
        )
    )
    sections += importance_section(study)
    sections += gantt_section(trials, found, label)
    sections.append(Section("Every trial", "", [trials_table(trials, label)]))
    versions = ", ".join(f"{name} {value}" for name, value in frozen.versions.items() if value)
    machine = f"{frozen.machine['cpu_cores']} cores of {frozen.machine['cpu']}" + "".join(
        f", {g}" for g in frozen.machine["gpus"] or []
    )
    write_report(
        study.folder / "report.html",
        title="Which window?",
        lead=found["sentence"],
        sections=sections,
        footer=f"Measured on {machine}. {versions}. A time to target holds on the machine where it was measured.",
    )


def _facts(found: dict[str, Any], study: Study, trials: Sequence[Trial]) -> list[tuple[str, str]]:
    facts = []
    if found["point"]:
        facts.append((found["point"], "recommended"))
    if found["ratio"]:
        r = found["ratio"]
        facts.append(
            (
                f"{r['ratio']:.2f}×",
                f"as fast as {found['rival']['label']} [{r['low']:.2f}–{r['high']:.2f}], {r['pairs']} fresh seeds",
            )
        )
    hours = study.spent_s * study.frozen.devices / 3600
    facts.append((duration_text(study.spent_s), f"spent on {len(trials)} runs: {hours:.2f} device-hours"))
    if study.settings.price is not None:
        facts.append(
            (
                f"{hours * study.settings.price:.2f}",
                f"cost of the search, at {study.settings.price:g} per device and hour",
            )
        )
        sides = [found[k] for k in ("winner", "rival") if found[k] and found[k]["median_s"]]
        if found["significant"] and len(sides) == 2:
            saved = (
                abs(sides[1]["median_s"] - sides[0]["median_s"]) * study.frozen.devices / 3600 * study.settings.price
            )
            facts.append((f"{saved:.3g}", "saved by every training to the target, against the other side's best"))
    return facts
