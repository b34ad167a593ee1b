"""From a move to the redrawn board of the game, in a real Chromium: `python -m benchmarks.game`, half a minute.

Needs playwright (`make setup EXTRAS=test`) and a Chromium on the PATH. The largest level is played by keyboard, once as
it is and once with the legal operations shown. Measured in the page, from the key to the frame in which the board has
the operation: the way to the kernel, the rules, the simulator, the file that remembers it, and the way back.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from benchmarks.machine import machine_line
from paci_lab.errors import InputError
from paci_lab.game import Board, Level, levels, take_step

__all__ = ["main", "redraws"]

_MOVE = """async (key) => {
    const root = document.querySelector(".paci-game"), before = root.dataset.number, began = performance.now();
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    while (root.dataset.number === before) await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""


def redraws(address: str, level: Level) -> dict[str, list[float]]:
    """Milliseconds of every move of `level`'s solution, on the page at `address`, without and with legality shown."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise InputError("browser", "none", " or ".join(names), "install Chromium")
    found: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(120_000)
        page.goto(address)
        page.locator(".paci-game .row").nth(level.stages - 1).wait_for()
        for name in ("as it is", "with what is legal shown"):
            if found:
                page.locator("[data-do=clear]").click()
                page.locator("[data-do=legal]").click()
                page.locator(".chip.legal").first.wait_for()
            board, found[name] = Board(level), []
            while (step := take_step(board)) is not None:
                page.locator(".row").nth(step.op.stage).locator(".end").focus()
                page.wait_for_timeout(50)
                found[name].append(page.evaluate(_MOVE, step.op.kind))
        assert page.locator(".track .op").count() == sum(map(len, level.solution()))
        browser.close()
    return found


def main() -> None:
    """Print median, nine of ten, and worst."""
    print(machine_line())
    level = levels()[-1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paci_lab.cli", "play", "--no-browser", "--folder", folder]
        play = subprocess.Popen([*command, "--level", level.id], stderr=subprocess.PIPE, text=True)
        try:
            address = re.search(r"http://\S+", play.stderr.readline())[0]
            for name, times in redraws(address, level).items():
                nine = statistics.quantiles(times, n=10)[-1]
                print(
                    f"move to redraw, {level.stages} ranks, {len(times)} moves, {name}: median "
                    f"{statistics.median(times):.0f} ms, nine of ten within {nine:.0f} ms, most {max(times):.0f} ms",
                    flush=True,
                )
        finally:
            play.terminate()
            play.wait(30)


if __name__ == "__main__":
    main()
