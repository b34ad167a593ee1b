"""`paci-lab show`: charts of runs that are there already."""

from __future__ import annotations

import argparse
from pathlib import Path

from paci_lab.commands.common import console
from paci_lab.commands.remarks import remarks
from paci_lab.commands.train import origin_text
from paci_lab.errors import InputError, printable
from paci_lab.runtime.launch import open_run

HELP = "draw the Gantt chart of runs into a page, and write their traces for Perfetto"
EXAMPLE = "paci-lab show runs/demo/flush-8 runs/demo/paci-8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories, finished, going on or killed")
    parser.add_argument("--html", metavar="FILE", help="the page (default: gantt.html in the first run directory)")
    parser.add_argument("--between", nargs=2, type=float, metavar=("START", "END"), help="seconds of the run to draw")
    parser.add_argument(
        "--perfetto",
        metavar="FILE",
        help="the trace of the first run for Perfetto (default: perfetto.json beside the page)",
    )


def run(arguments: argparse.Namespace) -> int:
    from paci_lab.commands.charts import write_gantt_page

    screen = console()
    runs = [open_run(path) for path in arguments.runs]
    traces = []
    for run in runs:
        trace = run.trace()
        if not len(trace):
            raise InputError(
                "run directory", run.path, "a run with a trace", "train with trace = true, or wait for its first update"
            )
        stash = (
            ", autocast: a hidden weight stash" if run.spec.precision == "autocast" and not run.spec.recompute else ""
        )
        by = "" if run.spec.engine == "paci-lab" else f" by {run.spec.engine}"
        half = ", bf16" if run.spec.precision == "bf16" else ""
        traces.append((f"{run.spec.schedule}{by}, window {run.spec.window}{half}{stash} ({run.path.name})", trace))
        if (origin := run.dir.resumed()) is not None:
            screen.print(f"{run.path} was resumed from {origin_text(origin)}.", markup=False, soft_wrap=True)
        for row in run.dir.restarts():
            screen.print(
                f"{run.path} went on from update {row['from_update']} after {row['time_s']:.1f} s: {row['cause']}",
                markup=False,
                soft_wrap=True,
            )
        result = run.dir.result()
        for remark in remarks(result or {}):
            screen.print(f"{run.path.name}: {remark}", markup=False)
        if result is None:
            reason = (run.dir.failure() or {}).get("message", "it is still going, or was killed")
            screen.print(
                printable(f"{run.path} has no result: {reason}. Shown is what it wrote."), markup=False, soft_wrap=True
            )
    page = Path(arguments.html) if arguments.html else runs[0].path / "gantt.html"
    perfetto = Path(arguments.perfetto) if arguments.perfetto else page.with_name("perfetto.json")
    for path, flag, given in ((page, "--html", arguments.html), (perfetto, "--perfetto", arguments.perfetto)):
        if given is None and path.is_symlink():  # whoever made this folder says where the link leads
            raise InputError(str(path), "a link", "a place of its own for the file", f"name another with {flag}")
    try:
        write_gantt_page(page, traces, between_s=tuple(arguments.between) if arguments.between else None)
        traces[0][1].save_chrome(perfetto)
    except OSError as error:
        raise InputError("--html", page, "a file that can be written", f"choose another ({error})") from None
    screen.print(f"chart: {page}\nPerfetto trace (https://ui.perfetto.dev): {perfetto}")
    return 0
