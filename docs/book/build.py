"""The book, a static site: `python -m docs.book.build`, or `make book`.

Its sources are the lessons and pages that are there anyway. The lessons are run from their recordings, two at a time;
`still` turns what they show into pictures with words; Sphinx makes the pages, and `check` walks over them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from docs.book.check import problems
from docs.book.reference import write_reference
from paci_lab.errors import InputError
from paci_lab.lab import lesson_sources, read_lesson
from paci_lab.show.palette import swap

__all__ = ["BookError", "build", "main", "run_lesson"]

ROOT = Path(__file__).parents[2]
PAGES = ("schedules", "cluster", "existing_code", "classroom", "measurements")
_WIDE = 84  # characters of printed text that fit on a page
_AT_ONCE = 2  # every lesson is a process with torch
_PRELUDE = "from docs.book.still import install; install()"


class BookError(Exception):
    """The book cannot be made; the message says which page is at fault."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the book and return the exit code: 0 well, 1 a page is wrong, 2 wrong input."""
    parser = argparse.ArgumentParser(prog="docs.book.build", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/book"), help="the site's folder (build/book)")
    output = parser.parse_args(arguments).output
    try:
        build(output)
    except BookError as error:
        print(f"book: {error}", file=sys.stderr)
        return 1
    except InputError as error:
        print(f"book: {error}", file=sys.stderr)
        return 2
    print(f"book: open {output / 'index.html'}")
    return 0


def build(output: Path, *, sources: Sequence[Path] | None = None) -> None:
    """Write the site into `output`, in place of a book that is there already.

    Args:
        sources: the lessons' Markdown; all of the checkout when None.

    Raises:
        InputError: `output` holds something else.
        BookError: a lesson's cell failed, Sphinx warned, or a link of the finished pages leads nowhere.
    """
    sources = lesson_sources() if sources is None else sources
    if output.exists() and any(output.iterdir()) and not (output / ".buildinfo").exists():
        raise InputError("output", output, "a new or empty folder, or a book", "name another one with --output")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        _write_lessons(sources, folder / "lessons")
        for name in PAGES:
            shutil.copy(ROOT / "docs" / f"{name}.md", folder)
        shutil.copy(ROOT / "docs" / "book" / "index.md", folder)
        write_reference(folder / "reference")
        _write_assets(folder / "assets")
        shutil.rmtree(output, ignore_errors=True)
        _sphinx(folder, output)
    if wrong := problems(output):
        raise BookError("\n".join(["the pages are not right:", *wrong]))


def run_lesson(source: Path) -> Any:
    """A lesson as a notebook with the outputs that a page can show; raises BookError that names the cell that fails."""
    import nbclient
    import nbformat

    notebook = read_lesson(source)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(_PRELUDE))
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=300,
            store_widget_state=False,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=ERROR"],
        )
        try:
            client.execute(env={**os.environ, "PACI_LAB_TRAIN": "0", "PYTHONPATH": path})
        except (nbclient.exceptions.CellExecutionError, nbclient.exceptions.CellTimeoutError) as error:
            raise BookError(_what_failed(source, notebook, error)) from None
    del notebook.cells[0]
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = "".join(map(_fitted, output.text.splitlines(keepends=True)))
    return notebook


def _fitted(line: str) -> str:
    """A long line of prose, which JupyterLab wraps, on several lines; rows of tables stay as they are."""
    prose = len(line) > _WIDE and "  " not in line and "|" not in line
    return textwrap.fill(line, _WIDE) + "\n" if prose else line


def _what_failed(source: Path, notebook: Any, error: Exception) -> str:
    done = [number for number, cell in enumerate(notebook.cells) if cell.get("execution_count") is not None]
    number = max(done, default=0)
    why = f"{getattr(error, 'ename', type(error).__name__)}: {getattr(error, 'evalue', error)}"
    code = "\n".join(f"    {line}" for line in notebook.cells[number].source.splitlines())
    return f"lesson {source.stem}, cell {number} failed: {why}\n{code}"


def _write_lessons(sources: Sequence[Path], folder: Path) -> None:
    import nbformat

    folder.mkdir()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {source: pool.submit(run_lesson, source) for source in sources}
        try:
            for source, lesson in running.items():
                nbformat.write(lesson.result(), folder / f"{source.stem}.ipynb")
                print(f"book: {source.stem}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _write_assets(folder: Path) -> None:
    """What every page with a figure needs, once for all: plotly's code, and the dark counterparts of light colours."""
    from plotly.offline import get_plotlyjs

    folder.mkdir()
    (folder / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    (folder / "palette.js").write_text(f"const SWAP = {json.dumps(swap())};\n", encoding="utf-8")


def _sphinx(folder: Path, output: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", ROOT / "docs" / "book"]
    doctrees = folder / "doctrees"
    done = subprocess.run([*command, "-d", doctrees, folder, output], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise BookError("Sphinx warns:\n" + done.stderr.replace(f"{folder}/", "").strip())


if __name__ == "__main__":
    sys.exit(main())
