"""The schedule-design game as a person plays it: `paci-lab play` in a real Chromium, with keyboard and mouse.

Screenshots go to a temporary folder, or to the one that PACI_LAB_SCREENSHOTS names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE_MS = 60_000  # for a busy machine; nothing is decided by how long something takes


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    """The page of `paci-lab play`, whose kernel and command end with the test."""
    command = [sys.executable, "-m", "paci_lab.cli", "play", "--no-browser", "--folder", str(tmp_path / "player")]
    play = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)}, start_new_session=True
    )
    try:
        said = play.stderr.readline()
        found = re.search(r"http://\S+", said)
        assert found, said
        yield found[0]
    finally:
        play.send_signal(signal.SIGINT)
        play.communicate(timeout=30)
    assert play.returncode in (0, 130)
    with pytest.raises(ProcessLookupError):  # no kernel is left of its group
        os.killpg(play.pid, 0)


@pytest.fixture
def page() -> Iterator[Page]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        yield page
        browser.close()


def test_a_level_is_played_and_kept(address, page, tmp_path):
    folder = Path(os.environ.get("PACI_LAB_SCREENSHOTS", tmp_path))

    def shoot(name: str) -> None:
        page.screenshot(path=folder / f"game-{name}.png", full_page=True)

    def cell(op: str):
        return page.locator(f".track [data-op='{op}']")

    page.goto(address)
    said = page.locator(".paci-game .said")
    expect(said).to_contain_text("place the first operation")

    # By keyboard: a move, one that is refused with its reason, and undo.
    page.locator(".paci-game [role=gridcell][tabindex='0']").focus()
    page.keyboard.press("f")
    expect(cell("0F0")).to_have_attribute("aria-label", "0F0: forward of micro-batch 0, from 0 to 1")
    page.keyboard.press("b")
    expect(said).to_have_text("0B0 cannot stand there (deadlock: no rank can go on: 0B0 waits for 1B0).")
    expect(page.locator(".chip.refused")).to_have_attribute("data-op", "0B0")
    shoot("refused")
    page.keyboard.press("Control+z")
    expect(cell("0F0")).to_have_count(0)

    # By mouse: a click appends, a drag puts where it is dropped, and one off the board takes back.
    page.locator(".chip[data-op='0F1']").click()
    expect(cell("0F1")).to_be_visible()
    page.locator(".chip[data-op='0F0']").hover()
    page.mouse.down()
    there = cell("0F1").bounding_box()
    page.mouse.move(there["x"] + 3, there["y"] + 10, steps=4)
    page.mouse.up()
    expect(cell("0F1")).to_have_attribute("aria-label", "0F1: forward of micro-batch 1, from 1 to 2")
    cell("0F1").hover()
    page.mouse.down()
    page.mouse.move(300, 20, steps=4)
    page.mouse.up()
    expect(cell("0F1")).to_have_count(0)

    # Shown legal, and to the end by keyboard alone, fast: par.
    page.locator("button[data-do=legal]").press("Enter")
    expect(page.locator(".chip.legal")).to_have_attribute("data-op", "0F1")
    cell("0F0").focus()
    for key in ("End", "2", "f"):
        page.keyboard.press(key)
    expect(said).to_have_text("This level has no 0F2.")
    for key in ("f", "ArrowDown", *"fbfbu", "ArrowUp", *"bbu"):
        page.keyboard.press(key)
    expect(said).to_contain_text("Solved: par in every measure.")
    expect(page.get_by_text("Help used: what is legal.")).to_be_visible()
    shoot("solved")
    kept = json.loads((tmp_path / "player" / "paci-game.json").read_text())["levels"]["pair"]
    assert kept["board"].startswith("game1_pair_FFBBU_FBFBU_") and kept["solved"]

    # A new kernel, a dark page, and the board is there as it was left.
    page.reload()
    expect(cell("1U0")).to_be_visible()
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    page.get_by_label("Level").select_option(label="9. A bounded gap")
    expect(page.locator(".paci-game .row")).to_have_count(4)
    page.locator("button[data-do=solution]").click()
    expect(said).to_contain_text("This is the solution")
    shoot("dark")
