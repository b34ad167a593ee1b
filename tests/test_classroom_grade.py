"""What a learner hands in and a teacher grades: nothing in a file is believed, and no file stops the others."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
import rich.console

from paci_lab import InputError
from paci_lab.classroom import client, progress, recorded
from paci_lab.classroom.completion import SCHEMA
from paci_lab.classroom.exercise import every_exercise
from paci_lab.cli import main

RIGHT = "def bubble(work, makespan):\n    return 1 - sum(work) / (len(work) * makespan)\n"
WRONG = "def bubble(work, makespan):\n    return sum(work) / makespan\n"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def server():
    yield
    client.stop()


def hand_in(folder, learner, **answers):
    """A collected file, written by hand: answers are (claimed, source)."""
    exercises = {
        name.replace("_", "-"): {"passed": claimed, "source": source, "name": "bubble"}
        for name, (claimed, source) in answers.items()
    }
    document = {"schema": SCHEMA, "learner": learner, "exercises": exercises, "predictions": {}}
    (folder / f"completion-{learner}.json").write_text(json.dumps(document))


def test_a_page_shows_and_a_file_holds_what_was_done(tmp_path, capsys):
    recorded.keep("00-bubble", True, RIGHT, "bubble")
    recorded.keep("02-order", False, "def order(): pass", "order")
    recorded.keep_guess("00-bubble", 20.0, 27.3)
    page = progress()._repr_html_()
    assert page.count("✓ solved") == 1 and page.count("✗ not yet") == 1 and "1 of " in page and "27.3" in page
    path = progress.save(" Ada <b>/../Lovelace ")
    assert path.parent == tmp_path and path.name == "completion-Ada_b_.._Lovelace.json"
    document = json.loads(path.read_text())
    assert document["learner"] == "Ada <b>/../Lovelace" and document["exercises"]["00-bubble"]["source"] == RIGHT
    written = path.with_suffix(".html").read_text()
    assert "Ada &lt;b&gt;" in written and "http" not in written
    for name in ("", "  ", 3, "x" * 101, "a\x1b[31m"):
        with pytest.raises(InputError, match="learner"):
            progress.save(name)


def test_a_class_is_graded_in_one_table(tmp_path, capsys):
    folder = tmp_path / "collected"
    (folder / "deeper").mkdir(parents=True)
    hand_in(folder, "ada", **{"00_bubble": (True, RIGHT), "02_enough": (False, "def bubble(*a): return 1\n")})
    hand_in(folder / "deeper", "bob", **{"00_bubble": (True, WRONG)})
    hand_in(folder, "eve", **{"00_bubble": (False, RIGHT)})
    assert main(["grade", str(folder), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    found = {row["learner"]: row for row in json.loads(out)["learners"]}
    assert found["ada"]["exercises"]["00-bubble"]["state"] == "passed"
    assert found["ada"]["exercises"]["02-enough"]["state"] == "failed"
    assert found["ada"]["exercises"]["01-loop"]["state"] == "missing" and found["ada"]["solved"] == 1
    assert found["bob"]["exercises"]["00-bubble"]["state"] == "claimed" and found["bob"]["file"].startswith("deeper")
    assert found["eve"]["exercises"]["00-bubble"]["state"] == "passed"
    assert "bob, 00-bubble: With one stage" in err


def test_the_table_of_a_class_fits_into_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "paci_lab.commands.common.console", lambda: rich.console.Console(stderr=True, highlight=False, width=80)
    )
    hand_in(tmp_path, "Ada Augusta Lovelace", **{"00_bubble": (True, RIGHT), "02_order": (False, "def f(:")})
    hand_in(tmp_path, "bob", **{"00_bubble": (True, WRONG)})
    assert main(["grade", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().err.splitlines()]
    rest = ["·", "··", "·", "·", "··", "·", "·" * 8]
    assert ["Ada", "Augusta", "Lovelace", f"1/{len(every_exercise())}", "✓", "····", "·✗", *rest] in lines
    assert ["bob", f"0/{len(every_exercise())}", "!", "····", "··", *rest] in lines


def test_hostile_and_broken_files_get_a_sentence(tmp_path, capsys, monkeypatch):
    quick = [dataclasses.replace(exercise, seconds=3) for exercise in every_exercise()]
    monkeypatch.setattr("paci_lab.classroom.grade.every_exercise", lambda: quick)
    folder = tmp_path / "collected"
    folder.mkdir()
    hand_in(folder, "loops", **{"00_bubble": (True, "import os\nos.fork()\nwhile True: pass\n")})
    hand_in(folder, "lies", **{"00_bubble": (True, "import os\nfor n in range(3, 30):\n  try: os.write(n, b'{\"end\": true}\\n')\n  except OSError: pass\nos._exit(0)\n")})  # fmt: skip  # noqa: E501
    hand_in(folder, "kills", **{"00_bubble": (True, "import os\nos.kill(os.getppid(), 9)\nos.kill(os.getpid(), 19)\n")})
    hand_in(folder, "deep", **{"00_bubble": (True, "-" * 45_000 + "1")})
    hand_in(folder, "[red]x[", **{"00_bubble": (True, "\ud800")})
    million = {f"{n}": {"passed": True, "source": "", "name": ""} for n in range(40_000)}
    files = {
        "million": {"schema": SCHEMA, "learner": "m\x1b[31m\nn", "exercises": million},
        "wrong": {"schema": SCHEMA, "learner": "w", "exercises": {"00-bubble": [1], "01-loop": {"passed": 3}}},
        "long": {
            "schema": SCHEMA,
            "learner": "l",
            "exercises": {"00-bubble": {"passed": True, "source": "#" * 60_000, "name": "x"}},
        },  # fmt: skip  # noqa: E501
        "other": {"learner": "x"},
        "list": [1],
    }
    for name, document in files.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "text.json").write_text("hello")
    (folder / "nested.json").write_text("[" * 200_000)
    (folder / "large.json").write_bytes(b" " * (5 << 20))
    (folder / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (folder / "folder.json").mkdir()
    os.symlink("/etc/hostname", folder / "link.json")
    os.mkfifo(folder / "pipe.json")
    assert main(["grade", str(folder), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    states = {row["file"]: row["exercises"]["00-bubble"] for row in found["learners"]}
    assert states["completion-loops.json"]["state"] == "claimed"
    assert "was stopped after" in states["completion-loops.json"]["sentence"]
    assert states["completion-lies.json"]["state"] == states["completion-deep.json"]["state"] == "claimed"
    assert states["completion-kills.json"]["state"] == "claimed"
    assert "ended the process that checks it" in states["completion-kills.json"]["sentence"]
    assert states["million.json"]["state"] == "missing" and states["wrong.json"]["state"] == "failed"
    assert states["long.json"]["state"] == "failed" and "\x1b" not in err + out
    left_out = {row["file"] for row in found["left_out"]}
    assert all("Ask for it again, or take it out" in row["why"] for row in found["left_out"])
    names = ("other", "list", "text", "nested", "large", "bytes", "folder", "link", "pipe")
    assert left_out == {f"{name}.json" for name in names}


def test_a_folder_without_files_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["grade", str(tmp_path / "empty")]) == 2 and main(["grade", str(tmp_path / "none")]) == 2
    assert "progress.save" in capsys.readouterr().err
