"""Every exercise: its solution passes, every known mistake is told by its sentence, and the page fits the data."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch

from paci_lab import InputError
from paci_lab.classroom import client
from paci_lab.classroom.checking import judge
from paci_lab.classroom.compare import close_tensor
from paci_lab.classroom.draw import draw_order
from paci_lab.classroom.exercise import Case, Exercise, every_exercise, find
from paci_lab.classroom.hints import hint
from paci_lab.classroom.quizzes import FOLDER, read_questions
from paci_lab.classroom.values import decode, encode
from paci_lab.lab import lesson_sources, read_lesson, solution

EXERCISES = every_exercise()
IDS = [exercise.id for exercise in EXERCISES]
LESSONS = {path.stem[:2]: path for path in lesson_sources()}


@pytest.fixture(scope="module", autouse=True)
def server():
    yield
    client.stop()


def test_every_lesson_has_an_exercise_and_lesson_01_has_four():
    assert len(set(IDS)) == len(IDS) and IDS == sorted(IDS, key=lambda name: name[:2])
    lessons = [exercise.lesson for exercise in EXERCISES]
    assert set(lessons) >= {f"{number:02}" for number in range(9)} and lessons.count("01") == 4


@pytest.mark.parametrize("exercise", EXERCISES, ids=IDS)
def test_an_exercise_and_its_place_in_the_lesson(exercise: Exercise):
    assert 1 <= exercise.difficulty <= 3 and 1 <= exercise.minutes <= 20 and len(set(exercise.hints)) == 3
    text = LESSONS[exercise.lesson].read_text(encoding="utf-8")
    assert f"`{exercise.id}` {exercise.badge}" in text, f"the badge should be: `{exercise.id}` {exercise.badge}"
    assert f'check("{exercise.id}", {exercise.function})' in text and f'hint("{exercise.id}")' in text


@pytest.mark.parametrize("exercise", EXERCISES, ids=IDS)
def test_the_lessons_solution_passes_and_the_learners_copy_is_open(exercise: Exercise):
    solved = solution(exercise.lesson, exercise.function)
    imports = "import math, torch\nimport torch.nn.functional as F\n"
    exercise = dataclasses.replace(exercise, seconds=60)  # a busy machine
    feedback = judge(exercise, imports + solved, exercise.function)
    assert feedback.passed, feedback
    cells = [cell.source for cell in read_lesson(LESSONS[exercise.lesson]).cells if cell.cell_type == "code"]
    (stub,) = [cell for cell in cells if f"def {exercise.function}(" in cell]
    repair = "# INSTEAD OF" in LESSONS[exercise.lesson].read_text(encoding="utf-8")
    assert judge(exercise, imports + stub, exercise.function).state == ("failed" if repair else "open")


@pytest.mark.parametrize("exercise", EXERCISES, ids=IDS)
def test_every_known_mistake_is_told_by_its_sentence(exercise: Exercise):
    def ask_here(asked, source, name):
        """The server's answer, for a function of ours that is no text."""
        values = [asked.call(wrong.function, *case.arguments) for case in asked.cases]
        lines = [{"case": number, "value": encode(value)} for number, value in enumerate(values)] + [{"end": True}]
        return {
            "lines": list(map(json.dumps, lines)),
            "printed": "",
            "printed_bytes": 0,
            "ended": "well",
            "detail": 0,
        }

    assert exercise.mistakes
    for wrong in exercise.mistakes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "ask", ask_here)
            feedback = judge(exercise, "", exercise.function)
        assert feedback.state == "failed" and feedback.sentence.endswith(wrong.sentence), feedback


@pytest.mark.parametrize("name", ["01-loop", "01-unequal"])
def test_a_loop_that_leaves_no_gradient_is_asked_for_backward(name):
    feedback = judge(find(name), "def f(model, x, y, parts):\n    return model(x).sum()\n", "f")
    assert "nothing is in .grad afterwards. Do you call backward()" in feedback.sentence


def test_a_tensor_that_differs_is_told_in_plain_words():
    compare = close_tensor()
    assert compare(torch.tensor([0.0, 2.0]), torch.tensor([2.0, 0.0])) == (
        "its numbers are wrong: they are off by 141% of the size of the right ones."
    )
    assert "all should be 0" in compare(torch.ones(2), torch.zeros(2))


def test_two_orders_that_are_equal_are_not_drawn():
    case = Case((2, 2), "2 stages")
    right = [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]]
    assert draw_order(right, right, case) is None and draw_order(right[::-1][:1], right[:1], case) is None
    assert draw_order([right[0]] * 2, right, case) is not None
    loop = find("09-1")
    seen = [loop.call(function, *loop.cases[0].arguments) for function in (loop.mistakes[0].function, loop.reference)]
    assert loop.draw(*seen, loop.cases[0]) is None  # it differs in its gradients, and in no operation


def test_hints_are_folded_into_each_other_and_end_with_the_solution():
    html = hint("01-loop")._repr_html_()
    assert html.count("<details") == 4 and html.index("</details>") > html.index("The solution")
    assert "mean_loss_of(model, xs, ys) / parts" in html and "BEGIN SOLUTION" not in html


# -- questions --------------------------------------------------------------------------------------------------------
def test_every_question_file_is_right_and_shown_in_its_lesson():
    files = sorted(FOLDER.glob("*.json"))
    assert len(files) >= 8
    for file in files:
        assert 2 <= len(read_questions(file)) <= 4
        assert f'quiz("{file.stem[-2:]}")' in LESSONS[file.stem[-2:]].read_text(encoding="utf-8")


GOOD = """[
  {"question": "One?", "type": "multiple_choice",
   "answers": [{"answer": "a", "correct": true, "feedback": "Yes."},
               {"answer": "b", "correct": false, "feedback": "No."}]},
  {"question": "Two, [with] brackets?", "type":  "multiple_choice",
   "answers": [{"answer": "[", "correct": true, "feedback": "So."},
               {"answer": "B", "correct": false, "feedback": "No."}]}
]"""


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('"So."},', '"So."}', 7, "delimiter"),
        ('"[", "correct": true', '"[", "correct": "yes"', 6, "correct"),
        ('{"answer": "B", "correct": false, "feedback": "No."}', '{"answer": "B", "correct": false}', 7, "feedback"),
        ('"[", "correct": true', '"[", "correct": false', 5, "0 answers that are correct"),
        ('"question": "Two', '"ask": "Two', 5, "question"),
        ('"type":  "multiple_choice"', '"type": "numeric"', 5, "numeric"),
        (GOOD, "[]", 1, "no question"),
        (GOOD, "{}", 1, "a list"),
        (GOOD, "[" * 100_000, 1, "nested"),
    ],
)
def test_a_question_file_with_an_error_names_its_line(tmp_path, old, new, line, says):
    file = tmp_path / "lesson_01.json"
    file.write_text(GOOD)
    assert len(read_questions(file)) == 2
    assert GOOD.count(old) == 1
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError, match=rf"lesson_01.json line {line} = .*{re.escape(says)}"):
        read_questions(file)


def test_a_question_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="Check the name"):
        read_questions(tmp_path / "lesson_99.json")


# -- values on their way ----------------------------------------------------------------------------------------------
def test_values_come_back_as_they_were_and_others_are_refused():
    for value in (None, True, 3, -2.5, "ä", [1, ["F0"]], {"a": [1.0]}):
        assert decode(encode(value)) == value
    for value in ({}, {"a": 1}, {"tensor": [1], "shape": [2]}, {"tensor": ["x"], "shape": [1]}, {"dict": [[1, 2]]}):
        with pytest.raises(ValueError):
            decode(value)
