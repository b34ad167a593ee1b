"""`paci-lab play`: the schedule-design game as a full-screen page."""

from __future__ import annotations

import argparse
from pathlib import Path

from paci_lab.errors import InputError
from paci_lab.language import _

HELP = "design a schedule on a board, in your browser, and run it on real paced ranks"
EXAMPLE = "paci-lab play --level 1f1b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--level", help="where to begin (default: where you were, or the first)")
    parser.add_argument(
        "--folder", default=".", help="where what you reach is kept, and runs go (default: the current folder)"
    )
    parser.add_argument("--theme", choices=("light", "dark"), default="light", help="of the page (default light)")
    parser.add_argument("--port", type=int, default=0, help="of the page (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(arguments: argparse.Namespace) -> int:
    from paci_lab.game import level_named
    from paci_lab.page import open_page

    if arguments.level is not None:
        level_named(arguments.level)
    folder = Path(arguments.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--folder", folder, "a folder that can be written", f"choose another ({error})") from None
    return open_page(
        f"from paci_lab.game import play\nplay({arguments.level!r})",
        title=_("Design a schedule"),
        theme=arguments.theme,
        port=arguments.port,
        browser=not arguments.no_browser,
        folder=folder,
    )
