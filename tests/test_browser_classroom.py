"""Exercises as a learner meets them: JupyterLab in a real Chromium, with the keyboard, on a light and a dark page.

Screenshots go where those of `test_browser_lab` go.
"""

from __future__ import annotations

import pytest
from engine_helpers import wait_in_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from test_browser_lab import contrast, open_lesson, page, run_cells, server, shoot  # noqa: E402, F401

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]

WRONG = """def accumulate(model, x, y, parts):
    for xs, ys in zip(x.chunk(parts), y.chunk(parts)):
        mean_loss_of(model, xs, ys).backward()
"""
RIGHT = WRONG.replace("mean_loss_of(model, xs, ys)", "(mean_loss_of(model, xs, ys) / parts)")
GPIPE = """def order(stage, stages, m):
    return [f"{kind}{k}" for kind in "FB" for k in range(m)]
"""
HEAD = """def mean_loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


"""


def write(page, marked: str, text: str) -> None:  # noqa: F811
    """Put `text` in the place of what is in the code cell that contains `marked`, and run it."""
    cell = page.locator(".jp-CodeCell", has_text=marked).locator(".cm-content").first
    cell.scroll_into_view_if_needed()
    cell.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)
    page.keyboard.press("Shift+Enter")


def told(page, exercise: str):  # noqa: F811
    """What the check of an exercise says."""
    cell = page.locator(".jp-CodeCell", has_text=f'check("{exercise}"')
    return cell.locator("[role=status]").last


def test_lesson_01_hints_a_wrong_answer_a_right_one_and_a_question(server, page, shoot):  # noqa: F811
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    open_lesson(page, server, "01_gradient_accumulation")
    run_cells(page, 'hint("01-loop")')
    told(page, "01-loop").get_by_text("accumulate is not written yet").wait_for()

    # Hints unfold by keyboard, one inside the other.
    hints = page.locator(".jp-CodeCell", has_text='hint("01-loop")').locator("summary")
    hints.first.wait_for()
    assert hints.count() == 4 and hints.nth(0).is_visible() and not hints.nth(1).is_visible()
    for number in range(2):
        hints.nth(number).focus()
        page.keyboard.press("Enter")
        hints.nth(number + 1).wait_for()
    assert not hints.nth(3).is_visible()
    shoot("classroom-hints")

    # A wrong answer is told with its reason, and a right one passes.
    write(page, "def accumulate(", HEAD + WRONG)
    page.keyboard.press("Shift+Enter")
    told(page, "01-loop").get_by_text("it gives 2 times what is right").wait_for()
    told(page, "01-loop").scroll_into_view_if_needed()
    shoot("classroom-wrong")
    write(page, "def accumulate(", HEAD + RIGHT)
    page.keyboard.press("Shift+Enter")
    told(page, "01-loop").get_by_text("is solved").wait_for()

    # A guess is noted, and a question is answered by keyboard; on a dark page both can be read.
    run_cells(page, '"01-noise"')
    field = page.locator("input[placeholder='your guess']")
    field.fill("8")
    page.get_by_text("Noted: 8 times").wait_for()
    page.locator(".jp-CodeCell", has_text="one, eight = noise").locator(".cm-content").click()
    page.evaluate("window.MathJax = { version: '3.2.2' }")  # what JupyterLab leaves there once it has drawn a formula
    run_cells(page, 'quiz("01")')
    answer = page.locator(".Quiz input[type=radio]").first
    answer.wait_for(state="attached")
    page.get_by_text("You said 8 times").wait_for()
    page.get_by_role("menuitem", name="Settings").click()
    page.get_by_text("Theme", exact=True).click()
    page.get_by_text("JupyterLab Dark", exact=True).click()
    page.locator("body[data-jp-theme-light=false]").wait_for(state="attached")
    answer.focus()
    page.keyboard.press("Space")
    page.get_by_text("The activations of a micro-batch are free").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    said = page.locator(".Quiz .Feedback").first
    wait_in_page(page, lambda: "Right: one micro-batch" in said.inner_text())
    assert said.get_attribute("role") == "status" and contrast(page, ".Quiz .Feedback") >= 4.5
    assert page.locator(".Quiz input:checked").count() == 1  # one answer at a time, and the first one once more
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    wait_in_page(page, lambda: "The activations of a micro-batch are free" in said.inner_text())
    assert answer.is_checked() and page.locator(".Quiz input:checked").count() == 1
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    wait_in_page(page, lambda: "Right: one micro-batch" in said.inner_text())
    page.locator(".Quiz").first.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    shoot("classroom-question-dark")
    told(page, "01-loop").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    shoot("classroom-passed-dark")
    assert contrast(page, ".jp-OutputArea-output [role=status]") >= 4.5
    own = server.partition("/lab/")[0]
    assert all(url.startswith((own, "blob:", "data:")) for url in asked), [url for url in asked if own not in url]
    assert not [error for error in errors if "reading '0'" in error], errors


def test_lesson_02_a_wrong_order_is_drawn_over_the_right_one(server, page, shoot):  # noqa: F811
    open_lesson(page, server, "02_bubbles")
    run_cells(page, "import check")
    write(page, "def order(", GPIPE)
    page.keyboard.press("Shift+Enter")
    told(page, "02-order").get_by_text("That is GPipe").wait_for()
    chart = page.locator(".jp-CodeCell", has_text='check("02-order"').locator(".js-plotly-plot")
    chart.wait_for()
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)
    shoot("classroom-order")
