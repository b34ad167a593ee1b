"""Accumulation in other frameworks: the reference is the whole batch's gradient, and who agrees with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from paci_lab import InputError, RunFailed
from paci_lab.frameworks import CASES, FRAMEWORKS, Case, compare, installed_version, run
from paci_lab.frameworks import registry as registry_module
from paci_lab.frameworks.compare import Comparison, difference
from paci_lab.frameworks.hand import train
from paci_lab.frameworks.lesson import RECORDED, SEGMENTED, TRAININGS
from paci_lab.frameworks.probe import Meter
from paci_lab.frameworks.segment import segment

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("equal", "unequal", "unequal, naive", "partial", "partial, naive", "clip", "clip, naive")
SHORT = [case for case in CASES if case.name in (*NAMES, "schedule", "schedule, naive", "BatchNorm", "GroupNorm")]

RIGHT = {
    "hand": {"equal", "unequal", "partial", "clip"},
    "trainer": {"equal", "unequal", "partial", "partial, naive", "clip"},
    "accelerate": {"equal", "unequal", "partial", "clip"},
    "lightning": {"equal", "unequal", "partial", "clip", "clip, naive"},
    "fsdp2": {"equal", "unequal", "partial", "clip", "clip, naive"},
    "deepspeed": {"equal", "unequal", "clip", "clip, naive"},
}
"""Which of NAMES each framework does right, on the pinned versions. "clip, naive" is no other use in three of them."""

NAIVE_SCHEDULE_RIGHT = {"trainer", "deepspeed"}


def installed(name: str) -> str:
    if not (version := installed_version(name)):
        pytest.skip(f"{FRAMEWORKS[name].package} is not installed: make setup EXTRAS=test,frameworks")
    return version


# -- the reference ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model, equal", [("femto", True), ("unet-groupnorm", True), ("unet-batchnorm", False)])
def test_the_hand_written_loop_has_the_gradient_of_the_whole_batch(model, equal):
    parts = train(Case(name="parts", model=model, rows=2, window=4, microbatches=4, unequal=model == "femto"))
    whole = train(Case(name="whole", model=model, rows=8, window=1, microbatches=1, unequal=model == "femto"))
    (ours,), (reference,) = parts.gradients, whole.gradients
    assert (difference(ours, reference)[0] < 1e-5) is equal
    assert equal or difference(ours, reference)[0] > 0.05


def test_checkpointing_changes_no_number_and_takes_less():
    case = Case(name="memory", model="pico", rows=4, microbatches=1, window=1)
    with Meter() as plain:
        reference = train(case)
    with Meter() as saved:
        result = train(case.replace(checkpointing=True))
    assert difference(result.gradients[0], reference.gradients[0])[0] == 0
    assert saved.peak < 0.75 * plain.peak


def test_the_meter_counts_what_is_alive_once():
    with Meter() as meter:
        x = torch.empty(1000)
        y = x.view(10, 100)[2:]  # the same storage
        y.add_(1)
        assert meter.now == meter.peak == 4000
        del x, y
        assert meter.now == 0
        weight = torch.ones(10, 10, requires_grad=True)
        kept = (weight * 2).exp()  # kept for the backward by autograd alone
        loss = kept.sum()
        del kept
        assert meter.now == 400 + 400 + 4
        loss.backward()
    assert meter.peak >= 4000


# -- the frameworks ---------------------------------------------------------------------------------------------------
def check(name: str) -> None:
    result, by_name = compare(SHORT, [name]), {case.name: case for case in SHORT}
    assert not (reasons := {row.why for row in result.rows if row.why}), reasons
    assert max(result.row(name, "equal").differences) < 1e-6
    assert {case for case in NAMES if result.row(name, case).right} == RIGHT[name]
    assert result.row(name, "schedule").schedule
    assert result.row(name, "schedule, naive").schedule == (name in NAIVE_SCHEDULE_RIGHT)
    batch, group = (max(result.row(name, norm).differences) for norm in ("BatchNorm", "GroupNorm"))
    if name == "fsdp2":  # a rank sees one image: other statistics, and a convolution that rounds otherwise
        assert batch > 0.1 and group < 1e-3
    else:
        assert batch < 1e-5 and group < 1e-5
    partial = result.row(name, "partial")
    assert (partial.unused, len(partial.differences)) == ((2, 2) if name == "deepspeed" else (0, 3))
    for case in ("equal", "unequal"):
        assert result.row(name, case).losses == pytest.approx(train(by_name[case]).losses, rel=1e-5)


@pytest.mark.slow
def test_fsdp2_on_two_ranks():
    check("fsdp2")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name != "fsdp2"])
def test_framework(name):
    installed(name)
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FRAMEWORKS))
def test_bf16_and_checkpointing(name):
    installed(name)
    case = Case(name="both", microbatches=4, window=2, bf16=True, checkpointing=True, measured=True)
    row = compare([case, case.replace(name="bf16", checkpointing=False)], [name]).row(name, "both")
    assert len(row.differences) == 2 and row.peak_bytes and row.seconds
    assert max(row.differences) < (0.2 if name == "fsdp2" else 1e-5), row.worst  # fsdp2 rounds elsewhere


# -- refusals and failures --------------------------------------------------------------------------------------------
def test_an_unknown_framework_is_refused():
    with pytest.raises(InputError, match="framework = jax.*trainer"):
        compare([Case(name="equal")], ["jax"])


def test_one_that_is_not_installed_is_named_with_the_extra(monkeypatch):
    def version(package: str) -> str:
        if package == "lightning":
            raise registry_module.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(registry_module, "version", version)
    with pytest.raises(InputError, match=r"lightning \(not installed\).*EXTRAS=test,frameworks"):
        run("lightning", [Case(name="equal")])
    case = Case(name="equal", microbatches=2, window=2)
    without = compare([case], ["hand", "lightning"])
    assert without.row("hand", "equal").right and "Install the extra" in without.row("lightning", "equal").why
    assert "PyTorch Lightning: framework = lightning (not installed)" in without.table("equal")
    stands_in = compare([case], ["lightning"], recorded=Comparison.load(RECORDED))
    assert stands_in.row("lightning", "equal").right and "(recorded)" in stands_in.table("equal")


@pytest.mark.parametrize(
    "wrong",
    [{"window": 0}, {"naive": "all"}, {"model": "unet-layernorm"}, {"model": "unet-groupnorm", "unequal": True}],
)
def test_impossible_cases_are_refused(wrong):
    with pytest.raises(InputError):
        Case(name="wrong", **wrong)


def test_a_training_that_fails_says_how():
    with pytest.raises(RunFailed, match=r"rank 0: exit code 1.*\n(.*\n)*.*none-such"):
        run("hand", [Case(name="wrong", model="none-such")])


def test_children_end_with_their_parent():
    code = "from paci_lab.frameworks import Case, run\nrun('hand', [Case(name=f'long {n}') for n in range(100_000)])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 120
        while not (children := _children(parent.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert children
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 120
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_alive, children))


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        pytest.skip("needs /proc")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# -- segmentation and the recording -----------------------------------------------------------------------------------
def test_segmentation_learns():
    before = segment("groupnorm", rows=2, window=16, updates=1)
    after = segment("groupnorm", rows=8, window=4, updates=12)
    assert after.train_loss < 0.8 * before.train_loss and after.overlap > 0.4


def test_the_recording_has_every_framework_and_case():
    recorded = Comparison.load(RECORDED)
    assert not [row for row in recorded.rows if row.why]
    for name in FRAMEWORKS:
        assert {case for case in NAMES if recorded.row(name, case).right} == RIGHT[name]
        exchange = set() if name == "fsdp2" else {"float32, naive"}
        cases = {case.name for case in CASES} - exchange
        assert cases == {row.case for row in recorded.rows if row.framework == name}
    assert recorded.machine and RECORDED.stat().st_size < 200_000
    assert len(json.loads(SEGMENTED.read_text())["rows"]) == len(TRAININGS)
