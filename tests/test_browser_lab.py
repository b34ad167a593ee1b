"""The lessons as a person meets them: JupyterLab in a real Chromium, cells run, sliders moved, Stop pressed.

Screenshots go to a temporary folder, or to the one that PACI_LAB_SCREENSHOTS names.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from engine_helpers import PATIENCE_MS, PATIENCE_S, free_port, open_chromium, wait_in_page

from paci_lab.lab import lesson_sources

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Page, sync_playwright  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]

TOKEN = "lessons"

CHARTS = "[...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .js-plotly-plot')].filter(c => c.data)"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """`paci-lab lab` on copies of the lessons, with a home of its own; gives the address up to a notebook's name."""
    folder, home = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("home")
    for source in lesson_sources():
        # A run that lasts until it is stopped: the test need not be faster than the training.
        text = source.read_text(encoding="utf-8").replace("updates=20,", "updates=2_000,")
        (folder / source.name).write_text(text, encoding="utf-8")
    port = free_port()
    code = (
        "import sys; from pathlib import Path; from paci_lab.lab import open_lab\n"
        "open_lab(sys.argv[2:], folder=Path(sys.argv[1]))"
    )
    options = [
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}",
    ]
    with open(home / "lab.log", "w") as log:
        lab = subprocess.Popen(
            [sys.executable, "-c", code, str(folder), *options],
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(home), "PACI_LAB_TRAIN": "1"},
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert lab.poll() is None and time.monotonic() < deadline, (home / "lab.log").read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/lab/tree/"
    finally:
        lab.terminate()
        lab.wait(PATIENCE_S)


# anywidget gives a widget's code two seconds to load, and then drops every message to it for good: as if plotly's 5 MB
# took longer than that, which on a busy machine they do.
SLOW = """
    const timeout = AbortSignal.timeout.bind(AbortSignal);
    AbortSignal.timeout = (milliseconds) => timeout(milliseconds === 2000 ? 0 : milliseconds);
"""


@pytest.fixture
def page(request) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = open_chromium(playwright)
        page = browser.new_page(viewport={"width": 1500, "height": 1050})
        page.set_default_timeout(PATIENCE_MS)
        if getattr(request, "param", "") == "slow":
            page.add_init_script(SLOW)
        yield page
        if "PACI_LAB_SCREENSHOTS" in os.environ:  # also where a test failed
            page.screenshot(path=Path(os.environ["PACI_LAB_SCREENSHOTS"]) / f"{request.node.name}-at-its-end.png")
        browser.close()


