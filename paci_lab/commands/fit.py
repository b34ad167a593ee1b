"""`paci-lab fit`: micro-batch and window for a batch within the memory there is."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paci_lab.commands.common import (
    add_json_argument,
    add_spec_arguments,
    console,
    print_table,
    spec_from,
    write_figures,
)
from paci_lab.errors import InputError

if TYPE_CHECKING:
    from paci_lab.fit import Fit

HELP = "find the micro-batch and the window that give a batch within the memory of a device"
EXAMPLE = "paci-lab fit --memory 8GB --batch 256 --stages 2 --model micro --output spec.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        required=True,
        metavar="SIZE",
        help="of each device, that is of each rank's process: 8GB, 512MB, 6GiB; on a GPU without CUDA's own context",
    )
    parser.add_argument("--batch", type=int, required=True, metavar="B", help="sequences per update (on every stage)")
    parser.add_argument("--headroom", type=float, default=0.1, help="share of the memory to leave free (default 0.1)")
    parser.add_argument("--output", metavar="SPEC.toml", help="write the spec that was found")
    add_spec_arguments(parser, without=("microbatch_size", "window"))
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from paci_lab.fit import fit, parse_memory

    memory = parse_memory(arguments.memory)
    if arguments.batch < 1:
        raise InputError("--batch", arguments.batch, "a whole number from 1", "try --batch 256")
    if not 0 <= arguments.headroom < 1:
        raise InputError("--headroom", arguments.headroom, "a share from 0 to below 1", "try --headroom 0.1")
    screen = console()
    spec = spec_from(arguments)
    screen.print("probing, each size in processes of its own …", style="dim")
    found = fit(
        spec,
        memory=memory,
        batch=arguments.batch,
        headroom=arguments.headroom,
        say=lambda text: screen.print(text, style="dim"),
    )
    verified, why_not = _verify(found)
    chosen = found.spec
    print_table(
        f"micro-batch {chosen.microbatch_size}, window {chosen.window}: {arguments.batch} sequences an update",
        ["rank", "predicted", "probed alone", "in a real run"],
        [
            [str(rank), *(_text(column[rank]) if column else "–" for column in (found.predicted, probed, verified))]
            for probed in [found.probed[chosen.microbatch_size]]
            for rank in range(len(probed))
        ],
        notes=[
            f"{_text(memory)} a rank, of which {arguments.headroom:.0%} stay free; on a CPU the whole process counts"
        ],
    )
    if why_not:
        screen.print(f"not run for real: {why_not}", markup=False)
    if found.next_size is not None:
        screen.print(f"The next larger micro-batch, {found.next_size}, needs more.")
    if verified and max(verified) > memory:
        screen.print("The real run held more than the memory: raise --headroom and fit again.", style="bold")
    if arguments.output:
        try:
            chosen.save(arguments.output)
        except OSError as error:
            fix = f"choose another ({error})"
            raise InputError("--output", arguments.output, "a file that can be written", fix) from None
        screen.print(f"spec: {arguments.output}; train it with paci-lab train {arguments.output}")
    write_figures(
        arguments.json,
        {
            "spec": chosen.to_dict(),
            "memory": memory,
            "headroom": arguments.headroom,
            "batch": arguments.batch,
            "predicted": found.predicted,
            "probed": found.probed,
            "measured": verified,
            "not_measured": why_not,
        },
    )
    return 0 if not verified or max(verified) <= memory else 1


def _verify(found: Fit) -> tuple[list[int] | None, str | None]:
    """Peak bytes of every rank in a short real run of what was found; or why there is none."""
    from paci_lab.fit import available_bytes
    from paci_lab.runtime.launch import launch
    from paci_lab.runtime.probe import shortest

    spec = found.spec
    needed, free = sum(found.probed[spec.microbatch_size]), available_bytes()
    if spec.device == "cpu" and needed > 0.8 * free:
        return None, f"all ranks together need {_text(needed)}, and this machine has {_text(free)} free"
    short: dict[str, Any] = {"target_loss": None, "evaluate_every": 0, "validation_batches": 1, "evaluate": "after"}
    with tempfile.TemporaryDirectory() as folder:
        run = launch(shortest(spec.replace(**short)), Path(folder) / "run")
        try:
            result = run.wait()
        finally:
            run.stop()
    peaks, schedule = result["peak_memory_bytes"], spec.build_schedule()
    return [max(peaks[stage] for stage in schedule.stages_of(rank)) for rank in range(schedule.ranks)], None


def _text(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
