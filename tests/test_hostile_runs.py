"""A run directory or a study that somebody wrote with bad intent: refused with a sentence, or shown as plain text."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tomli_w
import torch
from engine_helpers import tiny
from safetensors.torch import save_file
from tuning_landscape import MACHINE

import paci_lab
from paci_lab import InputError, RunFailed, TrainSpec
from paci_lab.cli import main
from paci_lab.runtime.rundir import RunDir, write_json
from paci_lab.show.feed import RunFeed
from paci_lab.show.live_text import facts_html, paragraphs_html
from tuning.cli import main as tune
from tuning.settings import Settings
from tuning.trial import Frozen, Trial

pytestmark = pytest.mark.timeout(240)  # what waits for a pipe, or counts to 10**18, is a failure

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
ESCAPES = "\x1b]0;title\x07\x1b[2J[/red][bold]"


@pytest.fixture
def run(tmp_path) -> Path:
    """What a run of two stages leaves, without the run."""
    spec = tiny(partition=[3, 3], microbatches=12, updates=None)
    found = RunDir(tmp_path / "run")
    found.create(spec, MACHINE)
    trace = paci_lab.simulate(spec.build_schedule(), paci_lab.Costs(forward_ms=1, backward_ms=2))
    for rank in range(2):
        trace._take(trace.rank == rank).save(found.trace_file(rank))
        rows = [_update_row(rank, update) for update in range(4)]
        found.updates_file(rank).write_text("".join(json.dumps(row) + "\n" for row in rows))
        found.log_file(rank).write_text("")
    rows = [{"time_s": u / 10, "tokens": 48 * (u + 1), "update": u, "train_loss": 5.0 - u} for u in range(4)]
    rows.append({"time_s": 0.4, "tokens": 192, "update": 3, "val_loss": 2.5})
    found.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(found.path / "result.json", {"schema": 1, "stages": 2})
    return found.path


def _update_row(rank: int, update: int) -> dict:
    return {
        **{"stage": rank, "update": update, "end_ns": update * 10**8, "tokens": 48 * (update + 1)},
        **{"learning_rate": 0.001, "grad_norm": 1.0, "train_loss": 5.0, "losses": [5.0] * 3 if rank else []},
        **{"snapshot": False, "peak_memory_bytes": 10**6, "pace_overruns": 0, "weight_copies": 1},
    }


def in_spec(line: str) -> Callable[[Path], None]:
    """The line in place of what the spec says of that key."""

    def change(run: Path) -> None:
        values = TrainSpec.load(run / "spec.toml").to_dict()
        values.pop(line.partition(" ")[0], None)
        (run / "spec.toml").write_text(line + "\n" + tomli_w.dumps(values))

    return change


def line_of(name: str, text: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with open(run / name, "a") as file:
            file.write(text + "\n")

    return change


def event(**changes: object) -> Callable[[Path], None]:
    good = {"stage": 0, "rank": 0, "op": "F", "microbatch": 0, "start_ns": 0, "end_ns": 1, "version": 0, "update": 0}
    return line_of("trace/rank0.jsonl", json.dumps({**good, **changes}))


def metric(text: str) -> Callable[[Path], None]:
    return line_of("metrics.jsonl", text)


def whole(name: str, text: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(text) and None


def in_place_of(name: str, put: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        put(run / name)

    return change


def link(to: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(to)


DEEP = "[" * 100_000
HUGE = "9" * 5000

REFUSED = {
    "a spec that is none": whole("spec.toml", "\x00\x01"),
    "a spec nested without end": whole("spec.toml", "stages = " + DEEP),
    "a number of 5,000 digits": in_spec(f"stages = {HUGE}"),
    "a billion stages": in_spec("stages = 1000000000"),
    "stages that are a text": in_spec('stages = "2"'),
    "a window that is a list": in_spec("window = [1, 2]"),
    "a rate that is no number": in_spec("learning_rate = nan"),
    "an infinite pace": in_spec("pace_forward_ms = inf"),
    "a partition of texts": in_spec('partition = ["a", "b"]'),
    "a key that no spec has": in_spec('command = "rm -rf /"'),
    "a spec that is a folder": in_place_of("spec.toml", lambda path: path.mkdir()),
    "a spec elsewhere": in_place_of("spec.toml", link("/etc/hostname")),
    "a newer layout": whole("environment.json", '{"schema": 2}'),
    "an environment nested without end": whole("environment.json", '{"schema": ' + DEEP),
    "a result that is a list": whole("result.json", "[]"),
    "a result of 5,000 digits": whole("result.json", '{"stages": ' + HUGE + "}"),
    "a result without end": in_place_of("result.json", link("/dev/zero")),
    "a stage of 10**18": event(stage=10**18),
    "a stage that the run has not": event(stage=2),
    "a rank below 0": event(rank=-1),
    "a version beyond 64 bits": event(version=2**70),
    "a time that is a text": event(end_ns="later"),
    "a micro-batch that is not a number": event(microbatch=float("nan")),
    "an operation of its own": event(op=MARKUP),
    "an event with one field more": event(extra=1),
    "a line nested without end": line_of("trace/rank0.jsonl", DEEP),
    "a line of 8 MB": line_of("trace/rank0.jsonl", "x" * (8 << 20)),
    "bytes that are no text": in_place_of("trace/rank0.jsonl", lambda path: path.write_bytes(b"\xff\xfe\n" * 10)),
    "a trace elsewhere": in_place_of("trace/rank0.jsonl", link("/etc/passwd")),
    "a trace that is a pipe": in_place_of("trace/rank0.jsonl", os.mkfifo),
    "a trace that goes round": in_place_of("trace/rank0.jsonl", link("rank0.jsonl")),
    "a metric that is a number": metric("3"),
    "a metric nested without end": metric(DEEP),
    "a loss that is a text": metric(json.dumps({"time_s": 1, "tokens": 1, "update": 9, "val_loss": MARKUP})),
    "a moment that is a list": metric('{"time_s": [], "tokens": 1, "update": 9, "train_loss": 1}'),
    "an update that is a pipe": in_place_of("updates/rank1.jsonl", os.mkfifo),
    "losses that are none": line_of("updates/rank1.jsonl", '{"stage": 1, "update": 9, "losses": "1"}'),
}
"""What nobody can show rightly."""

SHOWN = {
    "a partition of a billion layers": in_spec("partition = [1000000000, 1000000000]"),
    "a name of markup": in_spec(f"model = {json.dumps(MARKUP)}"),
    "code for an optimizer": in_spec('optimizer = "os:system"'),
    "code for data": in_spec('data = "hostile_code.py:data"'),
    "code for a schedule": in_spec('schedule = "hostile_code.py:Schedule"'),
    "a module for a schedule": in_spec('schedule = "hostile_code:Schedule"'),
    "a file for a schedule": in_spec('schedule = "/dev/zero.csv"'),
    "a failure of markup": whole("failure.json", json.dumps({"message": MARKUP})),
    "a failure of commands to the terminal": whole("failure.json", json.dumps({"message": ESCAPES})),
    "a failure that is a number": whole("failure.json", '{"message": 3}'),
    "a loss that is not a number": metric('{"time_s": 1, "tokens": 1, "update": 9, "train_loss": NaN}'),
    "a loss without end": metric('{"time_s": 1, "tokens": 1, "update": 9, "val_loss": Infinity}'),
    "a log of markup": whole("log/rank0.log", MARKUP),
    "times far apart": event(start_ns=0, end_ns=2**61),
}
"""What a run may hold, or what is text and stays text."""

CODE = """
from pathlib import Path

