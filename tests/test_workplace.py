"""Many learners on one machine, from one checkout: each has a folder of their own, and their runs do not meet."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import paci_lab
from paci_lab.lab import lesson_sources
from paci_lab.workplace import workplace

ROOT = Path(__file__).parents[1]
LESSON = lesson_sources()[0]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("PACI_LAB_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_where_the_copies_are(tmp_path, home, monkeypatch):
    checkout = tmp_path / "notebooks"
    checkout.mkdir()
    assert workplace(checkout) == checkout / "work"
    assert workplace(checkout, shared=True) == home / "paci-lab"
    (checkout / "work").mkdir()
    assert workplace(checkout) == checkout / "work"
    monkeypatch.setattr(os, "getuid", lambda: (checkout / "work").stat().st_uid + 1)  # somebody else's copies
    assert workplace(checkout) == home / "paci-lab"
    monkeypatch.setenv("PACI_LAB_HOME", "~/course")
    assert workplace(checkout) == workplace(checkout, shared=True) == home / "course"


def not_writing_everywhere() -> list[str]:
    """What to put before a command so that a folder without write permission is one for root too."""
    if os.getuid() != 0:
        return []
    command = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    if not shutil.which("setpriv") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("root may write anywhere here, and setpriv cannot take that away")
    return command


def test_learners_of_a_checkout_that_cannot_be_written_have_their_own_copies(tmp_path):
    checkout = tmp_path / "notebooks"
    checkout.mkdir()
    shutil.copy(LESSON, checkout)
    checkout.chmod(0o555)
    code = "import sys; from pathlib import Path; from paci_lab.lab import prepare; print(*prepare(Path(sys.argv[1])))"
    command = [*not_writing_everywhere(), sys.executable, "-c", code, str(checkout)]
    try:
        for name in ("ada", "bob"):
            home = tmp_path / name
            home.mkdir()
            done = subprocess.run(command, env=os.environ | {"HOME": str(home)}, capture_output=True, text=True)
            assert done.stdout.strip() == str(home / "paci-lab" / f"{LESSON.stem}.ipynb"), done.stderr
            assert Path(done.stdout.strip()).is_file()
    finally:
        checkout.chmod(0o755)
    assert [path.name for path in checkout.iterdir()] == [LESSON.name]


def test_a_hub_user_lands_in_lesson_00_at_home(tmp_path, home):
    """With a stand-in for jupyterhub's own server, which needs a hub: what it is asked to do, and where."""
    server = tmp_path / "packages" / "jupyterhub" / "singleuser"
    server.mkdir(parents=True)
    (server.parent / "__init__.py").touch()
    (server / "__init__.py").touch()
    (server / "__main__.py").write_text("import json, os, sys; print(json.dumps([os.getcwd(), *sys.argv[1:]]))")
    path = os.pathsep.join([str(tmp_path / "packages"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "paci_lab.cli", "lab", "--hub", "--", "--debug"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    folder, *options = json.loads(done.stdout or "[]") or [done.stderr]
    assert folder == str(home / "paci-lab")
    open_at = f"--ServerApp.default_url=/lab/tree/{LESSON.stem}.ipynb"
    assert options == [f"--ServerApp.root_dir={folder}", open_at, "--debug"]
    assert len(list(Path(folder).glob("*.ipynb"))) == len(lesson_sources())


def test_binder_finds_the_copies_made(tmp_path):
    script = ROOT / "postBuild"
    assert os.access(script, os.X_OK)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (commands / "python").chmod(0o755)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PACI_LAB_HOME": str(tmp_path / "work"),
        "PYTHONPATH": path,
    }
    done = subprocess.run([script], env=os.environ | environment, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split()[0] == str(tmp_path / "work" / f"{LESSON.stem}.ipynb"), done.stderr


@pytest.mark.slow
def test_runs_that_start_together_do_not_meet(tmp_path, monkeypatch, leftovers):
    """Four learners in folders of their own, and two in one: ports and folders are chosen by each run."""
    spec = paci_lab.TrainSpec(stages=2, window=2, updates=3, model="femto", validation_batches=1, evaluate="after")
    runs = []
    for name in ("ada", "bob", "cyd", "dan", "dan"):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        runs.append(paci_lab.launch(spec))  # into runs/ of the folder in which the learner is
    folders = [run.dir.path.resolve() for run in runs]
    results = [run.wait() for run in runs]
    assert len(set(folders)) == 5 and {f.parents[1].name for f in folders} == {"ada", "bob", "cyd", "dan"}
    assert {result["final_train_loss"] for result in results} == {results[0]["final_train_loss"]}
    assert all(result["updates"] == 3 for result in results) and not leftovers()


# -- Colab -------------------------------------------------------------------------------------------------------------
def colab_cell() -> str:
    (cell,) = re.findall(
        r"^## Colab\n.*?^```ipython\n(.*?)^```", (ROOT / "docs" / "classroom.md").read_text(), re.M | re.S
    )
    return cell


@pytest.mark.slow
def test_the_colab_cell_trains_in_a_plain_notebook(tmp_path, leftovers):
    """All of the cell but its installation. Colab shows widgets of these modules, and none that only JupyterLab has."""
    import nbclient
    import nbformat

    cell = colab_cell()
    code = re.sub(r"^!.*\n", "", cell, flags=re.M)
    assert len(re.findall(r"^!.*git clone.*pip install", cell, re.M)) == 1 and code.count("\n") == cell.count("\n") - 1
    more = (
        "import ipywidgets.widgets.widget as w\n"
        "result = run.wait()\n"
        "print(result['stages'], result['updates'])\n"
        "print(sorted({view._view_module for view in w._instances.values() if getattr(view, '_view_module', None)}))"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (code, more)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    client = nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown, said = (cell.outputs for cell in notebook.cells)
    assert "application/vnd.jupyter.widget-view+json" in shown[-1].data
    assert said[0].text.splitlines() == ["2 40", "['@jupyter-widgets/base', '@jupyter-widgets/controls', 'anywidget']"]
    assert [path.parent.name for path in tmp_path.rglob("result.json")] and not leftovers()
