"""`paci-tune`: which window? Searches it against measured time to target, on your own machines."""

from __future__ import annotations

import argparse
import os
import sys

from paci_lab import InputError, RunFailed, ScheduleError
from tuning.commands import COMMANDS

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 a run failed or nothing reached the target, 2 wrong input,
    130 interrupted."""
    parser = argparse.ArgumentParser(prog="paci-tune", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (told, example, add, run) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=told,
            description=told,
            epilog=f"example:  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add(command)
        command.set_defaults(run=run)
    chosen = parser.parse_args(argv)
    try:
        return chosen.run(chosen)
    except (InputError, ScheduleError) as error:
        print(f"paci-tune {chosen.command}: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"paci-tune {chosen.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\npaci-tune {chosen.command}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough, as in `paci-tune … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main())
