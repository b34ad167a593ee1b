"""`paci-lab lab`: JupyterLab at the lessons."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import paci_lab
from paci_lab.errors import InputError

HELP = "open JupyterLab at lesson 00"
EXAMPLE = "paci-lab lab"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rest", nargs="*", metavar="-- OPTION", help="options for JupyterLab, such as -- --no-browser --port 8890")


def run(arguments: argparse.Namespace) -> int:
    folder = Path(paci_lab.__file__).parents[1] / "notebooks"
    lessons = sorted(folder.glob("00_*"))
    if not lessons:
        raise InputError("lessons", folder, "the notebooks/ folder of a checkout", "run paci-lab lab from a clone of the project")
    # In this process's place, so that Ctrl-C and closing the terminal mean to JupyterLab what they always mean.
    os.chdir(folder)
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", lessons[0].name, *arguments.rest])
