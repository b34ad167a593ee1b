"""The lessons: from their sources, `notebooks/*.md`, to notebooks that a learner opens, and JupyterLab at the first.

A source is Markdown with its code in fenced blocks (jupytext's format). It has no place for outputs or widget state, so
none can be committed, and a change reads as a change. A learner works on copies, ordinary notebooks that keep outputs
and notes and open anywhere; they live in `notebooks/work/`, which git does not see, or where `workplace` says.

An exercise's solution stands in the source between `# BEGIN SOLUTION` and `# END SOLUTION`, the marks that nbgrader and
otter know as well. A learner's copy has `...` there; the solution notebook has the solution, and so has what tests run.
Where there is something to repair, a line `# INSTEAD OF` follows the solution, and then what the learner's copy has.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paci_lab
from paci_lab.errors import InputError
from paci_lab.workplace import workplace

__all__ = ["FOLDER", "execute", "lesson_sources", "open_lab", "prepare", "read_lesson", "solution"]

FOLDER = Path(paci_lab.__file__).parents[1] / "notebooks"
"""Where a checkout has its lessons."""

_SETTINGS = {
    # The question whether to fetch news covers a corner of the lesson.
    "page_config": {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}},
    # Else cells that are scrolled away leave the page, and with them the live chart, and the rest jumps about.
    "default_setting_overrides": {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}},
}
"""What JupyterLab does differently here; the learner's own settings win."""

_LINK = re.compile(r"\]\((\d\d_\w+)\.md\)")
_SOLUTION = re.compile(
    r"^([ \t]*)# BEGIN SOLUTION\n(.*?)(?:^[ \t]*# INSTEAD OF\n(.*?))?^[ \t]*# END SOLUTION *$", re.MULTILINE | re.DOTALL
)
_MARK = re.compile(r"(BEGIN|END) SOLUTION")


def lesson_sources(folder: Path = FOLDER) -> list[Path]:
    """The lessons in order; raises InputError when `folder` has none."""
    found = sorted(folder.glob("[0-9][0-9]_*.md"))
    if not found:
        raise InputError("lessons", folder, "the notebooks folder of a checkout", "run this from a clone")
    return found


def read_lesson(path: Path, *, solutions: bool = False) -> Any:
    """A lesson as a notebook (an nbformat node) without outputs; links between lessons lead to notebooks.

    Exercises are open, or solved with `solutions`. Raises InputError, with the command to run, when jupytext is not
    installed, and for a solution that is not marked at both ends.
    """
    try:
        import jupytext
    except ImportError:
        raise InputError(
            "notebook packages",
            "missing jupytext",
            "an installation with jupytext",
            "run: python -m pip install jupytext",
        ) from None
    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="md")
    for number, cell in enumerate(notebook.cells):
        cell.source = _LINK.sub(r"](\1.ipynb)", cell.source)
        if cell.cell_type == "code":
            cell.source = _SOLUTION.sub(_solved if solutions else _open, cell.source)
            if (left := _MARK.search(cell.source)) is not None:
                what = f"{path}, cell {number}"
                raise InputError(what, left[0], "a BEGIN and an END for every solution", "write the other mark")
        cell.id = f"cell-{number}"  # not drawn by chance: the same source gives the same file
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "paci_lab": {"made_from": _digest(notebook)},
    }
    return notebook


def solution(lesson: str, function: str, *, folder: Path = FOLDER) -> str | None:
    """The solved function `function` of lesson "01" as text; None where there is no such lesson, or nothing marked."""
    for path in folder.glob(f"{lesson}_*.md"):
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            if f"def {function}(" in block and _SOLUTION.search(block):
                return _SOLUTION.sub(_solved, block).rstrip()
    return None


def prepare(folder: Path = FOLDER, *, solutions: bool = False, shared: bool = False) -> list[Path]:
    """Make or refresh the learner's copies in the `workplace` of `folder` and return them; solved ones in solutions/.

    A copy with the learner's own changes in its cells is never lost: when its lesson has changed meanwhile, the copy is
    kept beside the new one as `<name>.yours.ipynb`. Outputs of an unchanged lesson are kept.
    """
    import nbformat

    work = workplace(folder, shared=shared)
    if solutions:
        work = work / "solutions"
    copies = []
    try:
        work.mkdir(parents=True, exist_ok=True)
        for source in lesson_sources(folder):
            copy, fresh = work / f"{source.stem}.ipynb", read_lesson(source, solutions=solutions)
            if not _up_to_date(copy, fresh):
                nbformat.write(fresh, copy)
            copies.append(copy)
    except OSError as error:
        raise InputError("lessons", work, "a folder that can be written", f"change its permissions ({error})") from None
    return copies


def execute(
    source: Path,
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    cell_timeout_s: int = 300,
    solutions: bool = True,
) -> Any:
    """Run a lesson from top to bottom without a browser, in `folder`, and return it with its outputs.

    Exercises are solved unless `solutions` is False: then it is the learner's copy that runs, as it is at first.

    Raises nbclient's CellExecutionError for the first cell that fails.
    """
    import nbclient

    notebook = read_lesson(source, solutions=solutions)
    client = nbclient.NotebookClient(notebook, timeout=cell_timeout_s, resources={"metadata": {"path": str(folder)}})
    return client.execute(env={**os.environ, **(environment or {})})


def open_lab(options: Sequence[str] = (), *, folder: Path = FOLDER, solutions: bool = False, hub: bool = False) -> None:
    """Become JupyterLab at lesson 00; `options` are its own, such as --no-browser. Does not return.

    With `hub` it becomes the JupyterLab of one user of a JupyterHub, which shares the checkout with others.
    """
    first = prepare(folder, solutions=solutions, shared=hub)[0]
    settings = first.parent / ".lab" / "labconfig"
    settings.mkdir(parents=True, exist_ok=True)
    for name, values in _SETTINGS.items():
        (settings / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    paths = [str(settings.parent), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(paths)
    # In this process's place, so that Ctrl-C and closing the terminal mean to JupyterLab what they always mean.
    os.chdir(first.parent)
    command = ["jupyterlab", first.name]
    if hub:
        open_at = f"--ServerApp.default_url=/lab/tree/{first.name}"
        command = ["jupyterhub.singleuser", f"--ServerApp.root_dir={first.parent}", open_at]
    os.execv(sys.executable, [sys.executable, "-m", *command, *options])


def _solved(match: re.Match[str]) -> str:
    return match[2].rstrip("\n")


def _open(match: re.Match[str]) -> str:
    return f"{match[1]}..." if match[3] is None else match[3].rstrip("\n")


def _up_to_date(copy: Path, fresh: Any) -> bool:
    """True when `copy` is of the same lesson as `fresh`; puts it aside when it is not and has the learner's changes."""
    import nbformat

    if not copy.exists():
        return False
    try:
        old = nbformat.read(copy, as_version=4)
        made_from, now = old.metadata.get("paci_lab", {}).get("made_from"), _digest(old)
    except Exception:  # nbformat has no common error for a file that is no notebook: it is the learner's all the same
        made_from, now = None, ""
    if made_from == fresh.metadata["paci_lab"]["made_from"]:
        return True
    if made_from != now:
        os.replace(copy, copy.with_suffix(".yours.ipynb"))
    return False


def _digest(notebook: Any) -> str:
    text = "\0".join(f"{cell.cell_type}\0{cell.source.strip()}" for cell in notebook.cells)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
