"""The presentation as an audience meets it: `paci-lab present` in a real Chromium, by its keys.

Screenshots go to a temporary folder, or to the one that PACI_LAB_SCREENSHOTS names.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_helpers import PATIENCE_MS, open_chromium, wait_in_page, wait_until

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import sync_playwright  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]


RACE = ["--pace-forward-ms", "15", "--pace-backward-ms", "30", "--target-loss", "3.9", "--learning-rate", "0.008"]
"""Reached after about 64 micro-batches on both sides, by replay: a few seconds."""

ENDLESS = ["--pace-forward-ms", "15", "--pace-backward-ms", "30", "--target-loss", "0.1", "--microbatches", "4000"]
"""Takes minutes, so that there is always a race to be held."""

OUTSIDE = """() => {
    const shown = "h1, .paci-lab-race p, .card, .paci-lab-buttons button, .js-plotly-plot .main-svg";
    return [...document.querySelectorAll(shown)].filter((element) => {
        const { left, right, top, bottom, width } = element.getBoundingClientRect();
        return width && (left < 0 || top < 0 || right > innerWidth + 1 || bottom > innerHeight + 1);
    }).map((element) => element.outerHTML.slice(0, 80)).concat(
        document.documentElement.scrollHeight > innerHeight ? ["the page scrolls"] : []);
}"""
PAPERS = """() => [...document.querySelectorAll(".js-plotly-plot .main-svg:first-child")]
    .filter((svg) => svg.getClientRects().length).map((svg) => svg.style.background.replaceAll(" ", ""))"""
SMALLEST = """() => {
    const sizes = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.getClientRects().length)
        .map((e) => parseFloat(getComputedStyle(e).fontSize));
    return { heading: Math.min(...sizes("h1")), ticks: Math.min(...sizes(".xtick text, .ytick text")),
        body: Math.min(...sizes(".paci-lab-race p, .paci-lab-buttons button")) };
}"""


class Presented(NamedTuple):
    """A page that shows the presentation of `command`; `asked` are all addresses it has asked for, in order."""

    page: Any
    command: subprocess.Popen
    asked: list[str]
    shoot: Callable[[str], None]


def test_the_race_from_scene_to_scene(tmp_path, leftovers):
    with presentation(tmp_path, *RACE) as shown:
        drive(shown.page, shown.shoot)
        own = shown.asked[0].partition("/?")[0]
        assert all(url.startswith((own, "blob:", "data:")) for url in shown.asked), shown.asked
    wait_until(lambda: not leftovers(), what="the end of its ranks")


def test_a_race_is_held_and_its_command_killed(tmp_path, leftovers):
    with presentation(tmp_path, *ENDLESS) as shown:
        page = shown.page
        page.locator("h1", has_text="One device").wait_for()
        for title in ("in turn", "flush", "race"):
            page.keyboard.press("n")
            page.locator("h1", has_text=title).wait_for()
        page.keyboard.press("s")
        toggle = page.locator("button[data-action=toggle]")
        toggle.filter(has_text="Hold").wait_for()  # until then a second press is one too many
        wait_in_page(page, lambda: min(ends(page)) > 0)
        page.keyboard.press("s")
        page.locator(".label", has_text="held").wait_for()
        held = ends(page)
        page.keyboard.press("s")
        wait_in_page(page, lambda: min(now - then for now, then in zip(ends(page), held, strict=True)) > 500)
        assert not page.locator(".paci-lab-gone").inner_text()
        shown.command.kill()
        page.locator(".paci-lab-gone[role=status]", has_text="The command has ended").wait_for()
        assert not page.locator(".label").is_visible()
        shown.shoot("killed-1280")
    wait_until(lambda: not leftovers(), what="the end of its ranks")


@contextlib.contextmanager
def presentation(folder: Path, *options: str) -> Iterator[Presented]:
    """`paci-lab present`, opened in a page."""
    pictures = Path(os.environ.get("PACI_LAB_SCREENSHOTS", folder))
    pictures.mkdir(parents=True, exist_ok=True)
    command = subprocess.Popen(
        [sys.executable, "-m", "paci_lab.cli", "present", "--no-browser", "--run-dir", "runs", *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PACI_LAB_TRAIN": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        address = re.search(r"http\S+", command.stderr.readline())[0]
        with sync_playwright() as playwright:
            browser = open_chromium(playwright)
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.set_default_timeout(PATIENCE_MS)
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.goto(address)

            def shoot(name: str) -> None:
                page.screenshot(path=pictures / f"present-{name}.png")

            try:
                yield Presented(page, command, asked, shoot)
            finally:
                shoot("at-its-end")
                browser.close()
    finally:
        command.kill()
        command.stderr.close()
        command.wait()


def drive(page, shoot) -> None:
    heading = page.locator(".paci-lab-race h1")
    heading.filter(has_text="One device").wait_for()
    page.locator(".paci-lab-lane .xtick").first.wait_for(state="attached")
    page.keyboard.press("s")
    wait_in_page(page, lambda: ends(page)[0] > 1000)
    for title in ("in turn", "flush"):
        page.keyboard.press("ArrowRight")
        heading.filter(has_text=title).wait_for()
    page.keyboard.press("Space")
    wait_in_page(page, lambda: min(ends(page)) > 1000 and len(ends(page)) == 2)
    shoot("flush-1280")
    page.locator("button", has_text="Next").click()  # the mouse leaves the focus, so that Space starts the race
    heading.filter(has_text="race").wait_for()
    page.locator(".label", has_text="to be run live").wait_for()
    wait_in_page(page, lambda: max(ends(page)) == 0)  # the scene before has gone from the charts
    shoot("ready-1280")
    page.keyboard.press("?")
    page.locator("dialog[open]").wait_for()
    assert "(Space or S)" in page.locator("dialog[open]").inner_text()
    shoot("keys-1280")
    page.keyboard.press("Escape")
    page.keyboard.press("Space")
    page.keyboard.press("Space")  # once too often
    wait_in_page(page, lambda: len(ends(page)) == 2 and min(ends(page)) > 1000)
    before = ends(page)
    wait_in_page(page, lambda: min(now - then for now, then in zip(ends(page), before, strict=True)) > 500)
    shoot("race-1280")
    verdict = page.locator(".paci-lab-verdict p", has_text="was there first")
    verdict.wait_for(timeout=2 * PATIENCE_MS)  # the evaluators run where nobody else wants to
    assert re.search(r"window 8 was there first: [\d.]+ s against [\d.]+ s, \d+\.\d\d times", verdict.inner_text())
    assert page.locator(".paci-lab-said").text_content() == verdict.inner_text()
    page.locator(".label", has_text="replay of this race").wait_for()

    for size in ((1280, 720), (1920, 1080)):
        page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        for dark in (False, True):
            if dark:
                page.keyboard.press("d")
            ground = {"rgb(20,23,28)" if dark else "rgb(255,255,255)"}
            wait_in_page(page, lambda ground=ground: set(page.evaluate(PAPERS)) == ground)
            wait_in_page(page, lambda: page.evaluate(OUTSIDE) == [])
            shoot(f"end-{size[0]}-{'dark' if dark else 'light'}")
        page.keyboard.press("d")
    found = page.evaluate(SMALLEST)
    assert found["heading"] >= 36 and found["body"] >= 20 and found["ticks"] >= 16, found


def ends(page) -> list[float]:
    """End of the last bar that is shown in each chart, in milliseconds."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".paci-lab-lane .js-plotly-plot")]
            .filter((chart) => chart.data && chart.clientWidth).map((chart) => {
            const unit = (chart.layout.xaxis.title?.text ?? "").includes("(s)") ? 1000 : 1;
            const painted = chart.querySelector("canvas.paci-lab-moving");
            if (painted) return unit * painted.dataset.until;
            return unit * Math.max(0, ...chart.data.filter((d) => d.type === "bar" && d.x && d.base)
                .flatMap((d) => Array.from(d.x, (x, i) => x + d.base[i])));
        })"""
    ) or [0.0]
