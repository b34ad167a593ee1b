"""The commands as a person types them: real processes, exit codes, one message, files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_helpers import PATIENCE_S

import paci_lab
from paci_lab.cli import COMMANDS, main
from paci_lab.schedules import schedule_classes

ROOT = Path(__file__).parents[1]
TINY = [
    "--model",
    "femto",
    "--stages",
    "2",
    "--window",
    "2",
    "--updates",
    "3",
    "--validation-batches",
    "1",
    "--device",
    "cpu",
]


def paci_lab_command(*arguments: str, cwd: Path, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "paci_lab.cli", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        **options,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """A run made by `paci-lab train`, and what the command printed."""
    folder = tmp_path_factory.mktemp("trained")
    done = paci_lab_command("train", *TINY, "--run-dir", "run", "--target-loss", "0.1", "--json", "-", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", done


def test_train_prints_figures_and_says_how_close_a_missed_target_was(trained):
    run, done = trained
    figures = json.loads(done.stdout)
    assert figures == json.loads((run / "result.json").read_text())
    assert figures["reached"] is False
    assert f"the best validation loss was {figures['best_val_loss']:.4f}" in done.stderr
    assert f"{figures['best_val_loss'] - 0.1:.4f} above it" in done.stderr


def test_a_spec_file_repeats_the_run_and_flags_win_over_it(trained, tmp_path):
    run, _ = trained
    done = paci_lab_command("train", run / "spec.toml", "--updates", "2", "--run-dir", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again, before = paci_lab.open_run(tmp_path / "again"), paci_lab.open_run(run)
    assert again.spec.total_microbatches == 4 and before.spec.total_microbatches == 6
    # Warm-up and cosine count the tokens of the whole run, so only what comes before the first update is the same.
    assert again.dir.losses()[:2] == before.dir.losses()[:2]


def test_show_writes_a_page_and_a_perfetto_trace_also_of_a_run_without_result(trained, tmp_path):
    run, _ = trained
    killed = tmp_path / "killed"
    subprocess.run(["cp", "-r", run, killed], check=True)
    (killed / "result.json").unlink()
    done = paci_lab_command("show", run, killed, "--html", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "has no result" in done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "plotly" in page and not re.search(r"<script[^>]+src=", page)
    assert json.loads((tmp_path / "perfetto.json").read_text())["traceEvents"]


def test_compare_runs_in_turns_and_holds_against_the_best_flush(tmp_path):
    done = paci_lab_command(
        "compare",
        "1f1b:2",
        "paci:2",
        "--model",
        "femto",
        "--stages",
        "2",
        "--microbatches",
        "6",
        "--device",
        "cpu",
        "--validation-batches",
        "1",
        "--rounds",
        "2",
        "--run-dir",
        "c",
        "--json",
        "out.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["best_flush"] == "1f1b-2"
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["1f1b-2", "1f1b-2-2", "paci-2", "paci-2-2"]
    specs = {p.name: paci_lab.open_run(p).spec for p in (tmp_path / "c").iterdir()}
    assert len({tuple(spec.partition) for spec in specs.values()}) == 1
    assert specs["1f1b-2"].seed == specs["paci-2"].seed != specs["1f1b-2-2"].seed == specs["paci-2-2"].seed


def test_simulate_gives_the_published_figures(tmp_path):
    done = paci_lab_command(
        "simulate",
        "--schedule",
        "1f1b",
        "--stages",
        "4",
        "--window",
        "8",
        "--updates",
        "1",
        "--json",
        "-",
        "--perfetto",
        "trace.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["makespan_ms"] == 33
    assert figures["bubble_fraction"] == pytest.approx(3 / 11)
    assert figures["in_flight_peak"] == [4, 3, 2, 1]
    assert (tmp_path / "trace.json").exists()


def test_doctor_finds_this_machine_ready(tmp_path):
    done = paci_lab_command("doctor", "--json", "-", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert {name: entry["state"] for name, entry in found.items() if name != "GPUs"} == dict.fromkeys(
        ("python", "torch", "version guard", "ranks", "notebook widgets"), "ok"
    )


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["train", "--window", "0"], ["window = 0", "from 1"]),
        (
            ["train", "--schedule", "pacy"],
            ["schedule = pacy", "1f1b | gpipe | ", " | paci | ", "my_file.py:MySchedule"],
        ),
        (["train", "--learning-rate", "fast"], ["learning_rate = fast", "above 0"]),
        (["train", "--slack", "1", "--schedule", "gpipe"], ["slack = 1", "has no slack", "paci"]),
        (["train", "missing.toml"], ["missing.toml", "TOML"]),
        (["train", "--stages", "40", "--model", "femto"], ["stages = 40", "1 to 6"]),
        (["train", "--data", "nothing.txt"], ["nothing.txt"]),
        (["train", "--device", "tpu"], ["device = tpu", "auto | cpu | cuda"]),
        (["simulate", "--updates", "0"], ["--updates = 0"]),
        (["simulate", "--straggler", "9:2"], ["stragglers = 9", "0..7"]),
        (["compare", "paci"], ["contender = paci", "paci:8"]),
        (["compare", "1f1b:2", "--rounds", "0"], ["--rounds = 0"]),
        (["show", "nowhere"], ["nowhere", "spec.toml"]),
    ],
)
def test_wrong_input_is_one_message_exit_code_2_and_nothing_written(arguments, names, tmp_path):
    done = paci_lab_command(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith(f"paci-lab {arguments[0]}: ")
    for name in names:
        assert name in message
    assert list(tmp_path.iterdir()) == []


def test_the_demo_spares_a_folder_that_is_not_its_own(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    done = paci_lab_command("demo", "--run-dir", "thesis", cwd=tmp_path)
    assert done.returncode == 2 and "earlier demo" in done.stderr
    assert (tmp_path / "thesis" / "chapter.txt").exists()


def test_ctrl_c_ends_the_ranks_and_leaves_a_readable_run(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "paci_lab.cli", "train", *TINY, "--updates", "1000000", "--run-dir", "run"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    run = paci_lab.open_run(tmp_path / "run")
    assert len(run.trace()) > 0 and run.dir.failure()["stopped"]
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(p)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_every_command_has_help_with_an_example(tmp_path):
    overview = paci_lab_command("--help", cwd=tmp_path).stdout
    for name in COMMANDS:
        assert name in overview
        text = paci_lab_command(name, "--help", cwd=tmp_path).stdout
        assert f"example:  paci-lab {name}" in text


def test_lab_hands_its_options_to_jupyterlab(monkeypatch):
    heard = []
    monkeypatch.setattr("paci_lab.lab.open_lab", lambda options, **_: heard.extend(options))
    assert main(["lab", "--no-browser", "--port", "8890", "--", "--allow-root"]) == 0
    assert sorted(heard) == ["--allow-root", "--no-browser", "--port=8890"]


def test_a_simulation_does_not_wait_for_torch():
    code = "import sys; from paci_lab.cli import main; main(['simulate']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_schedule_is_one_file_as_contributing_says():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    code = re.search(r"```python\n(import dataclasses.*?)```", text, re.DOTALL)[1]
    exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "paci_lab.schedules.reversed_gpipe"})
    schedule = schedule_classes()["gpipe-reversed"](stages=3, microbatches=9, window=4)
    paci_lab.validate(schedule)
    trace = paci_lab.simulate(schedule)
    assert trace.bubble_fraction() == pytest.approx(schedule.ideal_bubble_fraction())
