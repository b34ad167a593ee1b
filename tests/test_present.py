"""The presentation without a browser: what scenes show, who wins, what the command refuses, how it ends."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from engine_helpers import PATIENCE_S, kill, pid_of, wait_until

from paci_lab import cli
from paci_lab.commands import present
from paci_lab.errors import InputError
from paci_lab.page import open_page
from paci_lab.present.front import ACTIONS, Keys
from paci_lab.present.race import Racer, common_target, recorded_label
from paci_lab.present.scenes import BASE, scenes
from paci_lab.present.sides import names
from paci_lab.present.view import Presentation
from paci_lab.present.words import card_html, verdict
from paci_lab.simulate import Costs, simulate

S = 1_000_000_000


def recording(folder, losses, *, ended=True, target=3.0):
    """A run directory with validation losses one second apart and one operation that lasts as long as all of them."""
    folder.mkdir(parents=True)
    BASE.replace(target_loss=target).save(folder / "spec.toml")
    rows = [{"time_s": t + 1.0, "tokens": t, "update": t, "val_loss": loss} for t, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "environment.json").write_text(
        '{"schema": 1, "cpu": "a <cpu>", "cpu_cores": 2, "recorded": "2026-11-30"}'
    )
    (folder / "trace").mkdir()
    event = {"stage": 0, "rank": 0, "op": "F", "microbatch": 0, "start_ns": 0, "version": 0, "update": 0}
    (folder / "trace" / "rank0.jsonl").write_text(json.dumps({**event, "end_ns": len(losses) * S}) + "\n")
    if ended:
        (folder / "result.json").write_text('{"schema": 1}')
    return folder


def racer(folder, name, losses, target=3.0):
    return Racer.from_dict({"name": name, "target": target, "recording": str(recording(folder / name, losses))})


# -- what is shown ----------------------------------------------------------------------------------------------------
def test_the_simulated_scenes_show_the_bubbles_that_arithmetic_says():
    found = {scene.key: [1 - lane.trace().bubble_fraction() for lane in scene.lanes] for scene in scenes()}
    assert found["one-device"] == pytest.approx([1])
    assert found["in-turn"] == pytest.approx([1 / 2, 1 / 4])
    assert found["flush"] == pytest.approx([4 / 7, 8 / 11])
    # All hold the same model: in turn, four devices take as long for a micro-batch as the one that has it whole.
    one, four = scenes()[0].lanes[0], scenes()[1].lanes[1]
    assert one.trace().makespan_ns == four.trace().makespan_ns
    assert [scene.key for scene in scenes() if scene.race] == ["race", "window"]


def sides(*arguments):
    parser = argparse.ArgumentParser()
    present.add_arguments(parser)
    return present.sides_of(parser.parse_args(arguments))


def test_the_races_are_fair_but_for_what_they_are_about(monkeypatch):
    monkeypatch.setenv("PACI_LAB_TRAIN", "1")
    for key, (above, below) in sides().items():
        differs = {name for name in above["spec"] if above["spec"][name] != below["spec"][name]}
        assert differs == ({"schedule"} if key == "race" else {"window", "learning_rate"})
    asked = sides("1f1b:4", "paci:2", "--learning-rate", "0.001", "--target-loss", "4")
    assert [side["spec"]["learning_rate"] for sides in asked.values() for side in sides] == [0.001] * 4
    assert [side["target"] for sides in asked.values() for side in sides] == [4] * 4
    assert [(side["spec"]["schedule"], side["spec"]["window"]) for side in asked["race"]] == [("1f1b", 4), ("paci", 2)]


def said_of(tmp_path, found):
    """(title, text, names) that a page shows of the race scene with these sides."""
    page = Presentation({"race": found}, folder=tmp_path)
    page.close()
    page._enter(3)
    return page._title, page._text.value, [side["name"] for side in found]


def test_a_scene_tells_of_paci_only_where_paci_races_the_flush(monkeypatch, tmp_path):
    monkeypatch.setenv("PACI_LAB_TRAIN", "1")
    title, text, _names = said_of(tmp_path, sides()["race"])
    assert title == "The race: PACI never flushes" and "one update old" in text
    title, text, called = said_of(tmp_path, sides("gpipe:8", "1f1b:4")["race"])
    assert title == "The race" and "PACI" not in text and all(name in text for name in called)
    assert "same seed" in text and "specs: schedule, window." in text
    # Spec files of the same two schedules that are not the same work.
    for name, changes in (("a", {}), ("b", {"schedule": "paci", "seed": 1})):
        BASE.replace(**changes).save(tmp_path / f"{name}.toml")
    files = ["--left", str(tmp_path / "a.toml"), "--right", str(tmp_path / "b.toml")]
    title, text, _names = said_of(tmp_path, sides(*files)["race"])
    assert title == "The race" and "same" not in text and "schedule, seed" in text


@pytest.mark.parametrize(
    ("changes", "called"),
    [
        ({"learning_rate": 0.002}, ["PACI, window 8, learning rate 0.004", "PACI, window 8, learning rate 0.002"]),
        ({"slack": 1}, ["PACI, window 8, slack 0", "PACI, window 8, slack 1"]),
        ({}, ["PACI, window 8 (above)", "PACI, window 8 (below)"]),
        ({"window": 4}, ["PACI, window 8", "PACI, window 4"]),
    ],
)
def test_two_sides_never_have_the_same_name(changes, called):
    spec = BASE.replace(schedule="paci")
    assert names([spec, spec.replace(**changes)]) == called


def test_the_window_scene_says_the_truth_about_version_gaps():
    costs = Costs(forward_ms=50, backward_ms=100)
    gaps = [simulate(BASE.replace(schedule="paci", window=w).build_schedule(), costs).version_gap_max() for w in (2, 8)]
    assert gaps == [[2, 1, 1, 0], [1, 1, 1, 0]]


@pytest.mark.parametrize(
    ("above", "below", "at", "says"),
    [
        ([4, 3.5, 2.9], [4, 2.8, 2.7], [3, 3], "below was there first: 2.0 s against 3.0 s, 1.50 times as fast"),
        ([4, 3.5, 2.9], [4, 2.8, 2.7], [2, 1.5], ""),  # a replay that is not there yet
        ([4, 3.5, 2.9], [4, 2.8, 2.7], [2.5, 2.5], "below is there after 2.0 s. The other side goes on."),
        ([4, 3.5, 3.2], [4, 3.8, 3.7], [3, 3], "Neither side reached the target of 3."),
        ([4, 3.5, 3.2], [4, 3.8, 3.7], [3, 2], ""),
        ([4, 2.5], [4, 3.8, 3.7], [2, 3], "above reached the target after 2.0 s; the other side never did."),
        ([4, 2.5], [3.9, 2.4], [2, 2], "Both reached the target after 2.0 s."),
    ],
)
def test_the_verdict(tmp_path, above, below, at, says):
    sides = [racer(tmp_path, "above", above), racer(tmp_path, "below", below)]
    said = verdict(sides, at, at)
    assert said.startswith(says) and bool(said) == bool(says)
    assert ("another seed" in said) == ("times as fast" in said)  # one run each proves nothing


def test_the_countdown(tmp_path):
    one = racer(tmp_path, "a <b>", [5.0, 4.0, 2.5])
    assert "a &lt;b&gt;" in card_html(one, 0, 0.5, 0.5, []) and "no validation loss yet" in card_html(
        one, 0, 0.5, 0.5, []
    )
    halfway = card_html(one, 0, 2.0, 2.0, [1, 0])
    assert "1.00 to go" in halfway and 'aria-valuenow="50"' in halfway and "by stage: 1 0" in halfway
    assert "target after 3.0 s" in card_html(one, 0, 9.0, 9.0, [])
    one.error = "no such <model>"
    assert "no such &lt;model&gt;" in card_html(one, 0, 0.0, 0.0, []) and "failed" in card_html(one, 0, 0.0, 0.0, [])


def test_the_target_of_recordings_is_one_that_both_reach(tmp_path):
    paths = [recording(tmp_path / "a", [4, 3.1], target=2.0), recording(tmp_path / "b", [4, 3.3], target=2.5)]
    assert common_target(paths) == 3.3  # their specs do not agree
    assert common_target([paths[0], recording(tmp_path / "c", [4, 3], target=2.0)]) == 2.0
    with pytest.raises(InputError, match="no validation loss"):
        common_target([paths[0], recording(tmp_path / "d", [])])


# -- what the presenter asks ------------------------------------------------------------------------------------------
@pytest.fixture
def page(tmp_path):
    """A presentation of a recorded race, whose own thread has ended, so that a test makes each step itself."""
    sides = [racer(tmp_path, name, losses).to_dict() for name, losses in (("one", [4, 2.5]), ("two", [4, 3.5, 2.8]))]
    shown = Presentation({"race": sides, "window": sides}, folder=tmp_path / "runs")
    shown.close()
    return shown


def press(page, *actions):
    for action in actions:
        page.ask(action)
        page._obey(page._asked.get())
    page._told_at = 0.0
    page.tick()


def test_scenes_follow_one_another_and_a_recorded_race_is_replayed_and_says_so(page):
    assert page.scene.key == "one-device" and "simulated" in page._head.value or page.tick() is not None
    press(page, "previous")
    assert page.scene.key == "one-device" and "previous" in page.keys.state["off"]
    press(page, "next", "next")
    assert page.scene.key == "flush" and "simulated" in page._head.value and "72.7 %" in page.lanes[1].name.value
    press(page, "next")
    assert page.scene.key == "race" and page.phase == "ready"
    assert "recorded on 2026-11-30, on 2 cores of a &lt;cpu&gt;" in page._head.value
    press(page, "faster", "slower", "slower")
    assert page.keys.state["speed"] == "0.5×"
    press(page, "toggle")
    assert page.phase == "play"
    press(page, "toggle")
    assert page.phase == "pause" and page.board.said == ""
    press(page, "toggle")
    page.playhead.seek(9 * S)
    page.playhead.play()
    press(page)
    assert page.phase == "end" and "one was there first: 2.0 s against 3.0 s, 1.50 times" in page.board.said
    assert page.board.said == page.keys.said and "target after 3.0 s" in page.board.cards[1].value
    press(page, "toggle")
    assert page.phase == "play"


def test_of_nothing_there_is_no_share_and_no_gap_and_nothing_is_live_before_it_runs(page, tmp_path):
    def shares(of):
        return [lane.chart.figure.layout.annotations[0].visible is not False for lane in of.lanes]

    page._enter(1)
    press(page)
    assert shares(page) == [False, False]
    page.playhead.seek(S)
    for lane in page.lanes:
        lane.front.seen = lane.sender.frames  # as a browser that has drawn
    press(page)
    assert shares(page) == [True, True]
    sides = [Racer(name=name, target=3.0, spec=BASE).to_dict() for name in ("one", "two")]
    live = Presentation({"race": sides}, folder=tmp_path)
    live.close()
    live._enter(3)
    press(live)
    assert "to be run live" in live._head.value and "version gap" not in live.board.cards[0].value
    for live.phase, says in (("live", "paced devices, live"), ("held", "paced devices, held")):
        press(live)
        assert says in live._head.value


def test_the_page_gets_signs_of_life_also_while_nothing_moves(tmp_path):
    shown = Presentation({}, folder=tmp_path)
    try:
        wait_until(lambda: shown.keys.beat >= 3)
    finally:
        shown.close()


def test_a_recording_without_a_trace_shows_its_losses(tmp_path):
    one = racer(tmp_path, "one", [4, 2.5])
    (tmp_path / "one" / "trace" / "rank0.jsonl").unlink()
    bare = Racer.from_dict(one.to_dict())
    assert bare.end_ns == one.end_ns == 2 * S and "without a trace" in bare.details()
    assert len(bare.window(S, 10)[0]) == 0


def test_only_what_a_presenter_can_ask_is_heard():
    asked = []
    keys = Keys(asked.append)
    for content in ({"action": "next"}, {"action": "close"}, {"action": ["next"]}, {}, "next", None):
        keys._handle_custom_msg(content, [])
    assert asked == ["next"]
    assert set(ACTIONS) <= set(keys.texts["actions"]) == set(keys.texts["meanings"])


@pytest.mark.slow
def test_a_killed_rank_fails_its_side_alone_and_another_scene_ends_the_rest(tmp_path, leftovers):
    spec = BASE.replace(
        stages=2, microbatches=100_000, microbatch_size=1, pace_forward_ms=10, pace_backward_ms=20, target_loss=0.01
    )
    sides = [Racer(name=name, target=0.01, spec=spec).to_dict() for name in ("one", "two")]
    page = Presentation({"race": sides}, folder=tmp_path)
    try:
        for action in ("next", "next", "next", "toggle", "toggle"):  # the last one is one too many
            page.ask(action)
        wait_until(lambda: page.phase == "live" and all(end > 0 for end in page._positions()))
        kill([pid_of(page.race.racers[1].run.path, "rank1")])
        wait_until(lambda: "failed" in page.board.cards[1].value)
        assert "rank" in page.board.cards[1].value and "failed" not in page.board.cards[0].value
        before = page._positions()[0]
        wait_until(lambda: page._positions()[0] > before)
        assert page.phase == "live" and page.board.said == "" and not page.problems.last
        page.ask("previous")
        wait_until(lambda: page.scene.key == "flush" and not leftovers())
    finally:
        page.close()


# -- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["paci:8"], "two of them"),
        (["paci:8", "no-such:8"], "no-such"),
        (["paci:8", "1f1b"], "SCHEDULE:WINDOW"),
        (["paci:8", "1f1b:8", "--stages", "40"], "layers"),
        (["paci:8", "1f1b:8", "--model", "gpt:blocks=400,width=16384,heads=16,context=1024"], "GiB"),
        (["paci:8", "1f1b:8", "--evaluate-every", "0"], "countdown"),
        (["--left", "a.toml"], "a spec file for each side"),
        (["--left", "a.toml", "--right", "b.toml"], "a.toml"),
        (["--recorded", "nowhere", "nothing"], "spec.toml"),
        (["paci:8", "1f1b:8", "--recorded", "a", "b"], "one of the three"),
        (["--port", "99999"], "--port"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_there_is_a_page(capsys, monkeypatch, tmp_path, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["present", "--no-browser", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_without_training_the_recordings_stand_in_and_no_other_race_is_run(capsys, monkeypatch):
    monkeypatch.setenv("PACI_LAB_TRAIN", "0")
    assert cli.main(["present", "1f1b:8", "paci:4"]) == 2
    assert "Unset it" in capsys.readouterr().err


def test_the_recordings_that_stand_in_have_a_winner_and_their_date(monkeypatch):
    monkeypatch.setenv("PACI_LAB_TRAIN", "0")
    for recorded in sides().values():
        racers = [Racer.from_dict(side) for side in recorded]
        assert all(one.target == BASE.target_loss and one.window(5 * S, 100)[0].stages == 4 for one in racers)
        assert "was there first" in verdict(racers, [one.end_ns / 1e9 for one in racers], [float("inf")] * 2)
        assert re.match(r"recorded on 20\d\d-\d\d-\d\d, on \d+ cores of ", recorded_label(racers[0].recording))


# -- the page ---------------------------------------------------------------------------------------------------------
def test_a_taken_port_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="nobody uses"):
            open_page("1", title="", port=taken.getsockname()[1], browser=False)


@pytest.mark.parametrize(
    "how", ["SIGINT", "SIGKILL", *(pytest.param(name, marks=pytest.mark.slow) for name in ("SIGTERM", "SIGHUP"))]
)
def test_the_kernel_ends_with_the_command(tmp_path, how):
    code = "from paci_lab.page import open_page\nopen_page(CELL, title='t', browser=False)"
    cell = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    command = subprocess.Popen(
        [sys.executable, "-c", code.replace("CELL", repr(cell))], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        address = re.search(r"http\S+", command.stderr.readline())[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address.partition("?")[0]) as strange:  # without the token there is no kernel
            assert "login" in strange.url
        with urllib.request.urlopen(address) as page:
            policy, text = page.headers["Content-Security-Policy"], page.read().decode()
        assert "default-src 'self'" in policy and "jsdelivr" not in text
        kernel = int((tmp_path / "pid").read_text())
        os.kill(kernel, 0)
        command.send_signal(getattr(signal, how))
        assert command.wait(PATIENCE_S) == (-9 if how == "SIGKILL" else 0)
        deadline = time.monotonic() + 60
        with pytest.raises(ProcessLookupError):
            while time.monotonic() < deadline:
                os.kill(kernel, 0)
                time.sleep(0.1)
    finally:
        command.kill()
        command.stderr.close()
        command.wait()
