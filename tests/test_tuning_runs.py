"""The tuner over real ranks: a whole study, and what is killed, hangs or runs out of memory on the way."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from engine_helpers import PATIENCE_S, kill, pid_of, processes_of, tiny, wait_until

import tuning
from tuning.locks import Presence
from tuning.recommend import apply

WORK = {
    "updates": None,
    "microbatches": 60,
    "stages": 2,
    "window": 3,
    "evaluate_every": 6,
    "learning_rate": 5e-3,
    "learning_rate_schedule": "constant",
    "partition": [3, 3],
    "pace_forward_ms": 10.0,
    "pace_backward_ms": 10.0,
}


def small(folder: Path, *, base: dict | None = None, **changes) -> tuning.Study:
    values = {
        "space": tuning.Space(windows=(2,), flush_windows=(3,)),
        "seeds": 1,
        "confirm_seeds": 1,
        **changes,
    }
    return uncapped(folder, tuning.Settings(base=tiny(**{**WORK, **(base or {})}), **values))


def uncapped(folder: Path, settings: tuning.Settings) -> tuning.Study:
    """A study with its baseline, whose trials are never stopped for being slow: a machine that stalls makes them so."""
    study = tuning.Study.create(folder, dataclasses.replace(settings, slack=1e4, budget_s=1e6))
    with Presence(study.folder, exclusive=False):
        frozen = study.freeze(study.launcher(), lambda sentence, trial: None)
    content = json.dumps({**dataclasses.asdict(frozen), "time_cap_s": 3600.0})
    (folder / "frozen.json").write_text(content, encoding="utf-8")
    return study


def ended(study: tuning.Study, *, side: str = "paci") -> list:
    return [t for t in study.trials() if t.side == side and t.phase == "search"]


def test_a_real_study_recommends_and_its_spec_trains(tmp_path):
    study = small(tmp_path / "s")
    found = study.run()
    assert found["point"] in ("paci-2", "flush-3") and found["confirmed"] and found["ratio"]["pairs"] == 1
    trial = ended(study)[0]
    result = study_run(trial).result()
    assert trial.value == result["time_to_target_s"] and result["target_loss"] == study.frozen.target_loss
    assert trial.figures["version_gap_max"] == result["version_gap_max"] and trial.wall_s > trial.training_s
    assert study_run(trial).spec.partition == [3, 3]
    spec = apply(study, tmp_path / "spec.toml")
    assert spec.target_loss == study.frozen.target_loss
    assert "What the two did" in (tmp_path / "s" / "report.html").read_text()


def study_run(trial):
    import paci_lab

    return paci_lab.open_run(trial.path)


def test_the_controller_does_without_torch(tmp_path):
    code = (
        f"import sys, tuning\nstudy = tuning.Study.open({str(small(tmp_path / 's').folder)!r})\n"
        "study.run(confirm=False)\nassert 'torch' not in sys.modules, 'torch was imported'"
    )
    # The trial inherits nothing that could import it: run as a fresh process, as paci-tune is.
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 4])
def test_kill_9_of_the_controller_leaves_no_rank_and_resume_finishes(tmp_path, stages):
    split = {2: [3, 3], 4: [1, 2, 2, 1]}[stages]
    study = small(tmp_path / "s", base={"stages": stages, "partition": split, "microbatches": 300})
    controller = subprocess.Popen(
        [sys.executable, "-m", "tuning.cli", "resume", str(study.folder)], stderr=subprocess.DEVNULL
    )
    run_dir = tmp_path / "s" / "trials" / "paci-0000"
    wait_until(
        lambda: (run_dir / "metrics.jsonl").exists() and (run_dir / "metrics.jsonl").stat().st_size,
        what="the first trial",
    )
    assert len(processes_of(run_dir)) >= stages
    controller.kill()
    controller.wait()
    wait_until(lambda: not processes_of(run_dir), what="the end of its ranks")
    assert [t.status for t in ended(study)] == ["lost"]
    kept = (tmp_path / "s" / "baseline" / "result.json").stat().st_mtime_ns
    assert study.run()["point"] is not None
    assert (tmp_path / "s" / "baseline" / "result.json").stat().st_mtime_ns == kept
    lost, again = ended(study)
    assert (lost.status, lost.seed, again.seed) == ("lost", 0, 0) and again.status == "reached"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, "failed"), (signal.SIGSTOP, "hung")])
def test_a_rank_that_is_killed_or_stops_is_one_bad_trial_and_the_next_one_works(tmp_path, number, status):
    study = small(tmp_path / "s", base={"microbatches": 300}, hang_s=30.0)
    run_dir = tmp_path / "s" / "trials" / "paci-0000"
    strikes: list[threading.Thread] = []

    def strike(sentence, trial):
        """Once the first trial of PACI trains, strike one of its ranks."""
        if trial is not None and trial.value is None and trial.side == "paci" and not strikes:
            strikes.append(threading.Thread(target=strike_rank, args=(run_dir, number)))
            strikes[0].start()

    found = study.run(progress=strike)
    strikes[0].join(PATIENCE_S)
    first, second = ended(study)
    assert first.status == status and first.value == 2 * study.frozen.time_cap_s
    assert second.status == "reached"
    assert found["point"] is not None
    assert not processes_of(Path(first.path))


@pytest.mark.slow
def test_out_of_memory_is_told_from_other_failures_and_the_search_goes_on(tmp_path):
    optimizer = tmp_path / "hungry.py"
    optimizer.write_text(
        "import torch\nclass Hungry(torch.optim.SGD):\n    def step(self, closure=None):\n"
        "        torch.empty(2**60, dtype=torch.uint8)\n"
    )
    study = small(
        tmp_path / "s",
        space=tuning.Space(windows=(2,), flush_windows=(3,), optimizers=("nadam", f"{optimizer}:Hungry")),
    )
    found = study.run()
    statuses = {t.params["optimizer"].rpartition(":")[2]: t.status for t in ended(study)}
    assert statuses.keys() == {"nadam", "Hungry"} and statuses["Hungry"] == "oom" and statuses["nadam"] == "reached"
    assert "Hungry" not in found["point"]


@pytest.mark.slow
def test_ctrl_c_stops_the_ranks_and_says_how_to_go_on(tmp_path):
    study = small(tmp_path / "s", base={"pace_forward_ms": 20.0, "pace_backward_ms": 20.0})
    controller = subprocess.Popen(
        [sys.executable, "-m", "tuning.cli", "resume", str(study.folder)], stderr=subprocess.PIPE, text=True
    )
    run_dir = tmp_path / "s" / "trials" / "paci-0000"
    wait_until(lambda: (run_dir / "metrics.jsonl").exists(), what="the first trial")
    controller.send_signal(signal.SIGINT)
    said = controller.communicate(timeout=PATIENCE_S)[1]
    assert controller.returncode == 130 and "paci-tune resume" in said and "Traceback" not in said
    assert not processes_of(run_dir)


def strike_rank(run_dir: Path, number: int) -> None:
    """Send a signal to rank 1 of a run once it trains."""
    wait_until(
        lambda: (run_dir / "metrics.jsonl").exists() and (run_dir / "metrics.jsonl").stat().st_size, what="training"
    )
    kill([pid_of(run_dir, "rank1")], number)
