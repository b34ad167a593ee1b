"""Lesson 09: every fault shows what it should, numbers prove every repair, and a deadlock ends and leaves nothing."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_helpers import session_processes, wait_until

from paci_lab import InputError
from paci_lab.bugs import deadlock
from paci_lab.bugs.babble import GUESSING, batch, build_model, short_batch
from paci_lab.bugs.catalogue import BUGS, Bug
from paci_lab.bugs.charts import curves, in_words, operations
from paci_lab.bugs.faults import FAULTS, answer, name
from paci_lab.bugs.lesson import look, name_the_fault
from paci_lab.bugs.seen import EVALUATION, Seen
from paci_lab.classroom import client
from paci_lab.classroom.checking import judge
from paci_lab.classroom.exercise import find
from paci_lab.lab import lesson_sources, read_lesson

pytestmark = pytest.mark.usefixtures("one_thread")

BY_FAULT = {found.fault: found for found in BUGS}
NAMES = list(BY_FAULT)


@pytest.fixture(scope="module", autouse=True)
def no_process_left():
    yield
    client.stop()
    wait_until(lambda: not rank_processes())


def rank_processes() -> list[int]:
    """The process of the ranks, and the ranks."""
    return session_processes("paci_lab.bugs.ranks")


# -- what is seen -----------------------------------------------------------------------------------------------------
def test_every_fault_has_one_loop():
    assert sorted(NAMES) == sorted(FAULTS) and [found.number for found in BUGS] == list(range(1, 9))


def test_a_sum_is_as_many_times_too_long_as_the_window_is():
    seen, reference = BY_FAULT["summed"].seen, BY_FAULT["summed"].reference
    assert seen.norms[0] / reference.norms[0] == pytest.approx(4, rel=1e-6)
    assert not seen.losses[-1] < 100 and reference.losses[-1] < 0.8  # it diverges


def test_a_schedule_per_micro_batch_is_through_after_a_quarter():
    seen, reference = BY_FAULT["scheduler"].seen, BY_FAULT["scheduler"].reference
    assert seen.rates[3] > 0 and set(seen.rates[4:]) == {0} and reference.rates[-1] == pytest.approx(2 / 16)
    assert seen.losses[4] == seen.losses[-1] > 2.5 and min(seen.norms[4:]) > 0.5


def test_an_evaluation_in_mid_window_takes_half_of_every_third_gradient():
    seen, reference = BY_FAULT["wiped"].seen, BY_FAULT["wiped"].reference
    assert seen.evaluations == 10
    assert seen.norms[0] == reference.norms[0] and 0.4 < seen.norms[1] / reference.norms[1] < 0.7
    order = [(op, number) for _s, _r, op, number, *_rest in seen.events]
    first = order.index(("F", EVALUATION))
    assert order[first - 1] == ("B", 5) and ("B", EVALUATION) not in order
    # What is left is the second half of the window, divided by the whole of it.
    model = build_model()
    seen_first = window_gradient(model, range(4))
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(weights(model) - 2.0 * seen_first, model.parameters())
    assert np.allclose(seen.gradients[1], (window_gradient(model, (6, 7)) / 2).numpy(), atol=1e-6)


def test_dividing_in_every_step_leaves_the_last_micro_batch():
    seen = BY_FAULT["rescaled"].seen
    parts = [window_gradient(build_model(), [number]).numpy() for number in range(4)]
    expected = sum(part / 4 ** (4 - number) for number, part in enumerate(parts))
    assert np.allclose(seen.gradients[0], expected, atol=1e-6)
    assert seen.norms[0] < 0.4 * BY_FAULT["rescaled"].reference.norms[0]


def test_a_mean_of_means_weighs_short_texts_too_much():
    seen, reference = BY_FAULT["means"].seen, BY_FAULT["means"].reference
    assert set(seen.tokens) == {8, 128}
    assert min(seen.losses) > min(reference.losses) + 0.3 and seen.norms[-1] > 2 * reference.norms[-1]
    widths = {end - start for _s, _r, op, number, start, end, *_rest in seen.events if op == "F"}
    assert len(widths) == 2  # the chart shows it


def test_targets_of_another_micro_batch_teach_nothing():
    seen, reference = BY_FAULT["shifted"].seen, BY_FAULT["shifted"].reference
    assert min(seen.losses) > GUESSING - 0.05 and reference.losses[-1] < 0.8
    assert seen.events == reference.events  # and the Gantt chart is without fault
    assert seen.trace().in_flight_peak() == [2, 1] and seen.trace().version_gap_max() == [0, 0]


def test_a_stale_cache_keeps_the_gradient_and_the_loss_turns():
    seen, reference = BY_FAULT["stale"].seen, BY_FAULT["stale"].reference
    assert max(seen.norms) < 1.5 * min(seen.norms) and max(reference.norms) > 2 * min(reference.norms)
    assert seen.losses[-1] > min(seen.losses) + 0.5 and reference.losses[-1] < 0.8
    assert np.allclose(seen.gradients[0], reference.gradients[0], atol=1e-2) and seen.computed_in == "bfloat16"


def test_a_deadlock_is_found_and_leaves_no_process():
    seen = deadlock.run(deadlock.faulty, 1)
    assert not rank_processes()
    assert not seen.losses and len(seen.gradients) == 0
    assert "Rank 0 waits for rank 1 to take its message of micro-batch 1." in seen.stuck
    assert "Rank 1 waits for rank 0 to take its message of micro-batch 0." in seen.stuck
    last = {stage: op for stage, _r, op, *_rest in sorted(seen.events, key=lambda event: event[4])}
    assert all(op.startswith("wait") for op in last.values()) and len(last) == 2
    right = deadlock.run(deadlock.fixed, 1)
    assert not right.stuck and len(right.losses) == 1 and right.trace().in_flight_peak() == [2, 1]


# -- the references are right -----------------------------------------------------------------------------------------
def weights(model) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def window_gradient(model, numbers, make=batch) -> torch.Tensor:
    """Of the mean over all targets of these micro-batches, in one forward and one backward."""
    x, y = (torch.cat(parts) for parts in zip(*(make(number) for number in numbers), strict=True))
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("fault", ["summed", "scheduler", "wiped", "rescaled", "shifted"])
def test_a_reference_is_one_large_batch(fault):
    found = BY_FAULT[fault].reference.gradients[0]
    assert np.allclose(found, window_gradient(build_model(), range(4)).numpy(), atol=1e-6)


def test_the_reference_for_unequal_micro_batches_is_one_large_batch():
    expected = window_gradient(build_model(), range(4), lambda number: (short_batch if number == 3 else batch)(number))
    assert np.allclose(BY_FAULT["means"].reference.gradients[0], expected.numpy(), atol=1e-6)


# -- repairs ----------------------------------------------------------------------------------------------------------
def outcome(found: Bug, function) -> str | None:
    """What the check says of the first case that fails; None when `function` is right. Without a process of its own."""
    exercise = find(f"09-{found.number}")
    for case in exercise.cases:
        values, right = exercise.call(function, *case.arguments), exercise.call(exercise.reference, *case.arguments)
        if difference := exercise.compare(values, right):
            chart = exercise.draw(values, right, case)
            same = values["events"] == [list(event) for event in right["events"]]
            assert chart is None if same else chart.data
            return difference
    return None


SAYS = {
    "summed": "the gradient of update 0 points the right way and is 4 times too long",
    "scheduler": "update 0 is made with a learning rate of 1.625, and 2 is due",
    "wiped": "the gradient of update 1 is another one",
    "rescaled": "the gradient of update 0 is another one",
    "means": "the gradient of update 0 is another one",
    "shifted": "the gradient of update 0 is another one",
    "stale": "the gradient of update 1 is another one",
    "deadlock": "the ranks block each other",
}


@pytest.mark.parametrize("fault", NAMES)
def test_the_fault_fails_and_its_repair_passes(fault):
    found = BY_FAULT[fault]
    assert SAYS[fault] in outcome(found, found.module.faulty)
    assert outcome(found, found.module.fixed) is None


def divides_the_loss(model, optimizer, batches, window):
    BY_FAULT["summed"].module.fixed(model, optimizer, batches, window)


def cache_off(model, optimizer, batches, window):
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        train_plainly(model, optimizer, batches, window)


def cache_cleared(model, optimizer, batches, window):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train_plainly(model, optimizer, batches, window, torch.clear_autocast_cache)


def train_plainly(model, optimizer, batches, window, after=lambda: None):
    for number, (x, y) in enumerate(batches, 1):
        (F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / window).backward()
        if number % window == 0:
            optimizer.step()
            optimizer.zero_grad()
            after()


def puts_the_first_back(stage, optimizer, activations, send_back, targets, window):
    upcoming = iter(targets)
    first = next(upcoming)
    BY_FAULT["shifted"].module.fixed(
        stage, optimizer, activations, send_back, list(itertools.chain([first], upcoming)), window
    )


def takes_one_more_ahead(stage, microbatches):
    stage.receive(0)
    stage.receive(1)
    for k in range(microbatches):
        stage.forward(k)
        stage.backward(k)
        stage.send(k)
        if k + 2 < microbatches:
            stage.receive(k + 2)


@pytest.mark.parametrize(
    ("fault", "function"),
    [
        ("rescaled", divides_the_loss),
        ("stale", cache_off),
        ("stale", cache_cleared),
        ("shifted", puts_the_first_back),
        ("deadlock", takes_one_more_ahead),
    ],
)
def test_other_repairs_pass_too(fault, function):
    assert outcome(BY_FAULT[fault], function) is None


def without_update(model, optimizer, batches, window):
    for x, _y in batches:
        model(x).sum().backward()


def without_gradient(model, optimizer, batches, window):
    for _first in range(0, len(batches), window):
        optimizer.step()


def whole_window_at_once(model, optimizer, batches, window):
    for first in range(0, len(batches), window):
        losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in batches[first : first + window]]
        (sum(losses) / window).backward()
        optimizer.step()
        optimizer.zero_grad()


def moves_weights_itself(model, optimizer, batches, window):
    train_plainly(model, optimizer, batches, window)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    train_plainly(model, optimizer, batches[:window], window)


def not_a_number(model, optimizer, batches, window):
    for x, y in batches[:window]:
        (F.cross_entropy(model(x).flatten(0, 1), y.flatten()) * float("nan")).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (without_update, "the number of updates is 0, and 1 are due"),
        (without_gradient, "update 0 is made without any gradient"),
        (whole_window_at_once, "the numbers are right, but stage 0 holds 4 micro-batches at once: 1 are enough"),
        (moves_weights_itself, "the number of updates is 2, and 1 are due"),
        (not_a_number, "the gradient of update 0 is no finite number any more"),
    ],
)
def test_what_else_learners_do_gets_a_sentence(function, says):
    assert says in outcome(BY_FAULT["summed"], function)


def test_the_check_itself_ends_a_deadlock(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = BY_FAULT["deadlock"]
    feedback = judge(dataclasses.replace(find("09-8"), seconds=60), found.source("faulty"), found.function)
    assert feedback.state == "failed" and SAYS["deadlock"] in feedback.sentence
    assert feedback.sentence.endswith("its fault is still in it.") and feedback.figure.data
    wait_until(lambda: not rank_processes())


# -- ranks that misbehave ---------------------------------------------------------------------------------------------
def raises(stage, microbatches):
    return 1 / 0


def leaves(stage, microbatches):
    os._exit(0)


def too_early(stage, microbatches):
    stage.forward(0)


def ends_early(stage, microbatches):
    stage.receive(0)


def prints_megabytes(stage, microbatches):
    print("x" * 5_000_000)
    deadlock.fixed(stage, microbatches)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raises, "ZeroDivisionError: division by zero"),
        (leaves, "rank 1 ended in the middle of its work"),
        (too_early, "rank 1 does not have the activation of micro-batch 0 yet"),
    ],
)
def test_a_rank_that_fails_says_why(function, says):
    with pytest.raises(RuntimeError, match=says):
        deadlock.run(function, 1)
    assert not rank_processes()


def test_a_rank_that_has_ended_keeps_the_other_waiting():
    assert "Rank 1 has come to its end." in deadlock.run(ends_early, 1).stuck
    assert deadlock.run(prints_megabytes, 1).losses == deadlock.run(deadlock.fixed, 1).losses


def never_ends(stage, microbatches):
    while True:
        pass


@pytest.mark.slow
def test_a_rank_that_loops_for_ever_is_ended():
    with pytest.raises(RuntimeError, match="rank 1 has done nothing for 5 s"):
        deadlock.run(never_ends, 1)
    assert not rank_processes()


def test_ranks_end_with_the_process_that_started_them():
    hub = subprocess.Popen([sys.executable, "-m", "paci_lab.bugs.ranks"], stdin=subprocess.PIPE, text=True)
    try:
        hub.stdin.write(deadlock.request(never_ends, 1))
        hub.stdin.close()
        wait_until(lambda: len(rank_processes()) == 3)
    finally:
        hub.send_signal(signal.SIGKILL)
        hub.wait()
    wait_until(lambda: not rank_processes())


# -- what the learner meets -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", NAMES)
def test_every_choice_is_answered_with_what_was_measured(fault):
    found = BY_FAULT[fault]
    answers = {guess: answer(guess, fault, found.seen, found.reference) for guess in FAULTS}
    assert [guess for guess, words in answers.items() if words.startswith("Right.")] == [fault]
    assert len(set(answers.values())) == 8 and not any("nan" in words for words in answers.values())


def test_the_question_answers_at_once():
    question = name_the_fault(1)
    assert [words for words, _key in question.choice.options] == [name(fault) for fault in FAULTS]
    question.choice.value = "means"
    assert "Not this one." in question.feedback.value and "every micro-batch has 128" in question.feedback.value
    question.choice.value = "summed"
    assert "Right." in question.feedback.value and "4.00 times as long" in question.feedback.value
    assert 'role="status"' in question.feedback.value


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_charts_of_a_loop(theme):
    for found in BUGS:
        figure = curves(found.seen, found.reference, theme=theme)
        assert [len(line.x) for line in figure.data] == 2 * [len(found.reference.losses), len(found.seen.losses)]
        assert len({line.line.dash for line in figure.data}) == 2  # told apart without colour
        assert operations(found.seen, updates=found.drawn, theme=theme).data
    first, last = BUGS[0], BUGS[-1]
    figure = curves(first.seen, first.reference, theme=theme)
    assert all("leaves the chart in update" in note.text for note in figure.layout.annotations)
    assert len(figure.layout.annotations) == 2 and None in figure.data[1].y
    assert in_words(first.seen, first.reference).count("<tr>") == 17  # the same for those who cannot see it
    assert in_words(last.seen, last.reference).count("<td") == 12
    assert "no update" in curves(last.seen, last.reference, theme=theme).layout.annotations[0].text


def test_a_loop_that_is_not_there_is_refused():
    for wrong in (0, 9, "1"):
        with pytest.raises(InputError, match="1..8"):
            look(wrong)


def test_seen_comes_back_from_its_values():
    for found in (BUGS[0], BUGS[-1]):
        back = Seen.of(found.seen.values())
        assert np.array_equal(back.gradients, found.seen.gradients, equal_nan=True)
        assert back.events == found.seen.events and back.losses[:4] == found.seen.losses[:4]


# -- the lesson -------------------------------------------------------------------------------------------------------
def test_the_lesson_has_the_loops_of_this_room():
    source = next(path for path in lesson_sources() if path.stem.startswith("09_"))
    for solutions, which in ((False, "faulty"), (True, "fixed")):
        cells = [cell.source for cell in read_lesson(source, solutions=solutions).cells if cell.cell_type == "code"]
        for found in BUGS:
            (cell,) = [text for text in cells if f"def {found.function}(" in text]
            assert ast.dump(ast.parse(cell)) == ast.dump(ast.parse(found.source(which)))
    text = source.read_text(encoding="utf-8")
    rank_0 = re.search(r"^def rank_0.*?(?=^```)", text, re.MULTILINE | re.DOTALL)[0]
    assert rank_0 in Path(deadlock.__file__).read_text(encoding="utf-8")
    for number in range(1, 9):
        assert f"bugs.look({number})" in text and f"bugs.name_the_fault({number})" in text
