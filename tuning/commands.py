"""The commands of `paci-tune`: each has its flags (`add_*`) and what it does (`do_*`)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paci_lab.commands.common import (
    add_json_argument,
    add_spec_arguments,
    console,
    print_table,
    write_figures,
)
from tuning import tables
from tuning.flags import add_space, settings_from
from tuning.settings import duration_text, parse_duration

__all__ = ["COMMANDS"]


# -- plan -------------------------------------------------------------------------------------------------------------
def add_plan(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    add_space(parser)
    add_json_argument(parser)


def do_plan(arguments: argparse.Namespace) -> int:
    from tuning.plan import plan

    found = plan(settings_from(arguments))
    tables.print_plan(found)
    write_figures(arguments.json, found)
    return 0


# -- run, resume, confirm ---------------------------------------------------------------------------------------------
def add_run(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    parser.add_argument(
        "--study", default="tune/study", metavar="DIR", help="a new folder for the study (default tune/study)"
    )
    parser.add_argument(
        "--warm-start", metavar="STUDY", help="leave out windows that this older study has shown to be slow"
    )
    add_space(parser)
    _add_work(parser)


def _add_work(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--share-machine",
        action="store_true",
        help="allow a second controller on this machine, with devices of its own",
    )
    add_json_argument(parser)


def do_run(arguments: argparse.Namespace) -> int:
    from tuning.study import Study

    settings = settings_from(arguments)
    if arguments.warm_start:
        from tuning.warm import warm_start

        settings, told = warm_start(settings, Study.open(arguments.warm_start))
        console().print(told)
    return _work(Study.create(arguments.study, settings), arguments)


def add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--study",
        default="runs/demo/study",
        metavar="DIR",
        help="folder for the study; one of an earlier demo is replaced (default runs/demo/study)",
    )
    _add_work(parser)


def do_demo(arguments: argparse.Namespace) -> int:
    from tuning.demo import SETTINGS, fresh
    from tuning.study import Study

    console().print(
        f"\n[bold]A study: which window?[/bold] {SETTINGS.base.stages} paced stages, four windows of PACI and "
        f"three of flush, within {duration_text(SETTINGS.budget_s)}"
    )
    return _work(Study.create(fresh(Path(arguments.study)), SETTINGS), arguments)


def add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", help="the study's folder")
    parser.add_argument("--budget", metavar="TIME", help="a new budget for the whole study")
    parser.add_argument(
        "--rebuild", action="store_true", help="make Optuna's storage anew from the run directories first"
    )
    _add_work(parser)


def do_resume(arguments: argparse.Namespace) -> int:
    from tuning.study import Study

    study = Study.open(arguments.study)
    if arguments.budget:
        study.set_budget(parse_duration(arguments.budget))
    if arguments.rebuild:
        from tuning.search import rebuild

        console().print(f"storage rebuilt: {rebuild(study)} trials from their run directories")
    return _work(study, arguments)


def add_confirm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", help="the study's folder")
    _add_work(parser)


def do_confirm(arguments: argparse.Namespace) -> int:
    from tuning.study import Study

    study = Study.open(arguments.study)
    return _finish(study, study.confirm(progress=_progress, share_machine=arguments.share_machine), arguments)


def _work(study: Any, arguments: argparse.Namespace) -> int:
    try:
        found = study.run(progress=_progress, share_machine=arguments.share_machine)
    except KeyboardInterrupt:
        console().print(f"Stopped; the running trial is lost. Go on with: paci-tune resume {study.folder}")
        raise
    return _finish(study, found, arguments)


def _progress(sentence: str, trial: Any) -> None:
    console().print(f"  {sentence}", style=None if trial is None or trial.value is not None else "dim")


def _finish(study: Any, found: dict[str, Any], arguments: argparse.Namespace) -> int:
    console().print(found["sentence"], style="bold")
    if found.get("front"):
        tables.print_front(found["front"])
    console().print(f"Report: {study.folder / 'report.html'}   Use it: paci-tune apply {study.folder}", style="dim")
    write_figures(arguments.json, found)
    return 0 if found["point"] else 1


# -- status, report, apply --------------------------------------------------------------------------------------------
def add_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", help="the study's folder")
    add_json_argument(parser)


def do_status(arguments: argparse.Namespace) -> int:
    from tuning.study import Study

    study = Study.open(arguments.study)
    found = study.status()
    rows = [
        [
            study.label(t),
            t.phase,
            str(t.seed),
            t.status,
            "–" if t.time_s is None else f"{t.time_s:.1f} s",
            f"{t.wall_s:.1f} s",
            Path(t.path).name,
        ]
        for t in study.trials()
    ]
    print_table(
        str(study.folder), ["point", "phase", "seed", "outcome", "to target", "took", "run directory"], rows, left=2
    )
    screen = console()
    screen.print(
        f"{duration_text(found['spent_s'])} of {duration_text(found['budget_s'])} used; controllers at work: "
        f"{', '.join(found['controllers']) or 'none'}"
    )
    for best in (b for b in found["best"].values() if b):
        screen.print(
            f"best so far: {best['point']}, {best['time_to_target_s']:.1f} s   (its chart: paci-lab show {best['run']})"
        )
    write_figures(arguments.json, found)
    return 0


def do_report(arguments: argparse.Namespace) -> int:
    from tuning.study import Study

    study = Study.open(arguments.study)
    code = _finish(study, study.report(), arguments)
    storage = "URL, the study's --storage" if study.settings.storage else study.folder / "study.journal"
    console().print(
        f"Every trial in Optuna's own dashboard (python -m pip install optuna-dashboard): optuna-dashboard {storage}",
        style="dim",
    )
    return code


def add_apply(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", help="the study's folder")
    parser.add_argument("--out", default="spec.toml", metavar="FILE", help="the spec to write (default spec.toml)")
    parser.add_argument(
        "--pick",
        metavar="X",
        help="of a study with --pareto: fastest, least-memory or a point of the front (default: the recommended one)",
    )
    parser.add_argument(
        "--machine-of", metavar="RUN", help="a run directory made where the spec will be used (default: this machine)"
    )


def do_apply(arguments: argparse.Namespace) -> int:
    from tuning.recommend import apply
    from tuning.study import Study

    apply(
        Study.open(arguments.study),
        Path(arguments.out),
        run=Path(arguments.machine_of) if arguments.machine_of else None,
        pick=arguments.pick,
    )
    console().print(f"Written: {arguments.out}. Train with it: paci-lab train {arguments.out}")
    return 0


COMMANDS = {
    "plan": (
        "what a study would try and cost; nothing is started",
        "paci-tune plan --stages 8 --pace-forward-ms 8 --pace-backward-ms 16",
        add_plan,
        do_plan,
    ),
    "run": (
        "search, confirm and report, within a budget",
        "paci-tune run spec.toml --study tune/mine --budget 30m",
        add_run,
        do_run,
    ),
    "demo": (
        "a short study on this machine, in under three minutes",
        "paci-tune demo",
        add_demo,
        do_demo,
    ),
    "status": ("what a study has done so far", "paci-tune status tune/mine", add_study, do_status),
    "resume": (
        "go on with a study that was stopped, or help one that is running",
        "paci-tune resume tune/mine",
        add_resume,
        do_resume,
    ),
    "confirm": (
        "run what is left of the confirmation, beyond the budget",
        "paci-tune confirm tune/mine",
        add_confirm,
        do_confirm,
    ),
    "report": (
        "write report.html, trials.csv and recommended.toml",
        "paci-tune report tune/mine",
        add_study,
        do_report,
    ),
    "apply": (
        "write the recommended spec for paci-lab train",
        "paci-tune apply tune/mine --out spec.toml",
        add_apply,
        do_apply,
    ),
}
"""name -> (help, example, add its flags, run it)."""
