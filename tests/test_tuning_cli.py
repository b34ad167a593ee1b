"""`paci-tune`: every command once, its exit codes, and wrong input as one message."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tuning.demo
from paci_lab import TrainSpec
from tuning import Settings, Space
from tuning.cli import main
from tuning.commands import COMMANDS

LAUNCHER = f"{Path(__file__).with_name('tuning_landscape.py')}:Landscape"
FLAGS = [
    "--stages",
    "4",
    "--window",
    "8",
    "--microbatches",
    "800",
    "--model",
    "femto",
    "--evaluate-every",
    "16",
    "--device",
    "cpu",
    "--launcher",
    LAUNCHER,
    "--windows",
    "2,4,8",
    "--flush-windows",
    "8,16",
    "--budget",
    "500s",
    "--seeds",
    "2",
    "--confirm-seeds",
    "4",
]


def said(capsys) -> str:
    captured = capsys.readouterr()
    return captured.err + captured.out


def test_the_way_of_a_study_through_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *FLAGS, "--study", "s", "--json", "found.json"]) == 0
    found = json.loads(Path("found.json").read_text())
    assert found["point"] == "paci-4" and "Take paci-4" in said(capsys)
    assert main(["status", "s", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["best"]["paci"]["point"] == "paci-4" and "paci-lab show" in captured.err
    assert main(["confirm", "s"]) == 0
    Path("s/report.html").unlink()
    capsys.readouterr()
    assert main(["report", "s"]) == 0 and Path("s/report.html").exists()
    assert "optuna-dashboard s/study.journal" in said(capsys)
    assert main(["apply", "s"]) == 2 and "measured" in said(capsys)
    assert main(["apply", "s", "--machine-of", "s/baseline", "--out", "mine.toml"]) == 0
    assert TrainSpec.load("mine.toml").window == 4
    assert main(["run", *FLAGS, "--study", "s2", "--warm-start", "s"]) == 0
    assert "Warm start from s" in said(capsys)


def test_a_front_is_printed_and_a_point_of_it_applied(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *FLAGS, "--study", "s", "--pareto", "--memory", "1000000", "--json", "found.json"]) == 0
    assert "the front of time and memory" in said(capsys)
    assert [spot["point"] for spot in json.loads(Path("found.json").read_text())["front"]] == ["paci-4"]
    assert main(["apply", "s", "--machine-of", "s/baseline", "--pick", "least-memory", "--out", "mine.toml"]) == 0
    assert TrainSpec.load("mine.toml").window == 4
    capsys.readouterr()
    assert main(["apply", "s", "--machine-of", "s/baseline", "--pick", "paci-9", "--out", "other.toml"]) == 2
    assert "--pick = paci-9" in said(capsys) and not Path("other.toml").exists()


def test_the_demo_replaces_its_own_study_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = TrainSpec(stages=4, window=8, microbatches=800, model="femto", device="cpu", evaluate_every=16)
    space = Space(windows=(4,), flush_windows=(8,))
    asked = Settings(base=base, space=space, launcher=LAUNCHER, budget_s=500.0, seeds=1, confirm_seeds=4)
    monkeypatch.setattr(tuning.demo, "SETTINGS", asked)
    for _ in range(2):
        assert main(["demo"]) == 0
        text = said(capsys)
        assert "Take paci-4" in text and "4 fresh seeds" in text and "runs/demo/study/report.html" in text
    assert len(list(Path("runs/demo/study/confirm").iterdir())) == 8
    asked.replace(seeds=2).save(Path("runs/demo/study/study.toml"))  # now it is somebody's own
    assert main(["demo"]) == 2
    assert "name another folder" in said(capsys) and Path("runs/demo/study/report.html").exists()


def test_a_plan_tells_gap_bubble_memory_and_cost_and_starts_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            [
                "plan",
                "--stages",
                "8",
                "--window",
                "8",
                "--pace-forward-ms",
                "4",
                "--pace-backward-ms",
                "8",
                "--json",
                "plan.json",
            ]
        )
        == 0
    )
    text, figures = said(capsys), json.loads(Path("plan.json").read_text())
    assert "smallest window with version gap at most 1" in text and "device-hours. Nothing was started" in text.replace(
        "\n", " "
    )
    assert figures["trials"] > 0 and os.listdir() == ["plan.json"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "nowhere"], "study.toml"),
        (["resume", "nowhere"], "study.toml"),
        (["run", "--stages", "1"], "stages = 1"),
        (["run", "--budget", "soon"], "duration = soon"),
        (["run", "--windows", ","], "--windows"),
        (["run", "--windows", "9999"], "windows = 9999"),
        (["run", "--launcher", "pigeons"], "launcher = pigeons"),
        (["run", "--launcher-option", "gpus"], "NAME=VALUE"),
        (["run", "--memory", "lots"], "memory = lots"),
        (["run", "--sampler", "random"], "sampler = random"),
        (["run", "--optimizer", "3", "--windows", "a..b"], "optimizer"),
        (["run", "--schedule", "none"], "schedule = none"),
        (["run", "--warm-start", "nowhere"], "study.toml"),
        (["plan", "no.toml"], "no.toml"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    text = said(capsys)
    assert words in text and text.startswith(f"paci-tune {arguments[0]}: ") and text.count("\n") == 1
    assert not os.listdir(tmp_path)


def test_nothing_that_may_be_recommended_is_exit_code_1(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [flag if flag != "2,4,8" else "4" for flag in FLAGS]
    assert main(["run", *flags, "--study", "s", "--memory", "1"]) == 1
    assert "nothing to recommend" in said(capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_message(tmp_path, capsys):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert main(["run", *FLAGS, "--study", str(tmp_path / "locked" / "s")]) == 2
    assert "can be written" in said(capsys)


def test_a_study_below_a_file_is_one_message(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["run", *FLAGS, "--study", str(tmp_path / "file" / "s")]) == 2
    assert "can be written" in said(capsys)


def test_every_command_has_help_with_an_example(capsys):
    for name, (_, example, _, _) in COMMANDS.items():
        with pytest.raises(SystemExit) as exit_:
            main([name, "--help"])
        assert exit_.value.code == 0
        text = said(capsys)
        assert example in text and example.startswith(f"paci-tune {name}")


def test_examples_in_the_help_parse(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    TrainSpec().save("spec.toml")
    assert main(COMMANDS["plan"][1].split()[1:]) == 0
    for name in ("run", "status", "resume", "confirm", "report", "apply"):
        assert main([*COMMANDS[name][1].split()[1:], *(["--launcher", "pigeons"] if name == "run" else [])]) == 2
