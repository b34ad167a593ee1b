"""What torchrun starts: `torchrun --standalone --nproc-per-node STAGES -m paci_lab.train SPEC.toml [--run-dir DIR]`.

Every process is one rank of the run. The spec and flags of one host are enough: the others may be started without
them, and join. `paci-lab train --launcher torchrun` writes such a command. With `torchrun --max-restarts N` a run that
fails goes on from its newest checkpoint, or begins again.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from paci_lab.errors import InputError

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Take part in a run and return this rank's exit code: 0 well, 1 failed, 2 wrong input, 3 another rank failed."""
    from paci_lab.runtime import leader, member, place

    speaks = os.environ.get("LOCAL_RANK", "0") == "0"  # one message a host, whatever the number of ranks
    try:
        me = place.Place.from_environment()
        asked = _asked(arguments) if speaks else None
        served = me.serve()  # held to the end of this process
        me = me.counted().led_by_the_asked(asked)
    except InputError as error:
        if speaks:
            print(f"paci_lab.train: {error}", file=sys.stderr)
        return 2
    code = leader.lead(me, asked) if me.rank == 0 else member.take_part(me, asked)
    del served
    return code


def _asked(arguments: list[str] | None) -> dict[str, Any] | None:
    """The spec and run directory of the command line; None when it has neither."""
    from paci_lab.commands.common import add_spec_arguments, spec_from
    from paci_lab.commands.train import add_resume_arguments
    from paci_lab.runtime.checkpoint import open_checkpoint
    from paci_lab.runtime.launch import check_launch, new_folder

    parser = argparse.ArgumentParser(prog="python -m paci_lab.train", description=__doc__.splitlines()[0])
    add_spec_arguments(parser)
    parser.add_argument("--run-dir", metavar="DIR", help="a new or empty folder on a disk that all hosts share")
    add_resume_arguments(parser.add_argument_group("going on"))
    given = parser.parse_args(arguments)
    if all(value is None for name, value in vars(given).items() if name != "hang_timeout"):
        return None
    check_launch(0, given.hang_timeout)
    resume = os.path.abspath(given.resume) if given.resume else None
    spec = spec_from(given, open_checkpoint(resume)[0].spec if resume else None)
    return {
        "spec": spec.to_dict(),
        "run_dir": os.path.abspath(given.run_dir or new_folder(spec)),
        "resume": resume,
        "hang_timeout_s": given.hang_timeout,
    }


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may be inside the store's code, where an orderly exit would abort
