"""How often a real Chromium draws the live view beside eight paced ranks: `python -m benchmarks.live_browser`.

Needs playwright (`make setup EXTRAS=test`) and a Chromium on the PATH. The browser paints in software when the machine
has no graphics, which then costs it the cores that the ranks compute on.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jupytext
import nbformat

from benchmarks.machine import machine_line

CELLS = (
    """import paci_lab
spec = paci_lab.TrainSpec(schedule="paci", stages=8, window=8, updates=5_000, device="cpu", microbatch_size=1,
    model="gpt:blocks=8,width=16,heads=1,context=16", pace_forward_ms=25, pace_backward_ms=50, validation_batches=1)
run = paci_lab.launch(spec, "run")""",
    "run.live()",
)
CANVAS = "document.querySelector('canvas.paci-lab-moving')"
BARS = f"Number({CANVAS}?.dataset.bars ?? 0)"
COUNT = f"""seconds => new Promise(done => {{
    let drawn = 0;
    const watch = new MutationObserver(() => drawn++);
    watch.observe({CANVAS}, {{ attributes: true, attributeFilter: ["data-number"] }});
    setTimeout(() => {{ watch.disconnect(); done(drawn / seconds) }}, 1000 * seconds) }})"""


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """JupyterLab on `folder`; gives the address of the notebook."""
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    jupytext.write(notebook, folder / "live.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--port={port}", "--IdentityProvider.token=t", f"--ServerApp.root_dir={folder}", "--allow-root"]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    lab = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if lab.poll() is not None:
                    raise RuntimeError("JupyterLab did not start") from None
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/lab/tree/live.ipynb?token=t&reset"
    finally:
        lab.terminate()
        lab.wait(30)


def main(rounds: int = 5, seconds: int = 6) -> None:
    """Open the notebook, run its cells, count drawings once 1,000 operations are in view."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    print(machine_line())
    with tempfile.TemporaryDirectory() as name, jupyterlab(Path(name)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": 1500, "height": 1050})
        page.set_default_timeout(120_000)
        page.goto(address)
        page.locator(".jp-NotebookPanel .jp-CodeCell").first.wait_for()
        page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()
        page.keyboard.press("Escape")
        page.locator(".jp-Cell").first.click(position={"x": 200, "y": 20})
        for _ in CELLS:
            page.keyboard.press("Shift+Enter")
        page.locator("canvas.paci-lab-moving").first.wait_for(state="attached")
        while page.evaluate(f"() => {BARS}") < 900:
            page.wait_for_timeout(500)
        found = [page.evaluate(COUNT, seconds) for _ in range(rounds)]
        print(
            f"live view of 8 stages, {page.evaluate(f'() => {BARS}')} bars in view, in Chromium: "
            f"{statistics.median(found):.1f} drawings a second (median of {rounds} times {seconds} s, "
            f"{min(found):.1f} to {max(found):.1f})"
        )
        browser.close()


if __name__ == "__main__":
    main()
