"""The book: every lesson is in it with its figures and their words, it fetches nothing, and a wrong cell is named."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_helpers import PATIENCE_MS, open_chromium
from filelock import FileLock

from paci_lab import PACI, Costs, InputError, simulate
from paci_lab.lab import lesson_sources
from paci_lab.show.gantt import gantt
from paci_lab.show.loss import loss_curves

for package in ("sphinx", "myst_nb", "furo"):
    pytest.importorskip(package, reason=f"{package}, of the extra `book`, is not installed")
from docs.book.build import BookError, build, run_lesson  # noqa: E402
from docs.book.check import problems, read_page  # noqa: E402
from docs.book.still import figure_html  # noqa: E402

FIGURES = {"00": 3, "02": 5, "04": 5, "06": 3, "07": 2, "09": 16, "10": 2}
"""Figures of the lessons that have some, at least: exercises may add more."""

TRAINS = ("00", "02", "03", "04", "06", "08", "10")
"""Lessons that train, and so show recordings here."""


# -- the checker ------------------------------------------------------------------------------------------------------
PAGE = """<html><head><link rel="stylesheet" href="a.css"></head><body><h1 id="top">A page</h1>
<a href="#top">up</a> <a href="b.html#there">b</a> <a href="https://example.org/x">out</a>
<div class="paci-plot" role="img" aria-label="A chart of something."></div></body></html>"""


def site(folder: Path, page: str, style: str = "body { color: black }") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.html").write_text(page)
    (folder / "b.html").write_text('<p id="there">text</p>')
    (folder / "a.css").write_text(style)
    return folder


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("b.html#there", "c.html", "a.html links to c.html, which is not there"),
        ("b.html#there", "b.html#here", "a.html links to b.html#here, a place that its page has not"),
        ("#top", "#bottom", "a.html links to #bottom, a place that its page has not"),
        ("https://example.org/x", "https:///x", "a.html links to https:///x, which is no address"),
        ("https://example.org/x", "javascript:go()", "a.html links to javascript:go(), of a kind"),
        ('"a.css"', '"https://example.org/a.css"', "a.html fetches https://example.org/a.css from outside"),
        ("up</a>", 'up</a><img src="//example.org/i.png">', "a.html fetches //example.org/i.png from outside"),
        ("up</a>", 'up</a><script src="missing.js"></script>', "a.html links to missing.js, which is not there"),
        ("A chart of something.", "", "a.html has a figure without words"),
    ],
)
def test_the_checker_tells_what_is_wrong(tmp_path, right, wrong, said):
    assert problems(site(tmp_path, PAGE)) == []
    found = problems(site(tmp_path, PAGE.replace(right, wrong)))
    assert len(found) == 1 and found[0].startswith(said)


def test_the_checker_reads_styles(tmp_path):
    style = "@font-face { src: url('https://example.org/f.woff2') }"
    assert problems(site(tmp_path, PAGE, style)) == ["a.css fetches https://example.org/f.woff2 from outside"]


# -- pictures ---------------------------------------------------------------------------------------------------------
def test_a_figure_is_data_beside_its_words():
    chart = gantt(simulate(PACI(stages=2, microbatches=4, window=2), Costs()), title="</script><b>")
    html = figure_html(chart)
    assert "2 stages" in re.search('aria-label="(.*?)"', html)[1] and "<caption>" in html
    assert html.count("</script>") == 1  # a text in a chart cannot end its data
    rows = [{"time_s": t, "tokens": 10 * t, "val_loss": 4 / t} for t in (1, 2, 4)]
    html = figure_html(loss_curves({"PACI": rows}))
    assert "validation loss / training time (s)" in re.search('aria-label="(.*?)"', html)[1]
    assert "<td>PACI</td><td>training time (s)</td><td>validation loss</td><td>3</td><td>1: 4</td><td>4: 1</td>" in html


# -- the whole ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def book(tmp_path_factory, worker_id) -> Path:
    place = tmp_path_factory.getbasetemp()
    place = place if worker_id == "master" else place.parent  # of all workers: one of them builds it for both
    folder = place / "site"
    with FileLock(place / "site.lock"):
        if not (place / "site.done").exists():
            build(folder)  # which walks over its pages too
            (place / "site.done").touch()
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_lesson_is_there_with_its_figures(book):
    for source in lesson_sources():
        path = book / "lessons" / f"{source.stem}.html"
        text, number = path.read_text(encoding="utf-8"), source.stem[:2]
        figures = read_page(path).figures
        assert len(figures) >= FIGURES.get(number, 0), number
        assert text.count('class="paci-lab-spoken"') >= len(figures) and all(len(words) > 30 for words in figures)
        assert "Traceback" not in text and 'class="output stderr' not in text, number
        assert ("Training is switched off" in text) == (number in TRAINS), number
    assert (book / "_static" / "plotly.min.js").stat().st_size > 1e6
    assert sum(path.stat().st_size for path in book.rglob("*.html")) < 20e6  # plotly's code is in none of them
    assert "microbatch_size" in (book / "reference" / "spec.html").read_text()
    assert "usage: paci-tune plan" in (book / "reference" / "commands.html").read_text()


@pytest.mark.slow
def test_a_wrong_cell_is_named(tmp_path):
    lesson = tmp_path / "00_wrong.md"
    lesson.write_text("# 00 · Wrong\n\nText.\n\n```python\nright = 1\n```\n\n```python\nwrong = right / 0\n```\n")
    with pytest.raises(
        BookError, match=r"lesson 00_wrong, cell 3 failed: ZeroDivisionError: .*\n    wrong = right / 0"
    ):
        run_lesson(lesson)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="a book"):
        build(kept)
    assert (kept / "thesis.txt").read_text() == "mine"


# -- in a browser ------------------------------------------------------------------------------------------------------
@pytest.fixture
def browser() -> Iterator:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = open_chromium(started)
        yield browser
        browser.close()


DRAWN = "[...document.querySelectorAll('.paci-plot')].every(plot => plot.querySelector('.main-svg .subplot'))"
PAPER = "getComputedStyle(document.querySelector('.paci-plot .main-svg')).backgroundColor"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(1800)
def test_pages_draw_their_figures_and_fetch_nothing(book, browser, tmp_path):
    shots = Path(os.environ.get("PACI_LAB_SCREENSHOTS", tmp_path))
    page = browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme="light")
    page.set_default_timeout(PATIENCE_MS)
    said: list[str] = []
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or said.append(request.url))
    page.on("console", lambda message: message.type in ("error", "warning") and said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    for path in sorted(book.glob("lessons/*.html")):
        page.goto(path.as_uri())
        page.wait_for_function(DRAWN)
        assert said == [], path.name
    page.goto((book / "lessons" / "00_start_here.html").as_uri())
    assert page.evaluate(PAPER) == "rgb(255, 255, 255)"
    page.screenshot(path=shots / "book-light.png", full_page=True)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{PAPER} === 'rgb(20, 23, 28)'")
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400  # what is wide scrolls by itself
    page.screenshot(path=shots / "book-dark-narrow.png", full_page=True)
    page.locator(".paci-lab-spoken summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".paci-lab-spoken[open]").get_by_role("table").first.is_visible()
    assert said == []
