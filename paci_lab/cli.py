"""`paci-lab`: a command is one file in `commands/` with `HELP`, `EXAMPLE`, `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from paci_lab.errors import InputError, RunFailed
from paci_lab.schedules import ScheduleError

__all__ = ["main"]

COMMANDS = (
    "demo",
    "doctor",
    "simulate",
    "train",
    "compare",
    "claims",
    "fit",
    "show",
    "lab",
    "play",
    "present",
    "grade",
    "schedules",
    "export",
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 a run failed, 2 wrong input, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="paci-lab", description=sys.modules["paci_lab"].__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"paci_lab.commands.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"example:  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    chosen = parser.parse_args(arguments)
    try:
        return chosen.run(chosen)
    except (InputError, ScheduleError) as error:
        print(f"paci-lab {chosen.command}: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"paci-lab {chosen.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\npaci-lab {chosen.command}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough, as in `paci-lab … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main())
