"""The race on its page in a real Chromium: how often both charts are drawn, and what the page costs the runs.

python -m benchmarks.race    about four minutes; both figures come from the same runs
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import machine_line
from paci_lab.present.scenes import BASE, RATES
from paci_lab.runtime.launch import launch

MICROBATCHES = 80
CONTENDERS = ("1f1b:8", "paci:8")
COUNT = """seconds => new Promise(done => {
    const lanes = [...document.querySelectorAll(".paci-lab-lane")], drawn = lanes.map(() => 0);
    const watches = lanes.map((lane, i) => {  // not the canvas, which leaves the page while a chart stands still
        const watch = new MutationObserver(changes => { drawn[i] += changes.length; });
        watch.observe(lane, { subtree: true, attributes: true, attributeFilter: ["data-number"] });
        return watch;
    });
    setTimeout(() => { watches.forEach(w => w.disconnect()); done(drawn.map(n => n / seconds)); }, 1000 * seconds) })"""

BOTH_MOVE = """() => [...document.querySelectorAll(".paci-lab-lane canvas.paci-lab-moving")]
    .filter(canvas => Number(canvas.dataset.bars) > 20).length === 2"""


def without_page(folder: Path) -> list[float]:
    """Wall times of both runs, started at once, with nobody watching."""
    specs = []
    for contender in CONTENDERS:
        schedule, window = contender.split(":")
        specs.append(
            BASE.replace(
                schedule=schedule,
                window=int(window),
                learning_rate=RATES[contender],
                microbatches=MICROBATCHES,
                target_loss=0.01,
            )
        )
    runs = [launch(spec, folder / f"run{number}") for number, spec in enumerate(specs)]
    return [run.wait()["wall_time_s"] for run in runs]


def with_page(folder: Path, playwright) -> tuple[list[float], list[float]]:
    """The same on the page: wall times, and drawings per second of each chart in the middle of the race."""
    options = ["--microbatches", str(MICROBATCHES), "--target-loss", "0.01", "--run-dir", str(folder)]
    command = subprocess.Popen(
        [sys.executable, "-m", "paci_lab.cli", "present", "--no-browser", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        address = re.search(r"http\S+", command.stderr.readline())[0]
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": 1920, "height": 1080})
        page.set_default_timeout(120_000)
        page.goto(address)
        page.locator(".paci-lab-lane .xtick").first.wait_for(state="attached")
        for title in ("in turn", "flush", "race"):
            page.keyboard.press("n")
            page.locator(".paci-lab-race h1", has_text=title).wait_for()
        page.keyboard.press("s")
        page.wait_for_function(BOTH_MOVE)
        page.wait_for_timeout(3000)
        drawings = page.evaluate(COUNT, 5)
        results = [next(folder.glob("race-*")) / name / "result.json" for name in ("above", "below")]
        while not all(result.exists() for result in results):
            page.wait_for_timeout(300)
        browser.close()
        return [json.loads(result.read_text())["wall_time_s"] for result in results], drawings
    finally:
        command.terminate()
        command.wait(30)


def main(rounds: int = 4) -> None:
    """Both in turns, each first in every second round."""
    from playwright.sync_api import sync_playwright

    print(machine_line())
    ratios: list[list[float]] = [[], []]
    drawn: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        for number in range(rounds):
            alone = without_page(Path(name) / f"alone{number}") if number % 2 == 0 else None
            watched, drawings = with_page(Path(name) / f"page{number}", playwright)
            alone = alone or without_page(Path(name) / f"alone{number}")
            for side in (0, 1):
                ratios[side].append(watched[side] / alone[side])
                drawn[side].append(drawings[side])
            rates = " and ".join(f"{rate:.1f}" for rate in drawings)
            print(
                f"round {number + 1}: {watched} s with the page, {alone} s without; {rates} drawings a second",
                flush=True,
            )
            time.sleep(1)
    for side, contender in enumerate(CONTENDERS):
        print(
            f"{contender}: {statistics.median(drawn[side]):.1f} drawings a second in Chromium at 1920 x 1080 "
            f"(median of {rounds} times 5 s, {min(drawn[side]):.1f} to {max(drawn[side]):.1f}); with the page "
            f"{100 * (statistics.median(ratios[side]) - 1):+.1f} % wall time (median of {rounds} pairs in turns, "
            f"{100 * (min(ratios[side]) - 1):+.1f} to {100 * (max(ratios[side]) - 1):+.1f})"
        )


if __name__ == "__main__":
    main()