from paci_lab.schedules import PACI as Schedule

Path(__file__).with_name("it-ran").touch()
"""


class Scripts(HTMLParser):
    """Texts of the elements that do something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found += [f"<{tag} {name}>" for name, _ in attributes if name.startswith("on")]
        if tag == "img":
            self.found.append(f"<{tag}>")


def read_all(run: Path) -> None:
    """All that a reader asks of a run."""
    opened = paci_lab.open_run(run)
    found = opened.dir
    opened.trace(), found.metrics(), found.validation(), found.losses(), found.updates_of(0), found.environment()
    repr(opened)
    if (run / "failure.json").exists():
        found.failure()
    opened.result()


def look_live(run: Path) -> str:
    """What the live view would print, whatever is wrong with the run."""
    feed = RunFeed(run)
    feed.poll(), feed.poll()
    trace, start, stop = feed.window(feed.end_ns, 1000)
    losses = feed.losses(10.0)
    feed.trace()
    facts = facts_html(trace, start, stop, feed.tokens_per_second(10.0), losses)
    return facts + paragraphs_html([feed.status(), *feed.problems()])


@pytest.fixture(autouse=True)
def trap(tmp_path, monkeypatch):
    """Code within reach that must not run."""
    (tmp_path / "hostile_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "it-ran").exists()


def test_the_run_itself_is_shown(run, capsys):
    """Otherwise the cases below would be refused for another reason."""
    read_all(run)
    assert main(["show", str(run)]) == 0
    assert "The run ended well." in look_live(run)


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_run_writes_is_refused_and_the_live_view_goes_on(run, case, capsys):
    REFUSED[case](run)
    with pytest.raises(InputError) as refusal:
        read_all(run)
    assert len(str(refusal.value)) < 2000 and str(refusal.value).isprintable()
    code, said = main(["show", str(run)]), capsys.readouterr().err
    assert "Traceback" not in said and "<script>" not in look_live(run)
    if "metric" not in case and "loss" not in case and "moment" not in case and "update" not in case:
        assert code == 2 and said.startswith("paci-lab show: ") and len(said.splitlines()) == 1


@pytest.mark.parametrize("case", SHOWN)
def test_what_is_text_stays_text(run, case, capsys):
    SHOWN[case](run)
    if "failure" in case:
        (run / "result.json").unlink()
        with pytest.raises(RunFailed):
            read_all(run)
    else:
        read_all(run)
    assert main(["show", str(run)]) == 0
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\x07" not in said
    if "failure" in case:
        assert any(word in said for word in (MARKUP, "[/red][bold]", "no result: 3."))  # nothing of it is lost
    page = (run / "gantt.html").read_text()
    assert not Scripts(page.partition("<script>")[0]).found and not Scripts(look_live(run)).found


def test_links_in_a_run_are_not_written_through(run, tmp_path, capsys):
    (tmp_path / "mine").write_text("precious")
    (run / "gantt.html").symlink_to(tmp_path / "mine")
    assert main(["show", str(run)]) == 2 and "a link" in capsys.readouterr().err
    assert main(["show", str(run), "--html", str(tmp_path / "page.html")]) == 0
    (run / "gantt.html").unlink()
    (run / "perfetto.json").symlink_to(tmp_path / "mine")
    assert main(["show", str(run)]) == 2
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_run_that_is_asked_for_imports_what_it_names(run, tmp_path):
    """Only then: reading the spec has not."""
    spec = TrainSpec.load(run / "spec.toml").replace(schedule="hostile_code.py:Schedule")
    assert not (tmp_path / "it-ran").exists()
    spec.build_schedule()
    assert (tmp_path / "it-ran").exists()
    (tmp_path / "it-ran").unlink()


def never(*_: object, **__: object) -> None:
    raise AssertionError("unpickled")


@pytest.fixture
def no_pickle(monkeypatch):
    for module, names in ((pickle, ("load", "loads", "Unpickler")), (torch, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, never)


def test_reading_unpickles_nothing(no_pickle, run, study, capsys):
    """A pickle runs what it says; weights are safetensors, and everything else is text."""
    weights = {"layers.0.weight": torch.ones(2)}
    for stage in range(2):
        path = RunDir(run).snapshot(3, stage)
        path.parent.mkdir(exist_ok=True)
        save_file(weights, path)
    read_all(run)
    assert list(RunDir(run).parameters()) == list(weights)
    assert main(["show", str(run)]) == 0 and tune(["report", str(study)]) == 0
    for file in RunDir(run).snapshot(3).iterdir():
        file.write_bytes(pickle.dumps(weights))
    with pytest.raises(InputError, match="whole safetensors files"):
        RunDir(run).parameters()


# -- a study of the tuner ------------------------------


SETTLED = {
    **{"target_loss": 3.0, "first_loss": 5.0, "time_cap_s": 9.0, "grid_s": 0.1, "evaluate_every": 4, "hang_s": 60.0},
    **{"memory_bytes": None, "partition": [3, 3], "baseline_s": 0.5, "overhead_s": 1.0, "devices": 2},
    **{
        "device_kind": "cpu",
        "machine": {"cpu": MARKUP, "cpu_cores": 2, "gpus": [MARKUP]},
        "versions": {"torch": MARKUP},
    },
}


def before(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text + (folder / name).read_text()) and None


def in_base(line: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        kept = (folder / "study.toml").read_text().splitlines()
        kept = [old for old in kept if old.partition(" ")[0] != line.partition(" ")[0]]
        kept.insert(kept.index("[base]") + 1, line)
        (folder / "study.toml").write_text("\n".join(kept))

    return change


@pytest.fixture
def study(run, tmp_path) -> Path:
    """What a study of one trial a side leaves: run directories with a `trial.json` each."""
    folder = tmp_path / "study"
    folder.mkdir()
    base = tiny(partition=[3, 3], microbatches=12, updates=None, target_loss=3.0)
    Settings(base=base, launcher="hostile_code.py:Launcher").save(folder / "study.toml")
    write_json(folder / "frozen.json", dataclasses.asdict(Frozen(**SETTLED)))
    for name, side, phase in (
        ("baseline", "flush", "baseline"),
        ("trials/p", "paci", "search"),
        ("trials/f", "flush", "search"),
    ):
        shutil.copytree(run, folder / name)
        figures = {"updates": 4, "bubble_fraction": 0.1, "peak_memory_bytes": [10**6] * 2}
        Trial(
            **{"side": side, "number": 0, "phase": phase, "params": {"window": 3}, "seed": 0, "status": "reached"},
            **{"value": 0.4, "training_s": 0.4, "wall_s": 1.0, "constraints": {"target": 0.0}, "figures": figures},
        ).save(folder / name)
    return folder


def in_trial(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "trials" / "p" / "trial.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


STUDIES: dict[str, tuple[Callable[[Path], object], int]] = {
    "nothing": (lambda folder: None, 0),
    "settings nested without end": (whole("study.toml", "budget_s = " + DEEP), 2),
    "settings of another kind": (whole("study.toml", "base = 3"), 2),
    "a space of another kind": (
        lambda f: (f / "study.toml").write_text("space = 3\n" + (f / "study.toml").read_text()),
        2,
    ),
    "code for the base's schedule": (in_base('schedule = "hostile_code.py:Schedule"'), 0),
    "code for the base's optimizer": (in_base('optimizer = "os:system"'), 0),
    "what was settled, of another kind": (whole("frozen.json", "[]"), 2),
    "what was settled, with texts": (
        whole("frozen.json", json.dumps({**SETTLED, "baseline_s": "x"})),
        2,
    ),
    "a trial that is a list": (whole("trials/p/trial.json", "[]"), 2),
    "a trial nested without end": (whole("trials/p/trial.json", DEEP), 2),
    "a trial elsewhere": (in_place_of("trials/p/trial.json", link("/etc/hostname")), 2),
    "a value that is a text": (in_trial(value=MARKUP), 2),
    "a curve of texts": (in_trial(curve={"1": MARKUP}), 2),
    "parameters that are none": (in_trial(params=[]), 2),
    "no window": (in_trial(params={}), 2),
    "a window of markup": (in_trial(params={"window": MARKUP}), 2),
    "figures of texts": (in_trial(figures={"updates": MARKUP, "peak_memory_bytes": MARKUP}), 2),
    "a reason of markup": (in_trial(reason=MARKUP, why=MARKUP), 0),
    "an optimizer of markup": (in_trial(params={"window": 3, "optimizer": MARKUP}), 0),
    "losses of texts": (
        line_of("trials/p/metrics.jsonl", '{"time_s": "", "tokens": 1, "update": 9, "val_loss": ""}'),
        2,
    ),
    "a trace of a stage of 10**18": (lambda folder: event(stage=10**18)(folder / "trials" / "p"), 2),
}


@pytest.mark.parametrize("case", STUDIES)
def test_a_study_is_reported_or_refused(study, case, capsys):
    change, expected = STUDIES[case]
    change(study)
    code, said = tune(["report", str(study)]), capsys.readouterr().err
    assert code == expected, said
    if expected == 0:
        page = (study / "report.html").read_text()
        assert not Scripts(page.partition("<script>")[0]).found
    else:
        assert said.startswith("paci-tune report: ") and len(said.splitlines()) == 1
