"""The lessons: sources that can hold no output, copies that lose nothing, and every one runs from top to bottom."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import weakref
from pathlib import Path

import pytest
import torch
from engine_helpers import wait_until
from torch import nn

import paci_lab
from paci_lab import PACI, Costs, InputError, lessons, simulate
from paci_lab.classroom import recorded
from paci_lab.classroom.exercise import every_exercise
from paci_lab.lab import FOLDER, execute, lesson_sources, prepare, read_lesson

SOURCES = lesson_sources()
NAMES = [path.stem for path in SOURCES]
RECORDED = {"PACI_LAB_TRAIN": "0"}


def text_of(notebook) -> str:
    """Everything that a learner sees as text, of all outputs."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in outputs)


# -- the sources ------------------------------------------------------------------------------------------------------
def test_lessons_are_numbered_and_no_notebook_is_committed():
    assert [name[:2] for name in NAMES] == [f"{number:02}" for number in range(len(NAMES))] and len(NAMES) >= 6
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.ipynb"]
    listed = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: " + listed.stderr.strip())
    assert listed.stdout == ""


@pytest.mark.parametrize("solutions", [False, True], ids=["open", "solved"])
@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_form_of_a_lesson(source, solutions):
    cells = read_lesson(source, solutions=solutions).cells
    code = [cell.source.splitlines() for cell in cells if cell.cell_type == "code"]
    words = [len(cell.source.split()) for cell in cells if cell.cell_type == "markdown"]
    first, last = cells[0].source, cells[-1].source
    assert first.startswith(f"# {source.stem[:2]} · ")
    assert "After this lesson you can" in first and re.search(r"\*\*Time:\*\* \d+ minutes", first)
    assert any("## Summary" in cell.source for cell in cells[-2:])
    following = SOURCES[(SOURCES.index(source) + 1) % len(SOURCES)].stem
    assert f"]({following}.ipynb)" in last  # a link of the sources leads to the learner's copy
    assert max(map(len, code)) <= 16 and statistics.median(map(len, code)) <= 6
    assert statistics.median(words) <= 60
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)


def test_copy_and_solution_come_from_one_source(tmp_path):
    source = tmp_path / "00_start_here.md"
    body = "    y = x\n    # BEGIN SOLUTION\n    if y:\n        y += 1\n    # END SOLUTION\n    return y\n"
    lesson = f"```python\ndef f(x):\n{body}```\n"
    source.write_text(lesson)
    (open_,), (solved,) = read_lesson(source).cells, read_lesson(source, solutions=True).cells
    assert open_.source == "def f(x):\n    y = x\n    ...\n    return y"
    assert solved.source == "def f(x):\n    y = x\n    if y:\n        y += 1\n    return y"
    (copy,), (whole,) = prepare(tmp_path), prepare(tmp_path, solutions=True)
    assert copy.parent == tmp_path / "work" and whole.parent == tmp_path / "work" / "solutions"
    assert "y += 1" in whole.read_text() and "y += 1" not in copy.read_text()
    source.write_text(lesson.replace("    # END SOLUTION\n", ""))
    with pytest.raises(InputError, match="cell 0 = BEGIN SOLUTION"):
        read_lesson(source)


def test_links_between_lessons_lead_to_lessons():
    for source in SOURCES:
        for target in re.findall(r"\]\((?!http)([^)]+\.\w+)\)", source.read_text(encoding="utf-8")):
            assert (FOLDER / target).is_file(), f"{source.name} links to {target}"


# -- the learner's copies ---------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    shutil.copy(SOURCES[0], tmp_path)
    return tmp_path


def edit(copy: Path) -> None:
    notebook = json.loads(copy.read_text())
    notebook["cells"][1]["source"] = "my_own = 1"
    copy.write_text(json.dumps(notebook))


def test_copies_are_made_and_outputs_are_kept(folder):
    (copy,) = prepare(folder)
    notebook = json.loads(copy.read_text())
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "mine"}]
    copy.write_text(json.dumps(notebook))
    prepare(folder)
    assert "mine" in copy.read_text()
    edit(copy)
    prepare(folder)
    assert "my_own" in copy.read_text()


@pytest.mark.parametrize("changed", [True, False])
def test_a_lesson_that_changed_replaces_only_an_untouched_copy(folder, changed):
    (copy,) = prepare(folder)
    if changed:
        edit(copy)
    source = folder / SOURCES[0].name
    source.write_text(source.read_text() + "\n\nOne more sentence.\n")
    prepare(folder)
    assert "One more sentence" in copy.read_text()
    yours = copy.with_suffix(".yours.ipynb")
    assert yours.exists() == changed
    assert not changed or "my_own" in yours.read_text()


def test_a_copy_that_is_no_notebook_is_put_aside(folder):
    (copy,) = prepare(folder)
    copy.write_text("notes")
    prepare(folder)
    assert copy.with_suffix(".yours.ipynb").read_text() == "notes" and "cells" in copy.read_text()


def test_a_folder_without_lessons_is_refused(tmp_path):
    with pytest.raises(InputError, match="clone"):
        prepare(tmp_path)


# -- the helpers ------------------------------------------------------------------------------------------------------
def test_held_counts_activations_and_forgets_them():
    layer = nn.Linear(100, 50, bias=False)
    x = torch.randn(8, 100)
    with lessons.Held(layer) as held:
        output = layer(x)
        assert held.now == 8 * 100 * 4 and held.shapes == [((8, 100), torch.float32)]  # the weight is not counted
        layer(x)  # the same storage, and its graph ends at once
    assert held.now == held.peak == 8 * 100 * 4
    gone = weakref.ref(output)
    output.sum().backward()
    del output
    assert gone() is None and held.now == 0 and held.shapes == []


