"""`paci-lab doctor`: is this machine ready?"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable

from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.errors import InputError
from paci_lab.schedules import schedule_classes
from paci_lab.spec import TrainSpec

HELP = "check that this machine can run everything: torch, version guard, backends, GPUs, notebook widgets"
EXAMPLE = "paci-lab doctor --audit"

Finding = tuple[str, str]
"""("ok" | "note" | "problem", what was found)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the version audit, in place of the checks")
    group.add_argument(
        "--audit",
        action="store_true",
        help="measure which version of the weights a backward uses, for each kind of weight",
    )
    for flag, text in _AUDITED.items():
        group.add_argument(f"--{flag}", metavar="X", help=text)
    group.add_argument("--recompute", action="store_true", help="with activations recomputed in the backward")
    add_json_argument(parser)


_AUDITED = {
    "model": "its model (default femto)",
    "schedule": "its schedule (default paci)",
    "precision": "one precision (default: all, side by side)",
}


def run(arguments: argparse.Namespace) -> int:
    if arguments.audit:
        return _audit(arguments)
    for flag in (*_AUDITED, "recompute"):
        if value := getattr(arguments, flag):
            raise InputError(f"--{flag}", value, "nothing without --audit", "add --audit")
    screen = console()
    found: dict[str, Finding] = {}
    for name, check in CHECKS.items():
        try:
            found[name] = check()
        except Exception as error:  # whatever is wrong with this machine is the finding
            found[name] = ("problem", f"{type(error).__name__}: {error}")
        state, text = found[name]
        screen.print(
            f"[{ {'ok': 'green', 'note': 'yellow', 'problem': 'bold red'}[state] }]{state:8}[/] {name:16} ", end=""
        )
        screen.print(text, markup=False)
    write_figures(arguments.json, {name: {"state": state, "found": text} for name, (state, text) in found.items()})
    return 1 if any(state == "problem" for state, _ in found.values()) else 0


def _audit(arguments: argparse.Namespace) -> int:
    from paci_lab.audit import audit
    from paci_lab.models import build_model
    from paci_lab.partition import even_partition

    model, schedule = arguments.model or "femto", arguments.schedule or "paci"
    cls = schedule_classes().get(schedule)
    stages = 2 * (cls.chunks if cls else 1)
    spec = TrainSpec(
        model=model,
        schedule=schedule,
        stages=stages,
        window=2,
        updates=4,
        microbatch_size=1,
        device="cpu",
        recompute=arguments.recompute,
        partition=even_partition(build_model(model).layers, stages),
    )
    asked = [arguments.precision] if arguments.precision else ["fp32", "bf16", "autocast"]
    found = {precision: audit(spec.replace(precision=precision)) for precision in asked}
    gap = spec.build_schedule().gap_bound(0)
    print_table(
        f"Which weights a backward uses: {model}, {schedule}, {stages} stages" + (", recomputed" * arguments.recompute),
        ["kind of weight", *asked],
        [(kind, *(found[precision][kind] for precision in asked)) for kind in found[asked[0]]],
        notes=[
            "current: as it is at the moment of the backward. forward's: a copy from the forward.",
            "not used: does not enter the backward, as a bias. Measured with an update between forward and backward"
            + ("." if gap else f", which {schedule} never has: its two are the same."),
        ],
    )
    figures = {"model": model, "schedule": schedule, "recompute": arguments.recompute, "gap_bound": gap}
    write_figures(arguments.json, {**figures, "version_used": found})
    return 0


def _python() -> Finding:
    return "ok", f"{platform.python_version()} on {platform.system()}, {os.cpu_count()} cores"


def _torch() -> Finding:
    import torch
    from packaging.requirements import Requirement

    declared = next(r for r in map(Requirement, importlib.metadata.requires("paci-lab") or []) if r.name == "torch")
    version = torch.__version__.split("+")[0]
    if not declared.specifier.contains(version, prereleases=True):
        return (
            "problem",
            f"{version} is outside the supported range {declared.specifier}: pip install 'torch{declared.specifier}'",
        )
    return "ok", f"{torch.__version__} (supported: {declared.specifier})"


def _guard() -> Finding:
    from paci_lab.runtime.guard import self_test

    self_test()
    return "ok", "an optimizer can step between a forward and its backward, and the backward uses the new weights"


def _gpus() -> Finding:
    import torch

    count = torch.cuda.device_count()
    if not count:
        return "note", "none: runs use the CPU, and paced stages stand for devices"
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    nccl = "NCCL" if torch.distributed.is_nccl_available() else "no NCCL in this torch"
    return "ok", f"{count}: {names}; {nccl} with a GPU per stage, gloo when stages share one"


def _ranks() -> Finding:
    from paci_lab.runtime.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        spec = TrainSpec(model="femto", stages=2, window=2, updates=2, device="cpu", validation_batches=1)
        result = launch(spec, os.path.join(folder, "run")).wait(120)
    return "ok", f"2 ranks over gloo trained a small model, {result['updates']} updates"


def _widgets() -> Finding:
    missing = []
    for package in ("jupyterlab", "ipywidgets", "anywidget", "plotly"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        return "problem", f"missing for the lessons: pip install {' '.join(missing)}"
    return "ok", "jupyterlab, ipywidgets, anywidget and plotly are here"


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "torch": _torch,
    "version guard": _guard,
    "GPUs": _gpus,
    "ranks": _ranks,
    "notebook widgets": _widgets,
}
