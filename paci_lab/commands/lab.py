"""`paci-lab lab`: JupyterLab at the lessons."""

from __future__ import annotations

import argparse

HELP = "open JupyterLab at lesson 00"
EXAMPLE = "paci-lab lab"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--solutions", action="store_true", help="the lessons with their exercises solved")
    parser.add_argument("--hub", action="store_true", help="as the server of one JupyterHub user, in ~/paci-lab")
    parser.add_argument("--port", type=int, help="of JupyterLab (default: 8888, or the next free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "rest", nargs="*", metavar="-- OPTION", help="other options for JupyterLab, such as -- --allow-root"
    )


def run(arguments: argparse.Namespace) -> int:
    from paci_lab.lab import open_lab

    options = list(arguments.rest)
    if arguments.no_browser:
        options.append("--no-browser")
    if arguments.port is not None:
        options.append(f"--port={arguments.port}")
    open_lab(options, solutions=arguments.solutions, hub=arguments.hub)
    return 0