def test_versions_that_stashing_would_keep():
    def kept(window: int) -> list[int]:
        return lessons.versions_kept(simulate(PACI(stages=8, microbatches=96, window=window), Costs()))

    assert kept(1) == [8, 7, 6, 5, 4, 3, 2, 1]  # PipeDream: N - s
    assert kept(8) == [2] * 7 + [1]  # PipeDream-2BW: two


def test_a_recording_says_what_it_is(monkeypatch, capsys):
    monkeypatch.setenv("PACI_LAB_TRAIN", "0")
    spec = paci_lab.TrainSpec(schedule="paci", stages=4, window=4, model="femto")
    run = lessons.start("00-paci", spec)
    assert run.result()["weight_copies"] == [1, 1, 1, 1] and run.trace().source == "measured on paced devices"
    said = capsys.readouterr().out
    assert "recording of 48 micro-batches" in said and "window = 8, not 4" in said
    with pytest.raises(InputError, match="00-flush"):
        lessons.start("none", spec)


def test_recordings_are_complete_and_small():
    found = sorted(path for path in lessons.RECORDINGS.iterdir() if path.is_dir())
    assert found
    for path in found:
        run = paci_lab.open_run(path)
        assert run.dir.environment()["cpu"] and not (path / "snapshots").exists()
        assert run.dir.validation(), path.name
        assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 200_000
        if (path / "trace").is_dir():
            assert run.result()["bubble_fraction"] == pytest.approx(run.trace().bubble_fraction())


def test_starting_again_stops_the_run_before(tmp_path, monkeypatch, leftovers):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACI_LAB_TRAIN", raising=False)
    spec = paci_lab.TrainSpec(stages=2, window=2, updates=10_000, model="femto", pace_forward_ms=5, pace_backward_ms=5)
    first = lessons.start("first", spec)
    wait_until(first.dir.metrics)
    second = lessons.start("second", spec)
    try:
        assert not first.running and second.running
        assert first.dir.failure()["stopped"]
    finally:
        second.stop()
    assert not leftovers()


@pytest.mark.parametrize("restart", [True, False], ids=["restart", "shutdown"])
def test_a_kernel_that_goes_takes_its_ranks_along(tmp_path, leftovers, restart):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(tmp_path))
    try:
        reply = client.execute_interactive(
            "import paci_lab\n"
            "spec = paci_lab.TrainSpec(stages=2, window=2, updates=10_000, model='femto', pace_forward_ms=5)\n"
            "run = paci_lab.launch(spec)",
            timeout=120,
            output_hook=lambda message: None,
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        wait_until(lambda: len(leftovers()) >= 3)  # the agent and two ranks
        if restart:
            manager.restart_kernel(now=True)
        else:
            manager.shutdown_kernel(now=True)
        wait_until(lambda: not leftovers())
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


# -- from top to bottom -----------------------------------------------------------------------------------------------
def test_lesson_00_runs_from_its_recordings(tmp_path):
    notebook = execute(SOURCES[0], tmp_path, environment=RECORDED)
    said = text_of(notebook)
    assert said.count("Training is switched off") == 2 and "largest version gap by stage: [1, 1, 1, 0]" in said
    assert "The bubble of a run is solved." in said
    assert [path.name for path in tmp_path.iterdir()] == [recorded.FILE]  # nothing was trained


def test_the_learners_copy_runs_from_top_to_bottom_as_it_is(tmp_path):
    said = text_of(execute(SOURCES[0], tmp_path, environment=RECORDED, solutions=False))
    assert "bubble is not written yet." in said and "You had made no guess" in said
    assert not list(tmp_path.iterdir())


SAYS = {
    "00": ["largest version gap by stage: [1, 1, 1, 0]"],
    "01": ["8.00 times too long", "[128, 128, 128, 128, 128, 128, 8, 8]"],
    "02": ["m= 8  formula 0.273  simulated 0.273", "1F1B   bubble 0.273, held by stage [4, 3, 2, 1]", "0.467"],
    "03": [
        "modified by an inplace operation",
        "stage: [3, 2, 1, 0]",
        "window  1: [8, 7, 6, 5, 4, 3, 2, 1]",
        "as with the new weights: True",
        "as with the old weights: False",
    ],
    "04": ["a= 4: bound 2, largest 2, stage 0: {1: '25%', 2: '75%'}", "1.69× the best flush", "AdamW: PACI needs"],
    "05": [
        "8.45 MB held",
        "old weights: True",
        "1 + 0.001 = 1.0",
        "uses the new weights: True",
        "bf16      Linear: current    LayerNorm: current",
        "autocast  Linear: forward's  LayerNorm: current",
        "[1.0, 1.0, 1.0, 1.0]",
    ],
}
"""What each lesson must print when it is true: facts, none of them a timing."""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_lesson_trains_from_top_to_bottom_with_its_exercises_solved(source, tmp_path):
    """Every lesson runs from its recordings too, with its exercises open, when test_book.py makes the book."""
    said = text_of(execute(source, tmp_path, environment={"PACI_LAB_TRAIN": "1"}, cell_timeout_s=1200))
    for fact in SAYS.get(source.stem[:2], []):
        assert fact in said
    exercises = [exercise for exercise in every_exercise() if exercise.lesson == source.stem[:2]]
    assert {name for name, done in recorded.done(tmp_path).items() if done.passed} == {e.id for e in exercises}
    assert said.count(" is solved.") == len(exercises)
