"""The schedule-design game as a person plays it: `paci-lab play` in a real Chromium, with keyboard and mouse.

Screenshots go to a temporary folder, or to the one that PACI_LAB_SCREENSHOTS names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_helpers import PATIENCE_MS, PATIENCE_S, open_chromium, wait_until

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402
from test_browser_lab import open_lesson, run_cells, server  # noqa: E402, F401

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]


MARK = "PACI_LAB_TEST_PLAY"


def still_alive(mark: str) -> list[str]:
    """Command lines of the processes that were started with this mark in their environment: the command, kernels."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    """The page of `paci-lab play`; Ctrl-C ends it with all its processes."""
    command = [sys.executable, "-m", "paci_lab.cli", "play", "--no-browser", "--folder", str(tmp_path / "player")]
    mark = uuid.uuid4().hex
    environment = {**os.environ, "HOME": str(tmp_path), MARK: mark}
    play = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        said = play.stderr.readline()
        found = re.search(r"http://\S+", said)
        assert found, said
        yield found[0]
        assert any("ipykernel" in line for line in still_alive(mark)) or not Path("/proc/self").exists()
    finally:
        play.send_signal(signal.SIGINT)
        play.communicate(timeout=PATIENCE_S)
    wait_until(lambda: not still_alive(mark), what="the end of the kernel")
    assert play.returncode in (0, 130)


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = open_chromium(playwright)
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


def test_letters_are_moves_in_jupyterlab_too(server, page, tmp_path):  # noqa: F811
    """They are commands of JupyterLab's own elsewhere: B would add a cell."""
    open_lesson(page, server, "10_design_a_schedule")
    run_cells(page, "play()")
    end = page.locator(".paci-game [role=gridcell][tabindex='0']")
    end.focus()
    cells = page.locator(".jp-Cell").count()
    for key in ("f", "b", "i"):
        page.keyboard.press(key)
    expect(page.locator(".paci-game .said")).to_have_text("This level has no I: its operations are F, B, U.")
    assert page.locator(".track .op").count() == 1 and page.locator(".jp-Cell").count() == cells
    page.screenshot(path=Path(os.environ.get("PACI_LAB_SCREENSHOTS", tmp_path)) / "game-in-jupyterlab.png")
