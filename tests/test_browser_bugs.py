"""Lesson 09 as a person meets it: the fault named by keyboard, the loop repaired in its cell and checked."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from test_browser_lab import open_lesson, page, run_cells, server, shoot  # noqa: E402, F401

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_lesson_09_name_a_fault_and_repair_it(server, page, shoot):  # noqa: F811  (fixtures)
    open_lesson(page, server, "09_find_the_bug")
    run_cells(page, "name_the_fault(1)")
    first = page.locator(".widget-radio-box input").first
    first.wait_for()
    page.locator(".js-plotly-plot .scatterlayer .point").first.wait_for()
    page.locator(".js-plotly-plot .barlayer .point").first.wait_for()
    feedback = page.locator('[role="status"]', has_text="Not this one.")
    assert feedback.count() == 0
    first.focus()
    page.keyboard.press("Space")
    feedback.wait_for()
    page.keyboard.press("Tab")  # ipywidgets' radio buttons are a stop each
    page.keyboard.press("Space")
    page.locator('[role="status"]', has_text="Right. A sum makes each gradient").wait_for()
    first.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)
    shoot("lesson-09-named")

    run_cells(page, 'check("09-1"')
    page.get_by_text("points the right way and is 4 times too long").first.wait_for()
    page.wait_for_timeout(1500)
    shoot("lesson-09-not-yet")
    page.locator(".cm-line", has_text="loss.backward()").first.click()
    page.keyboard.press("End")
    page.keyboard.press("Shift+Home")
    page.keyboard.insert_text("(loss / window).backward()")
    run_cells(page, 'check("09-1"')
    page.get_by_text("Loop 1 is solved.").first.wait_for()
    page.wait_for_timeout(500)
    shoot("lesson-09-solved")