@pytest.fixture
def shoot(page, tmp_path):
    folder = Path(os.environ.get("PACI_LAB_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name: page.screenshot(path=folder / f"{name}.png")


def open_lesson(page: Page, server: str, name: str) -> None:
    page.goto(f"{server}{name}.ipynb?token={TOKEN}&reset")
    page.locator(".jp-NotebookPanel .jp-CodeCell").first.wait_for()
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()  # sooner, what is run is lost
    page.keyboard.press("Escape")
    page.locator(".jp-Cell").first.click(position={"x": 200, "y": 20})


def run_cells(page: Page, until: str) -> None:
    """Shift+Enter from the selected cell on, up to and with the first code cell that contains `until`."""
    for _ in range(60):
        source = page.locator(".jp-Cell.jp-mod-active .cm-content, .jp-Cell.jp-mod-active .jp-MarkdownOutput").first
        text = source.inner_text()
        is_code = page.locator(".jp-CodeCell.jp-mod-active").count() == 1
        page.keyboard.press("Shift+Enter")
        if is_code and until in text:
            return
    raise AssertionError(f"no cell contains {until}")


def newest_bar(page: Page) -> float:
    """End of the last bar in the newest chart that is shown, in milliseconds; a long chart's axis is in seconds."""
    return page.evaluate(
        f"() => {{ const c = {CHARTS}.at(-1); if (!c) return 0; "
        "const unit = (c.layout.xaxis.title?.text ?? '').includes('(s)') ? 1000 : 1; "
        "const painted = c.querySelector('canvas.paci-lab-moving'); "
        "if (painted) return unit * painted.dataset.until; "
        "return unit * Math.max(0, ...c.data.filter(d => d.type === 'bar' && d.x && d.base)"
        ".flatMap(d => Array.from(d.x, (x, i) => x + d.base[i]))); }"
    )


def advances(page: Page, *, times: int) -> None:
    """Wait until the chart has come further so many times, a second apart."""
    for _ in range(times):
        seen = newest_bar(page)
        page.wait_for_timeout(1000)
        wait_in_page(page, lambda seen=seen: newest_bar(page) > seen)


def contrast(page: Page, selector: str) -> float:
    """WCAG contrast of the text of an element with the first opaque background behind it."""
    return page.evaluate(
        """selector => {
        const element = document.querySelector(selector);  // in one go: a live chart replaces its texts at any moment
        const rgb = text => text.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const style = getComputedStyle(element);
        const ink = rgb(element instanceof SVGElement ? style.fill : style.color);
        let behind = element, ground = [255, 255, 255];
        if (element instanceof SVGElement) {
            const paper = element.closest('.js-plotly-plot').querySelector('.main-svg');
            ground = rgb(getComputedStyle(paper).backgroundColor);
        } else while (behind) {
            const color = rgb(getComputedStyle(behind).backgroundColor);
            if (color.length < 4 || color[3] > 0.99) { ground = color; break; }
            behind = behind.parentElement;
        }
        const [low, high] = [light(ink), light(ground)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    }""",
        selector,
    )


@pytest.mark.parametrize("page", ["slow", "usual"], indirect=True)
def test_lesson_04_a_slider_moves_the_chart(server, page, shoot):
    open_lesson(page, server, "04_paci")
    run_cells(page, "explorer(")
    wait_in_page(page, lambda: newest_bar(page) > 0)
    page.locator(".js-plotly-plot").last.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)
    shoot("lesson-04-explorer")
    before = newest_bar(page)
    handle = page.locator(".widget-slider", has_text="micro-batches").locator(".noUi-handle").first
    handle.focus()
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    wait_in_page(page, lambda: 0 < newest_bar(page) < before)  # fewer micro-batches end sooner
    page.wait_for_timeout(1000)
    shoot("lesson-04-moved")


def test_lesson_00_live_chart_stop_and_dark_theme(server, page, shoot):
    open_lesson(page, server, "00_start_here")
    shoot("lesson-00-opened")
    run_cells(page, "flush.live()")

    # The chart advances while the ranks train ...
    wait_in_page(page, lambda: newest_bar(page) > 0)
    advances(page, times=5)
    page.locator(".js-plotly-plot").last.scroll_into_view_if_needed()
    shoot("lesson-00-live")

    # ... it is readable in the dark theme, the page's words and the chart's ...
    page.get_by_role("menuitem", name="Settings").click()
    page.get_by_text("Theme", exact=True).click()
    page.get_by_text("JupyterLab Dark", exact=True).click()
    page.locator("body[data-jp-theme-light=false]").wait_for(state="attached")
    page.wait_for_timeout(1000)
    advances(page, times=5)
    shoot("lesson-00-dark")
    for selector in (".jp-OutputArea-output p", ".js-plotly-plot .xtick text", ".js-plotly-plot .legendtext"):
        assert contrast(page, selector) >= 4.5, selector
    paper = page.locator(".js-plotly-plot .main-svg").first
    assert paper.evaluate("svg => svg.style.background").replace(" ", "") == "rgb(20,23,28)"  # it follows the page

    # ... a bar that moves says what it is, and a picture that is held is plotly's again ...
    canvas = page.locator("canvas.paci-lab-moving")
    box = canvas.bounding_box()
    steps = itertools.count()

    def tip() -> str:  # along the first of four stages, again and again: it may be waiting anywhere
        page.mouse.move(box["x"] + box["width"] * (0.95 - next(steps) % 40 / 50), box["y"] + box["height"] / 8)
        page.wait_for_timeout(100)
        # In one go: the tip goes with its bar.
        return page.evaluate("document.querySelector('.paci-lab-tip')?.innerText ?? ''")

    wait_in_page(page, lambda: "stage" in tip())
    shoot("lesson-00-hover")
    page.mouse.move(5, 5)
    page.locator("button.jupyter-button", has_text="Pause").filter(visible=True).last.click()
    canvas.wait_for(state="detached")
    page.locator(".js-plotly-plot .barlayer path").first.wait_for(state="attached")
    shoot("lesson-00-paused")
    fills = "el => [...el.querySelectorAll('.barlayer .point path')].map(path => path.style.fill).join()"
    colors = page.locator(".js-plotly-plot").last.evaluate(fills)
    page.set_viewport_size({"width": 1280, "height": 720})
    fits = "el => el.querySelector('.main-svg').clientWidth <= el.clientWidth"
    wait_in_page(page, lambda: page.locator(".js-plotly-plot").last.evaluate(fits))  # the chart is as wide as the page
    assert colors == page.locator(".js-plotly-plot").last.evaluate(fills) and "rgb" in colors
    page.locator(".js-plotly-plot").last.scroll_into_view_if_needed()
    shoot("lesson-00-paused-small")
    page.locator("button.jupyter-button", has_text="Live").filter(visible=True).last.click()
    advances(page, times=2)

    # ... and Stop stops while another cell waits for the end.
    page.locator(".jp-CodeCell", has_text="flush.wait()").locator(".cm-content").click()
    run_cells(page, "flush.wait()")
    page.locator("button.jupyter-button", has_text="Stop").filter(visible=True).last.click()
    page.get_by_text("stopped by the user").first.wait_for()
    shoot("lesson-00-stopped")


FROM_RIGHT_TO_LEFT = """
import os

os.environ["PACI_LAB_LANGUAGE"] = "ar_XB"  # English, written from right to left
from paci_lab import lessons, open_run
from paci_lab.show.explorer import explorer
"""

LAYOUT = """view => {
    const small = ".widget-label, .widget-readout, .slider-container, button, select, summary";
    const parts = [...view.querySelectorAll(small)]
        .filter(part => part.offsetParent && !part.closest(".js-plotly-plot"));
    const all = [...parts, ...view.querySelectorAll(".js-plotly-plot, .widget-html-content > :is(div, table, ol)")];
    const box = part => part.getBoundingClientRect(), room = box(view), wrong = [];
    const say = part => `${part.className || part.tagName} ${part.textContent.slice(0, 30)}`;
    for (const part of all) {
        const { left, right } = box(part);
        if (left < room.left - 1 || right > room.right + 1) wrong.push(`outside: ${say(part)}`);
        for (const other of all) {
            if (part === other || part.contains(other) || other.contains(part)) continue;
            const [a, b] = [box(part), box(other)];
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (wide > 2 && high > 2) wrong.push(`over one another: ${say(part)} and ${say(other)}`);
        }
    }
    for (const part of parts.filter(part => !part.matches(".slider-container, select")))
        if (part.scrollWidth > part.clientWidth + 1) wrong.push(`cut off: ${say(part)}`);
    for (const label of view.querySelectorAll(".widget-inline-hbox:not(.paci-lab-time *) > .widget-label")) {
        const slider = label.parentElement.querySelector(".slider-container, select");
        if (slider && box(slider).left > box(label).left) wrong.push(`in the wrong order: ${say(label)}`);
    }
    const ticks = [...view.querySelectorAll(".js-plotly-plot .xtick text")].map(t => [+t.textContent, box(t).left]);
    if (ticks.some(([value, left], i) => i && value > ticks[i - 1][0] && left < ticks[i - 1][1]))
        wrong.push("time runs back");
    return wrong;
}"""

CONTROLS = """() => {
    const all = [...document.querySelectorAll(".paci-lab-view :is(select, button, input, .noUi-handle, summary)")];
    return all.filter(part => part.offsetParent && !part.closest(".js-plotly-plot")).length;
}"""

FOCUSED = """() => {
    const at = document.activeElement, style = getComputedStyle(at);
    const name = at.getAttribute("aria-label") || at.labels?.[0]?.textContent || at.textContent.trim() || at.title;
    return { inside: !!at.closest(".paci-lab-view"), plotly: !!at.closest(".js-plotly-plot"),
             tag: at.className || at.tagName, name,
             ring: style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2 };
}"""


def open_new(page: Page, server: str, name: str, cells: list[str]) -> None:
    """Write a notebook of our own beside the lessons, open it and run it."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells],
        metadata={"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
    )
    contents = server.replace("/lab/tree/", f"/api/contents/{name}.ipynb?token={TOKEN}")
    made = page.request.put(contents, data={"type": "notebook", "content": json.loads(nbformat.writes(notebook))})
    assert made.ok, made.text()
    open_lesson(page, server, name)
    run_cells(page, cells[-1].strip().splitlines()[-1])


def test_by_keyboard_alone_in_a_language_from_right_to_left(server, page, shoot):
    """Every control is reached, named and seen; words run from right to left, time does not, and nothing is cut off."""
    live = 'view = open_run(lessons.RECORDINGS / "04-paci").live(); view'
    open_new(page, server, "words", [FROM_RIGHT_TO_LEFT, "explorer(stages=4, microbatches=8, window=4)", live])
    first, second = page.locator(".paci-lab-view").first, page.locator(".paci-lab-view").last
    second.locator(".js-plotly-plot .xtick text").first.wait_for()
    first.locator("select").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    reached = []
    while (at := page.evaluate(FOCUSED))["inside"] and len(reached) < 120:
        reached.append(at)
        assert at["plotly"] or (at["ring"] and at["name"]), at
        page.keyboard.press("Tab")
    tags = [at["tag"] for at in reached if not at["plotly"] and "readout" not in at["tag"]]
    assert len(tags) == page.evaluate(CONTROLS) > 25

    # The explorer in words: unfolded by Enter, and kept up to date.
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    first.locator("details table").nth(1).wait_for()
    rows = first.locator("details tr").count()
    first.locator(".widget-slider", has_text="micro").locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowLeft")
    wait_in_page(page, lambda: 0 < first.locator("details[open] tr").count() < rows)
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    first.evaluate("view => view.scrollIntoView()")
    page.wait_for_timeout(1000)
    shoot("right-to-left-explorer")
    assert first.evaluate(LAYOUT) == [] and first.evaluate("view => getComputedStyle(view).direction") == "rtl"

    # A finished run, played, rewound and held by keys; then its table.
    second.locator(".noUi-handle").focus()
    for _ in range(5):
        page.keyboard.press("PageDown")
    second.locator("canvas.paci-lab-moving").wait_for(state="detached")
    second.locator("summary").focus()
    page.keyboard.press("Enter")
    second.locator("details table").first.wait_for()
    assert second.locator("[role=img]").first.get_attribute("aria-label")
    second.evaluate("view => view.scrollIntoView()")
    page.wait_for_timeout(1000)
    shoot("right-to-left-replay")
    assert second.evaluate(LAYOUT) == []
