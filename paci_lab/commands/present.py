"""`paci-lab present`: the race and four more scenes on a full-screen page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from paci_lab.commands.common import add_spec_arguments, spec_from
from paci_lab.commands.compare import parse_contender
from paci_lab.errors import InputError
from paci_lab.spec import TrainSpec

HELP = "five scenes for a projector, from one device to a live race of two schedules"
EXAMPLE = "paci-lab present        or        paci-lab present 1f1b:8 paci:4 --learning-rate 0.002"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "contenders",
        nargs="*",
        metavar="SCHEDULE:WINDOW",
        help="the two that race, as in paci-lab compare (default: 1f1b:8 paci:8)",
    )
    parser.add_argument("--left", metavar="SPEC.toml", help="the upper side of the race, as a spec file")
    parser.add_argument("--right", metavar="SPEC.toml", help="the lower side of the race, as a spec file")
    parser.add_argument(
        "--recorded", nargs=2, metavar=("RUN_A", "RUN_B"), help="replay two runs of earlier instead, and say so"
    )
    parser.add_argument("--theme", choices=("light", "dark"), default="light", help="to begin with (default light)")
    parser.add_argument("--port", type=int, default=0, help="of the page (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the page's address")
    parser.add_argument(
        "--run-dir", default="runs", metavar="DIR", help="folder for the run directories (default runs)"
    )
    add_spec_arguments(parser, without=("schedule", "engine", "window", "slack", "updates"), file=False)
    parser.set_defaults(spec=None)  # the flags change what the scenes' own races train


def run(arguments: argparse.Namespace) -> int:
    sides = sides_of(arguments)
    from paci_lab.page import open_page

    code = (
        "from paci_lab.present.view import Presentation\n"
        f"Presentation({sides!r}, folder={arguments.run_dir!r}, theme={arguments.theme!r})"
    )
    return open_page(
        code,
        title="PACI Lab",
        theme=arguments.theme,
        port=arguments.port,
        browser=not arguments.no_browser,
    )


def sides_of(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The two sides of every race, as `Presentation` takes them; raises InputError for one that cannot be run."""
    given = [bool(arguments.contenders), bool(arguments.left or arguments.right), bool(arguments.recorded)]
    if sum(given) > 1:
        raise InputError(
            "the race", "described twice", "contenders, --left with --right, or --recorded", "give one of the three"
        )
    from paci_lab.lessons import training
    from paci_lab.present.scenes import scenes

    races = {scene.key: scene.race for scene in scenes() if scene.race}
    if not training() and any(given[:2]):
        raise InputError("PACI_LAB_TRAIN", 0, "1 for a race that is run", "unset it, or give --recorded RUN_A RUN_B")
    found = {key: _default(arguments, race, live=training()) for key, race in races.items()}
    if arguments.recorded:
        found["race"] = _recorded([Path(path) for path in arguments.recorded])
    elif any(given):
        found["race"] = _live(_chosen(arguments))
    return found


def _default(arguments: argparse.Namespace, race: tuple[str, ...], *, live: bool) -> list[dict[str, Any]]:
    from paci_lab.present.race import RECORDINGS
    from paci_lab.present.scenes import BASE, RATES

    if not live:
        return _recorded([RECORDINGS / contender.replace(":", "-") for contender in race])
    base = spec_from(arguments, base=BASE)
    specs = [parse_contender(contender, base)[1] for contender in race]
    if arguments.spec_learning_rate is None:
        specs = [spec.replace(learning_rate=RATES[name]) for name, spec in zip(race, specs, strict=True)]
    return _live(specs)


def _chosen(arguments: argparse.Namespace) -> list[TrainSpec]:
    from paci_lab.present.scenes import BASE

    if arguments.contenders:
        if len(arguments.contenders) != 2:
            raise InputError(
                "contenders", " ".join(arguments.contenders), "two of them", "write it as in 1f1b:8 paci:8"
            )
        base = spec_from(arguments, base=BASE)
        return [parse_contender(text, base)[1] for text in arguments.contenders]
    if not (arguments.left and arguments.right):
        raise InputError("--left, --right", "one of them", "both", "name a spec file for each side")
    specs = [TrainSpec.load(path) for path in (arguments.left, arguments.right)]
    if arguments.spec_target_loss is not None:
        specs = [spec.replace(target_loss=arguments.spec_target_loss) for spec in specs]
    return specs


def _live(specs: list[TrainSpec]) -> list[dict[str, Any]]:
    from paci_lab.dry_run import dry_run
    from paci_lab.present.race import Racer
    from paci_lab.present.sides import names

    targets = {spec.target_loss for spec in specs}
    if len(targets) > 1 or None in targets:
        raise InputError(
            "target_loss", " and ".join(map(str, targets)), "one target for both sides", "give --target-loss 3.1"
        )
    for spec in specs:
        if spec.evaluate_every == 0 or spec.evaluate != "during":
            raise InputError(
                "evaluate_every, evaluate",
                f"{spec.evaluate_every}, {spec.evaluate}",
                "evaluations during the run, which the countdown needs",
                "set evaluate_every = 16 and evaluate = during",
            )
    needed = sum(stage.bytes for spec in specs for stage in dry_run(spec).stages if spec.device != "cuda")
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > here:
        raise InputError(
            "model",
            " and ".join(spec.model for spec in specs),
            f"two that take at most {here / 2**30:.1f} GiB together; these take {needed / 2**30:.1f} GiB",
            "choose a smaller model or micro-batch size",
        )
    return [
        Racer(name=name, target=spec.target_loss, spec=spec).to_dict()
        for name, spec in zip(names(specs), specs, strict=True)
    ]


def _recorded(paths: list[Path]) -> list[dict[str, Any]]:
    from paci_lab.present.race import Racer, common_target
    from paci_lab.present.sides import names
    from paci_lab.runtime.rundir import RunDir

    target = common_target(paths)
    called = names([RunDir.open(path).spec() for path in paths])
    return [
        Racer(name=name, target=target, recording=path.resolve()).to_dict()
        for name, path in zip(called, paths, strict=True)
    ]
