"""Search, confirmation, recommendation and storage, over a landscape whose best point is known."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from engine_helpers import PATIENCE_S, wait_until

import tuning
from paci_lab import InputError, TrainSpec
from tuning.confirm import FRESH
from tuning.race import Seen, contenders, front, next_point
from tuning.recommend import apply
from tuning.search import Search, rebuild
from tuning.side import point_key
from tuning.space import Space
from tuning.stats import interval_of_median, log_ratio
from tuning.storage import open_side, open_storage, seen_trials
from tuning.trial import memory_so_far, read_trials
from tuning.warm import warm_start

LAUNCHER = f"{Path(__file__).with_name('tuning_landscape.py')}:Landscape"
BASE = TrainSpec(stages=4, window=8, microbatches=800, model="femto", device="cpu", evaluate_every=16)
SPACE = tuning.Space(windows=(1, 2, 4, 8, 16), flush_windows=(4, 8, 16))


def settings(**changes) -> tuning.Settings:
    values = {"base": BASE, "space": SPACE, "budget_s": 500.0, "launcher": LAUNCHER, **changes}
    return tuning.Settings(**values)


def study(folder: Path, **changes) -> tuning.Study:
    return tuning.Study.create(folder, settings(**changes))


def of(trials, side: str, window: int, phase: str = "search"):
    return [t for t in trials if (t.side, t.params["window"], t.phase) == (side, window, phase)]


# -- the whole way ----------------------------------------------------------------------------------------------------
def test_a_study_finds_the_best_window_confirms_it_and_says_so(tmp_path):
    made = study(tmp_path / "s")
    found, trials = made.run(), made.trials()
    assert found["point"] == "paci-4" and found["significant"] and found["confirmed"]
    assert found["ratio"]["low"] < 1.6 < found["ratio"]["high"] * 1.05 and found["ratio"]["pairs"] == 5
    assert "paci-4" in found["sentence"] and "5 fresh seeds" in found["sentence"]
    # every point of both sides once, the baseline standing for its own
    assert {t.params["window"] for t in trials if t.side == "paci" and t.phase == "search"} == {1, 2, 4, 8, 16}
    assert {t.params["window"] for t in trials if t.side == "flush" and t.seed == 0} == {4, 8, 16}
    assert not of(trials, "flush", 8)[0].seed == 0
    # the winner had its seeds, and the far ones were stopped early
    assert sorted(t.seed for t in of(trials, "paci", 4)) == [0, 1, 2]
    assert [t.status for t in of(trials, "paci", 1)] == ["pruned"]
    final = [t for t in trials if t.phase == "final"]
    assert sorted({t.seed for t in final}) == [FRESH + n for n in range(5)] and len(final) == 10
    assert all(
        t.value is not None and t.value > made.frozen.time_cap_s
        for t in trials
        if t.status in ("pruned", "capped", "missed")
    )
    for name in ("report.html", "trials.csv", "recommended.toml"):
        assert (tmp_path / "s" / name).stat().st_size > 100


def test_trials_say_why_their_window_was_tried(tmp_path):
    made = study(tmp_path / "s", space=tuning.Space(), seeds=1, confirm_seeds=1)
    made.run(confirm=False)
    reasons = {t.params["window"]: t.reason for t in made.trials() if t.side == "paci"}
    assert (
        reasons[3] == "smallest window with version gap at most 1"
        and reasons[2] == "smallest window with version gap at most 2"
    )


def test_the_search_of_flush_is_not_cut_short_by_a_faster_paci(tmp_path):
    made = study(tmp_path / "s", launcher_options={"advantage": 4.0})
    made.run(confirm=False)
    assert {t.status for t in made.trials() if t.side == "flush" and t.params["window"] in (8, 4)} == {"reached"}


def test_no_difference_is_said_in_words_and_the_smaller_gap_is_taken(tmp_path):
    found = study(
        tmp_path / "s",
        launcher_options={"advantage": 1.0, "noise": 0.05},
        space=tuning.Space(windows=(2, 4), flush_windows=(8, 16)),
    ).run()
    assert not found["significant"] and found["confirmed"]
    assert found["sentence"].startswith("No significant difference between") and "take flush-8" in found["sentence"]
    assert found["point"] == "flush-8" and found["spec"]["schedule"] == "1f1b"


def test_fresh_seeds_may_overturn_the_search(tmp_path):
    made = study(tmp_path / "s")
    made.run()
    for trial in made.trials():
        if trial.phase == "final" and trial.side == "paci":
            dataclasses.replace(trial, value=trial.value * 3).save(Path(trial.path))
    found = made.recommendation()
    assert found["point"] == found["winner"]["label"] == "flush-8" and found["rival"]["label"] == "paci-4"
    assert found["significant"] and found["ratio"]["low"] > 1
    assert found["sentence"].startswith("Take flush-8") and "search alone would have taken paci-4" in found["sentence"]


def test_a_winner_that_misses_with_every_fresh_seed_is_not_taken(tmp_path):
    made = study(tmp_path / "s", seeds=1, confirm_seeds=2)
    made.run()
    for trial in made.trials():
        if trial.phase == "final" and trial.side == "paci":
            dataclasses.replace(trial, status="missed", value=99.0, constraints={"target": 0.1}).save(Path(trial.path))
    found = made.recommendation()
    assert found["point"] == "flush-8" and found["ratio"] is None and found["confirmed"]
    assert "paci-4 missed the target with every one of its 2 fresh seeds" in found["sentence"]
    assert "search alone would have taken paci-4" in found["sentence"]


def test_a_best_window_at_the_edge_of_its_list_is_pointed_out(tmp_path):
    found = study(
        tmp_path / "s", space=tuning.Space(windows=(2, 4), flush_windows=(4, 8, 16)), seeds=1, confirm_seeds=4
    ).run()
    assert found["sentence"].endswith(
        "paci-4 has the widest window that was tried on its side: try wider ones as well."
    )
    assert "flush-8 has" not in found["sentence"]


def test_the_budget_keeps_room_for_the_confirmation(tmp_path):
    made, said = study(tmp_path / "s", budget_s=130.0), []
    made.run(progress=lambda sentence, trial: said.append(sentence))
    assert any(s.startswith("final") for s in said)
    made.set_budget(1e-6)
    for path in (made.folder / "confirm").glob("*seed1002"):
        path.rename(made.folder / path.name)
    said.clear()
    made.run(progress=lambda sentence, trial: said.append(sentence))
    assert [s.split(":")[0] for s in said] == ["search ends", "confirmation ends after 2 of 5 rounds"]


def test_a_range_is_sampled_from_theorys_windows_on_and_repeats_become_seeds(tmp_path, monkeypatch):
    made = study(
        tmp_path / "s",
        space=tuning.Space.from_dict({"windows": "2..32", "flush_windows": [8], "learning_rate_scales": "0.5..2"}),
        seeds=2,
    )
    trials = []

    def stop_after_some(sentence, trial):
        if trial is not None and trial.value is not None:
            trials.append(trial)
            if len([t for t in trials if t.side == "paci"]) == 12:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(progress=stop_after_some)
    paci = [t for t in trials if t.side == "paci"]
    assert [t.params["window"] for t in paci[:3]] == [6, 3, 2]  # theory's for four stages, widest first
    keys = [point_key(t.params) for t in paci]
    assert len(set(keys)) < len(keys)  # a contender has had a second seed
    for key in set(keys):
        assert [t.seed for t, k in zip(paci, keys, strict=True) if k == key] == list(range(keys.count(key)))


# -- trials that go wrong ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fault", "status"), [("oom", "oom"), ("fail", "failed"), ("hang", "hung")])
def test_a_failure_is_finite_infeasible_never_recommended_and_the_next_trial_runs(tmp_path, fault, status):
    made = study(tmp_path / "s", launcher_options={"faults": {"paci-4": fault}}, hang_s=0.3, seeds=2, confirm_seeds=1)
    found, trials = made.run(), made.trials()
    failed = of(trials, "paci", 4)
    assert {t.status for t in failed} == {status} and all(t.constraints["target"] > 0 for t in failed)
    assert len(failed) == (1 if fault == "oom" else 2)  # what may have been chance gets a second chance
    assert found["point"] in ("paci-2", "paci-8")
    stored = seen_trials(open_side(open_storage(made.folder, None), made.name, made.sides["paci"], made.settings))
    assert all(
        t.state == "COMPLETE" and t.value == 2 * made.frozen.time_cap_s and not t.feasible
        for t in stored
        if t.params["window"] == 4
    )
    assert max(t.number for t in trials if t.side == "paci" and t.phase == "search") > failed[0].number


def test_one_failure_by_chance_does_not_cost_the_best_point_its_place(tmp_path):
    found = study(tmp_path / "s", launcher_options={"faults": {"paci-4": "fail-once"}}).run()
    assert found["point"] == "paci-4"


def test_a_point_over_the_memory_limit_is_not_recommended(tmp_path):
    made = study(tmp_path / "s", memory=10_000, launcher_options={"memory": {"paci-4": 4000}}, seeds=2)
    found = made.run()
    over = of(made.trials(), "paci", 4)[0]
    assert over.status == "reached" and over.constraints["memory"] == pytest.approx(0.6) and not over.feasible
    assert found["point"] in ("paci-2", "paci-8")


# -- time and memory --------------------------------------------------------------------------------------------------
LIGHT = {"paci-16": 600, "paci-8": 800, "flush-16": 700, "paci-1": 995}


def test_pareto_keeps_the_slow_point_with_little_memory_and_names_both_ends(tmp_path):
    made = study(
        tmp_path / "s", pareto=True, launcher_options={"memory": LIGHT, "slope": 0.6}, seeds=2, confirm_seeds=4
    )
    found, trials = made.run(), made.trials()
    assert [spot["point"] for spot in found["front"]] == ["paci-4", "paci-8", "paci-16"]
    assert [spot["memory_bytes"] for spot in found["front"]] == [4000, 3200, 2400]
    assert found["point"] == "paci-4"
    assert "paci-4 is the fastest" in found["sentence"] and "paci-16 the one with least memory" in found["sentence"]
    # all of the front have had the shared seeds, and the one with least memory the fresh ones as well
    for window in (4, 8, 16):
        assert {t.seed for t in trials if t.side == "paci" and t.params["window"] == window} >= {0, 1}
    assert {t.seed for t in trials if t.phase == "final" and t.params["window"] == 16} == {FRESH + n for n in range(4)}
    # half a per cent less memory than the best is no reason to let a slow point go on
    assert {t.status for t in of(trials, "paci", 1)} == {"pruned"}
    page = (made.folder / "report.html").read_text()
    assert "Time against memory" in page and "The front of time and memory" in page
    assert (made.folder / "recommended.toml").read_text().count("[[front]]") == 3


def test_without_pareto_the_slow_point_with_little_memory_is_stopped(tmp_path):
    made = study(tmp_path / "s", launcher_options={"memory": LIGHT, "slope": 0.6}, seeds=1, confirm_seeds=1)
    found = made.run()
    assert {t.status for t in of(made.trials(), "paci", 16)} == {"pruned"} and "front" not in found
    with pytest.raises(InputError) as refusal:
        apply(made, tmp_path / "spec.toml", run=made.folder / "baseline", pick="least-memory")
    assert refusal.value.what == "--pick" and "--pareto" in refusal.value.fix


def test_apply_takes_the_point_of_the_front_that_is_named(tmp_path):
    made = study(
        tmp_path / "s", pareto=True, launcher_options={"memory": LIGHT, "slope": 0.6}, seeds=1, confirm_seeds=1
    )
    made.run()
    windows = {}
    for pick in (None, "fastest", "least-memory", "paci-8"):
        apply(made, tmp_path / "spec.toml", run=made.folder / "baseline", pick=pick)
        windows[pick] = TrainSpec.load(tmp_path / "spec.toml").window
    assert windows == {None: 4, "fastest": 4, "least-memory": 16, "paci-8": 8}
    with pytest.raises(InputError) as refusal:
        apply(made, tmp_path / "other.toml", run=made.folder / "baseline", pick="paci-2")
    assert "fastest, least-memory, paci-4" in refusal.value.allowed and not (tmp_path / "other.toml").exists()


def test_the_front_survives_a_rebuild_and_a_memory_limit_cuts_it(tmp_path):
    made = study(tmp_path / "s", pareto=True, memory=3300, launcher_options={"memory": LIGHT, "slope": 0.6}, seeds=1)
    found = made.run(confirm=False)
    assert [spot["point"] for spot in found["front"]] == ["paci-8", "paci-16"] and found["point"] == "paci-8"
    rebuild(made)
    assert made.run(confirm=False) == found


@pytest.mark.parametrize(("sampler", "pareto"), [("tpe", True), ("gp", True), ("gp", False)])
def test_a_range_is_sampled_for_time_alone_or_for_memory_too(tmp_path, sampler, pareto):
    space = tuning.Space.from_dict({"windows": "2..32", "flush_windows": [8], "learning_rate_scales": "0.5..2"})
    asked = {"sampler": sampler, "pareto": pareto, "launcher_options": {"memory": LIGHT}}
    made, done = study(tmp_path / "s", space=space, seeds=1, **asked), []

    def stop_after_some(sentence, trial):
        if trial is not None and trial.value is not None and trial.side == "paci":
            done.append(point_key(trial.params))
            if len(done) == 8:  # the model has proposed some by then
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(progress=stop_after_some, confirm=False)
    assert len(set(done)) > 4  # more than theory's own
    opened = open_side(open_storage(made.folder, None), made.name, made.sides["paci"], made.settings)
    assert isinstance(opened.sampler, {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[sampler])
    assert all(t.memory_bytes > 0 for t in seen_trials(opened) if t.state == "COMPLETE")


def test_a_front_leaves_out_what_is_beaten_in_both_and_equal_memory():
    spots = [(1.0, 100.0), (2.0, 100.0), (3.0, 99.5), (4.0, 80.0), (5.0, 90.0), (6.0, 10.0)]
    assert front(reversed(spots), lambda spot: spot) == [(1.0, 100.0), (4.0, 80.0), (6.0, 10.0)]


def test_memory_so_far_reads_whole_lines_alone(tmp_path):
    assert memory_so_far(tmp_path) == 0
    (tmp_path / "updates").mkdir()
    (tmp_path / "environment.json").write_text('{"gpus": []}')
    lines = [json.dumps({"peak_memory_bytes": n, "pad": "x" * 900}) + "\n" for n in range(1, 21)]
    (tmp_path / "updates" / "rank0.jsonl").write_text("".join(lines) + '{"peak_memory_by')
    (tmp_path / "updates" / "rank1.jsonl").write_text('{"peak_memory_bytes": 5}\n')
    (tmp_path / "updates" / "rank2.jsonl").write_text('{"peak_mem')
    assert memory_so_far(tmp_path) == 25
    (tmp_path / "environment.json").write_text('{"gpus": ["one", "two", "three"]}')
    assert memory_so_far(tmp_path) == 20


# -- samplers ---------------------------------------------------------------------------------------------------------
def test_gp_without_its_packages_says_what_to_install_before_anything_runs(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "scipy" else real(name))
    with pytest.raises(InputError) as refusal:
        study(tmp_path / "s", sampler="gp")
    assert refusal.value.fix == "run: python -m pip install scipy" and not (tmp_path / "s").exists()


def test_a_target_that_flush_never_reaches_is_refused_and_the_baseline_kept(tmp_path):
    made = study(tmp_path / "s", base=BASE.replace(target_loss=1.0))
    with pytest.raises(InputError) as refusal:
        made.run()
    assert refusal.value.what == "target_loss" and "best was" in refusal.value.allowed
    assert (tmp_path / "s" / "baseline" / "result.json").exists()


def test_a_budget_for_no_trial_is_refused_and_more_goes_on_from_there(tmp_path):
    made = study(tmp_path / "s", budget_s=5.0, seeds=1, confirm_seeds=1)
    with pytest.raises(InputError) as refusal:
        made.run()
    assert refusal.value.what == "budget" and "resume" in refusal.value.fix
    before = (tmp_path / "s" / "baseline" / "result.json").stat().st_mtime_ns
    again = tuning.Study.open(tmp_path / "s")
    again.set_budget(200.0)
    assert again.run()["point"] == "paci-4"
    assert (tmp_path / "s" / "baseline" / "result.json").stat().st_mtime_ns == before


# -- interrupted, killed, shared --------------------------------------------------------------------------------------
def test_ctrl_c_loses_the_running_trial_alone(tmp_path):
    made = study(tmp_path / "s", launcher_options={"faults": {"paci-16": "interrupt"}})
    with pytest.raises(KeyboardInterrupt):
        made.run()
    before = [t for t in made.trials() if t.value is not None]
    assert made.run()["point"] == "paci-4"
    after = {t.path for t in made.trials()}
    assert {t.path for t in before} <= after
    assert [t.seed for t in of(made.trials(), "paci", 16)] == [0]


def test_a_killed_controller_is_resumed_with_the_running_trial_lost_alone(tmp_path):
    made = study(tmp_path / "s", launcher_options={"faults": {"paci-8": "die"}})
    code = f"import tuning; tuning.Study.open({str(made.folder)!r}).run()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    before = [t for t in made.trials() if t.value is not None]
    assert len(before) >= 2
    said = []
    assert made.run(progress=lambda s, t: said.append(s))["point"] == "paci-4"
    assert sum("lost" in s for s in said) == 1
    trials = made.trials()
    assert {t.path for t in before} <= {t.path for t in trials}
    assert [t.seed for t in of(trials, "paci", 8)][:1] == [0]


def test_two_controllers_share_a_study_and_do_no_point_twice_for_nothing(tmp_path):
    log = tmp_path / "log"
    made = study(tmp_path / "s", launcher_options={"log": str(log)}, confirm_seeds=1)
    code = f"import tuning; tuning.Study.open({str(made.folder)!r}).run(share_machine=True)"
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [p.wait(PATIENCE_S) for p in both] == [0, 0]
    lines = [line.split() for line in log.read_text().splitlines()]
    runs = [(words[2], words[4]) for words in lines if words[1] != "baseline"]
    assert len(runs) == len(set(runs)), "the same point and seed was run twice"
    assert sum(words[1] == "baseline" for words in lines) == 1
    assert {words[2] for words in lines} >= {f"paci-{w}" for w in (1, 2, 4, 8, 16)}
    assert made.recommendation()["point"] == "paci-4"


def test_a_second_controller_on_the_same_machine_is_refused_and_harms_nothing(tmp_path):
    folder = tmp_path / "s"
    made = study(folder, launcher_options={"faults": {"paci-2": "hang"}}, hang_s=60)
    code = f"import tuning; tuning.Study.open({str(folder)!r}).run()"
    first = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: of(made.trials(), "paci", 2), what="the trial that hangs")
        with pytest.raises(InputError) as refusal:
            tuning.Study.open(folder).run()
        assert str(first.pid) in refusal.value.allowed and "--share-machine" in refusal.value.fix
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
    assert of(made.trials(), "paci", 2)[0].status == "lost"


def test_a_study_is_rebuilt_from_its_run_directories_alone(tmp_path):
    folder = tmp_path / "s"
    made = study(folder)
    found, before = made.run(), read_trials(folder)
    for name in (
        "study.toml",
        "frozen.json",
        "study.id",
        "study.journal",
        "report.html",
        "trials.csv",
        "recommended.toml",
    ):
        (folder / name).unlink()
    again = tuning.Study.open(folder)
    assert rebuild(again) == sum(t.phase in ("baseline", "search") for t in before)
    assert again.settings == made.settings and again.recommendation() == found
    assert again.run() == found  # nothing is left to do
    assert read_trials(folder) == before


def test_a_study_may_be_moved(tmp_path):
    made = study(tmp_path / "s", seeds=1, confirm_seeds=1)
    found, count = made.run(), len(made.trials())
    made.folder.rename(tmp_path / "elsewhere")
    again = tuning.Study.open(tmp_path / "elsewhere")
    assert again.run()["sentence"] == found["sentence"] and len(again.trials()) == count


def test_a_damaged_journal_is_named_with_the_way_out(tmp_path):
    made = study(tmp_path / "s", seeds=1, confirm_seeds=1)
    found = made.run()
    journal = tmp_path / "s" / "study.journal"
    journal.write_bytes(journal.read_bytes()[:2000] + b"\nnot json\n{}\n")
    with pytest.raises(InputError) as refusal:
        made.run()
    assert refusal.value.what == "storage" and "--rebuild" in refusal.value.fix
    rebuild(made)
    assert made.run()["point"] == found["point"]


@pytest.mark.parametrize(("url", "word"), [("nothing://x", "storage"), ("sqlite:////no/such/folder/x.db", "storage")])
def test_a_storage_that_cannot_be_used_is_one_message(tmp_path, url, word):
    made = study(tmp_path / "s", storage=url)
    with pytest.raises(InputError) as refusal:
        made.run()
    assert refusal.value.what == word and "resume" in refusal.value.fix + refusal.value.allowed + "resume"
    assert (tmp_path / "s" / "baseline" / "trial.json").exists()


def test_a_database_serves_as_storage(tmp_path):
    made = study(
        tmp_path / "s",
        storage=f"sqlite:///{tmp_path}/study.db",
        seeds=1,
        confirm_seeds=1,
        space=tuning.Space(windows=(4, 8), flush_windows=(8,)),
    )
    assert made.run()["point"] == "paci-4"
    assert not (tmp_path / "s" / "study.journal").exists()


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    made = study(tmp_path / "s", seeds=1, confirm_seeds=1)
    real, count = os.fsync, [0]

    def full(descriptor):
        count[0] += 1
        if count[0] > 40:
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InputError) as refusal:
            made.run()
    assert "No space left" in str(refusal.value) and "resume" in str(refusal.value)
    before = [t for t in made.trials() if t.value is not None]
    assert before and made.run()["point"] == "paci-4"
    assert {t.path for t in before} <= {t.path for t in made.trials()}


def test_an_outcome_that_cannot_be_written_loses_that_trial_alone(tmp_path, monkeypatch):
    made = study(tmp_path / "s", seeds=1, confirm_seeds=1)
    real = tuning.trial.Trial.save

    def full(trial, *arguments, **extra):
        if trial.status == "reached" and trial.params["window"] == 2:
            raise OSError(28, "No space left on device")
        real(trial, *arguments, **extra)

    with monkeypatch.context() as patched:
        patched.setattr(tuning.trial.Trial, "save", full)
        with pytest.raises(InputError, match="No space left on device"):
            made.run()
    before = [t for t in made.trials() if t.value is not None]
    assert made.run()["point"] == "paci-4"
    assert {t.path for t in before} <= {t.path for t in made.trials()}


def test_a_new_study_needs_a_folder_of_its_own(tmp_path):
    study(tmp_path / "s")
    with pytest.raises(InputError) as refusal:
        study(tmp_path / "s")
    assert "resume" in refusal.value.fix and "another spec" not in refusal.value.allowed
    with pytest.raises(InputError) as refusal:
        study(tmp_path / "s", base=BASE.replace(window=4))
    assert "another spec" in refusal.value.allowed
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError):
        study(tmp_path / "full")
    with pytest.raises(InputError):
        tuning.Study.open(tmp_path / "full")


# -- decisions, by themselves -----------------------------------------------------------------------------------------
def test_a_race_goes_through_all_points_and_then_gives_seeds_to_the_near_ones():
    side = Space(windows=(2, 4, 8), flush_windows=(8,)).side("paci", BASE)
    times = {2: 10.0, 4: 11.0, 8: 20.0}
    seen, order = [], []
    while (point := next_point(side, seen, seeds=3)) is not None:
        order.append(point["window"])
        seen.append(Seen(len(seen), point, "COMPLETE", times[point["window"]], True, "reached"))
    assert order[:3] == [4, 2, 8] and order[3:6] == [2, 4, 8] and sorted(order[6:]) == [2, 4, 8]
    assert [group[0].params["window"] for group in contenders(seen)] == [2, 4, 8]


def test_a_point_that_was_stopped_once_may_have_had_bad_luck_and_gets_further_seeds():
    def done(number, window, value, status):
        return Seen(number, {"window": window}, "COMPLETE", value, status == "reached", status)

    side = Space(windows=(2, 4, 8, 16), flush_windows=(8,)).side("paci", BASE)
    seen = [
        done(0, 2, 10.0, "reached"),
        done(1, 4, 65.0, "capped"),
        done(2, 8, 90.0, "capped"),
        done(3, 16, 70.0, "pruned"),
    ]
    tried = []
    while (point := next_point(side, seen, seeds=3)) is not None:
        tried.append(point["window"])
        seen.append(done(len(seen), point["window"], 5.0 if point["window"] == 4 else 80.0, "reached"))
    assert tried[:3] == [2, 4, 16] and 8 not in tried
    assert contenders(seen)[0][0].params["window"] == 4
    assert contenders([done(0, 2, 120.0, "oom")]) == []
    half_told = Seen(1, {"window": 8}, "RUNNING", None, False, "capped")  # by another controller
    assert contenders([half_told]) == []


def test_running_trials_count_and_lost_ones_do_not():
    side = Space(windows=(4, 8), flush_windows=(8,)).side("paci", BASE)
    assert next_point(side, [Seen(0, {"window": 4}, "RUNNING")], seeds=1) == {"window": 8}
    assert next_point(side, [Seen(0, {"window": 4}, "FAIL")], seeds=1) == {"window": 4}


def test_ratio_of_pairs_and_its_interval():
    found = log_ratio([(20.0, 10.0), (18.0, 10.0), (22.0, 10.0), (21.0, 10.0), (19.0, 10.0)])
    assert (
        found.ratio == pytest.approx(2.0) and 1.8 <= found.low <= found.ratio <= found.high <= 2.2 and found.significant
    )
    assert not log_ratio([(2.0, 1.0)] * 3).significant  # three pairs cannot say so much
    assert not log_ratio([(0.9, 1.0), (1.1, 1.0), (1.2, 1.0), (0.8, 1.0), (1.0, 1.0)]).significant
    median, low, high = interval_of_median([3.0, 1.0, 2.0])
    assert (median, low, high) == (2.0, 1.0, 3.0)


# -- using the result -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    made = study(tmp_path_factory.mktemp("finished") / "s", price=2.0)
    made.run()
    return made


def test_apply_writes_the_spec_for_the_machine_where_it_was_measured(finished, tmp_path):
    with pytest.raises(InputError) as refusal:
        apply(finished, tmp_path / "spec.toml")
    assert "cpu: test there" in refusal.value.allowed and not (tmp_path / "spec.toml").exists()
    spec = apply(finished, tmp_path / "spec.toml", run=finished.folder / "baseline")
    assert TrainSpec.load(tmp_path / "spec.toml") == spec
    assert (spec.schedule, spec.window, spec.seed) == ("paci", 4, BASE.seed)


def test_recommended_toml_holds_interval_versions_and_machine(finished):
    import tomllib

    found = tomllib.loads((finished.folder / "recommended.toml").read_text())
    assert found["machine"] == {"cpu": "test", "cpu_cores": 2, "gpus": []} and found["versions"]["torch"] == "2.13"
    assert found["ratio"]["low"] <= found["ratio"]["ratio"] <= found["ratio"]["high"]
    assert TrainSpec.from_dict(found["spec"]).window == 4


def test_the_csv_has_every_trial(finished):
    import csv

    rows = list(csv.DictReader(open(finished.folder / "trials.csv")))
    trials = finished.trials()
    assert [(r["side"], int(r["window"]), int(r["seed"]), r["status"]) for r in rows] == [
        (t.side, t.params["window"], t.seed, t.status) for t in trials
    ]


def test_the_report_says_the_recommendation_and_what_it_cost(finished):
    page = (finished.folder / "report.html").read_text()
    for words in (
        "Take paci-4",
        "Time to target against window",
        "Why a window wins",
        "theory: gap 1",
        "device-hours",
        "cost of the search",
        "saved by every training",
    ):
        assert words in page, words
    assert "Which dimension matters" not in page  # one dimension has nothing to be compared with


def test_importance_needs_enough_trials(tmp_path):
    made = study(
        tmp_path / "s",
        space=tuning.Space(windows=(2, 4, 8), flush_windows=(8,), learning_rate_scales=(0.5, 1.0)),
        seeds=1,
        confirm_seeds=1,
    )
    made.run()
    assert "Not said: fewer than 20" in (made.folder / "report.html").read_text()
    first = next(t for t in made.trials() if t.side == "paci" and t.status == "reached")
    for number in range(30):
        folder = made.folder / "trials" / f"paci-9{number:03d}"
        folder.mkdir()
        window, scale = (2, 4, 8)[number % 3], (0.5, 1.0)[number % 2]
        dataclasses.replace(
            first, number=9000 + number, value=float(window), params={"window": window, "learning_rate_scale": scale}
        ).save(folder)
    made.report()
    page = (made.folder / "report.html").read_text()
    assert "Not said" not in page and "PED-ANOVA" in page
    told = page.split("PED-ANOVA")[0].rsplit('aria-label="', 1)[1].split('"')[0]
    assert "window" in told


def test_warm_start_leaves_out_what_was_slow_at_the_same_distance(finished):
    deeper = settings(
        base=BASE.replace(stages=7, model="pico"), space=tuning.Space(windows=(2, 8, 32), flush_windows=(8, 16))
    )
    narrowed, told = warm_start(deeper, finished)
    assert narrowed.space.windows == (8,) and "saved" in told  # 8/6 is near the old 4/3; 2/6 and 32/6 were slow there
    assert "paci: 2, 32" in told


def test_status_of_a_study_with_many_trials_opens_quickly_enough_to_be_used(finished):
    figures = finished.status()
    assert figures["best"]["paci"]["point"] == "paci-4" and figures["controllers"] == []
    assert sum(figures["trials"].values()) == len(finished.trials())
    assert json.dumps(figures)


def test_a_search_over_a_finished_study_proposes_nothing(finished):
    said = []
    frozen = finished.frozen
    (finished.folder / "controllers").mkdir(exist_ok=True)
    Search(finished, frozen, finished.launcher(), "me", lambda s, t: said.append(s)).run()
    assert said == ["search ends: every point has been tried, and the contenders with several seeds"]
