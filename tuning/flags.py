"""The flags that describe a study, and the settings that they make."""

from __future__ import annotations

import argparse
from typing import Any

from paci_lab import InputError
from paci_lab.commands.common import spec_from
from tuning.settings import Settings, parse_duration
from tuning.space import Space

__all__ = ["add_space", "settings_from"]

_DIMENSIONS = {
    "windows": "PACI's windows: 2,4,8 or 2..64 (default: theory's)",
    "flush-windows": "flush's windows (default: theory's and the spec's own)",
    "learning-rate-scales": "factors on the rule's learning rate: 0.5,1,2 or 0.25..4",
    "optimizers": "such as nadam,muon",
    "momenta": "such as 0.9,0.95",
    "slacks": "PACI's in-flight slack: 0,1,2",
    "microbatch-sizes": "sequences per micro-batch: 2,4",
    "stages-tried": "stage counts: 2,4",
    "partitions": "layers per stage, such as 3-2-2-3,2-3-3-2",
}


def add_space(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the search; both sides, PACI and flush, get the same")
    for name, told in _DIMENSIONS.items():
        group.add_argument(f"--{name}", metavar="X", help=told)
    group.add_argument(
        "--learning-rate-rule",
        default="sqrt",
        metavar="X",
        help="sqrt: by the root of the sequences per update; constant: the spec's own (default sqrt)",
    )
    group.add_argument(
        "--budget", default="30m", metavar="TIME", help="wall-clock time of all trials, 90s, 5m or 2h (default 30m)"
    )
    group.add_argument(
        "--slow",
        type=float,
        default=1.5,
        metavar="X",
        help="stop a trial this many times slower than the best of its side (default 1.5)",
    )
    group.add_argument("--seeds", type=int, default=3, help="seeds of a contender in the search (default 3)")
    group.add_argument("--confirm-seeds", type=int, default=5, help="fresh seeds of the last two (default 5)")
    group.add_argument("--memory", metavar="X", help="most memory a device may use: bytes or a share such as 90%%")
    group.add_argument(
        "--pareto",
        action="store_true",
        help="look for little memory as well as little time, and show the front of both",
    )
    group.add_argument(
        "--sampler",
        default="tpe",
        metavar="X",
        help="of spaces too large to try every point: tpe, or gp (needs scipy; default tpe)",
    )
    group.add_argument(
        "--hang", metavar="TIME", help="stop a trial that is silent for so long (default: from the baseline)"
    )
    group.add_argument(
        "--launcher", default="local", metavar="X", help="local, torchrun, slurm, or file.py:Class (default local)"
    )
    group.add_argument(
        "--launcher-option", action="append", default=[], metavar="NAME=VALUE", help="may be given several times"
    )
    group.add_argument("--storage", metavar="URL", help="an Optuna storage (default: a journal in the study's folder)")
    group.add_argument("--price", type=float, metavar="X", help="of a device for an hour, to see what is saved")


def settings_from(arguments: argparse.Namespace) -> Settings:
    """The settings that the flags describe."""
    space: dict[str, Any] = {"learning_rate_rule": arguments.learning_rate_rule}
    for flag in _DIMENSIONS:
        text = getattr(arguments, flag.replace("-", "_"))
        if text is not None:
            space["stages" if flag == "stages-tried" else flag.replace("-", "_")] = _values(flag, text)
    options = {}
    for text in arguments.launcher_option:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError("--launcher-option", text, "NAME=VALUE", "write it as in gpus=4")
        options[name] = _number(value)
    memory = arguments.memory
    return Settings(
        base=spec_from(arguments),
        space=Space.from_dict(space),
        budget_s=parse_duration(arguments.budget),
        slack=arguments.slow,
        seeds=arguments.seeds,
        confirm_seeds=arguments.confirm_seeds,
        memory=int(memory) if memory and memory.isdigit() else memory,
        hang_s=parse_duration(arguments.hang) if arguments.hang else None,
        launcher=arguments.launcher,
        launcher_options=options,
        pareto=arguments.pareto,
        sampler=arguments.sampler,
        storage=arguments.storage,
        price=arguments.price,
    )


def _values(flag: str, text: str) -> Any:
    if ".." in text:
        return text
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError(f"--{flag}", text, "values separated by commas", "leave it out to keep the spec's own")
    if flag == "partitions":
        return [[_number(n) for n in part.split("-")] for part in parts]
    return parts if flag == "optimizers" else [_number(part) for part in parts]


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
