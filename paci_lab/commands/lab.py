"""`paci-lab lab`: JupyterLab at the lessons."""

from __future__ import annotations

import argparse

HELP = "open JupyterLab at lesson 00"
EXAMPLE = "paci-lab lab"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--solutions", action="store_true", help="the lessons with their exercises solved")
    parser.add_argument("--hub", action="store_true", help="as the server of one JupyterHub user, in ~/paci-lab")
    parser.add_argument(
        "rest", nargs="*", metavar="-- OPTION", help="options for JupyterLab, such as -- --no-browser --port 8890"
    )


def run(arguments: argparse.Namespace) -> int:
    from paci_lab.lab import open_lab

    open_lab(arguments.rest, solutions=arguments.solutions, hub=arguments.hub)
    return 0
