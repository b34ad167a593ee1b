"""`quiz`: the questions of a lesson, answered in the page at once, by jupyterquiz.

A question file is JSON in jupyterquiz's own form, a list of questions of the type multiple_choice. It is read and
checked here first, for an error there would be an empty place in the page: here it is a sentence with file and line.
Every answer has its feedback, so no sentence of the quiz comes from jupyterquiz, which knows English only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError

__all__ = ["FOLDER", "quiz", "read_questions"]

FOLDER = Path(__file__).parent / "questions"
"""One file per lesson: lesson_01.json."""

_COLORS = {
    "--jq-multiple-choice-bg": "#27374f",
    "--jq-mc-button-bg": "#f4f6fa",
    "--jq-mc-button-border": "#6b7787",
    "--jq-correct-color": "#10817c",
    "--jq-incorrect-color": "#ac5414",
    "--jq-text-color": "#fefefe",
}

# What jupyterquiz leaves out: a focus that can be seen, a sign beside the colour, words that can be read on a light
# and on a dark page and are spoken, and answers that Tab reaches one by one: JupyterLab keeps the arrow keys, which
# would go through a group of radio buttons, for itself. Without the group it is up to us that one is chosen at a time.
_STYLE = """<style>
.Quiz .MCButton:focus-within{outline:4px solid #2373bb;outline-offset:2px}
.Quiz .Feedback.correct,.Quiz .Feedback.incorrect{color:#fefefe!important;border-radius:.4em;padding:.3em .6em}
.Quiz .Feedback.correct{background:#10817c}
.Quiz .Feedback.incorrect{background:#ac5414}
.Quiz .Feedback.correct::before{content:"✓ "}
.Quiz .Feedback.incorrect::before{content:"✗ "}
</style>"""
_SCRIPT = """
function complete() {
  document.querySelectorAll('.Quiz').forEach((quiz) => {
    quiz.querySelectorAll('input[type=radio]').forEach((answer) => { answer.name = answer.id; });
    quiz.onchange = (event) => quiz.querySelectorAll('input[type=radio]').forEach((answer) => {
      answer.checked = answer === event.target;
    });
    quiz.querySelectorAll('.Feedback').forEach((said) => said.setAttribute('role', 'status'));
  });
}
[0, 300, 1000, 3000].forEach((milliseconds) => setTimeout(complete, milliseconds));  // the quiz may come a little later
"""

# Where JupyterLab's own MathJax has left its name in the page, jupyterquiz fetches another one from the network. No
# question has formulas, so its code, and nothing else in the page, is told that there is none.
_ALONE = "(() => {{ const MathJax = undefined;\n{script}\n}})();"


def quiz(lesson: str, *, folder: Path = FOLDER) -> None:
    """Show the questions of lesson "01", in the order of their file; raises what `read_questions` raises."""
    questions = read_questions(folder / f"lesson_{lesson}.json")
    from IPython.display import HTML, Javascript, display
    from IPython.utils.capture import capture_output
    from jupyterquiz import display_quiz

    with capture_output(stdout=False, stderr=False) as shown:
        display_quiz(questions, shuffle_answers=False, colors=_COLORS, max_width=760)
    for output in shown.outputs:
        script = output.data.get("application/javascript")
        display(output if script is None else Javascript(_ALONE.format(script=script)))
    display(HTML(_STYLE))
    display(Javascript(_SCRIPT))


def read_questions(path: Path) -> list[dict[str, Any]]:
    """The questions of a file. Raises InputError, naming file and line, for whatever is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
        if not isinstance(json.loads(text), list):
            raise _refuse(path, 1, "not a list", "a list of questions: [ … ]")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(sorted(file.name for file in path.parent.glob("*.json"))) or "a file there"
        raise InputError("questions", path, known, f"check the name ({error})") from None
    except json.JSONDecodeError as error:
        raise _refuse(path, error.lineno, error.msg, "JSON") from None
    except RecursionError:
        raise _refuse(path, 1, "nested too deep", "JSON") from None
    questions = []
    for at, question in _elements(text, 0):
        line = _line(text, at)
        if not isinstance(question, dict) or not _is_text(question.get("question")):
            raise _refuse(path, line, "no question", 'an object with "question", "type" and "answers"')
        if question.get("type") != "multiple_choice":
            raise _refuse(path, line, f"type {question.get('type')!r}", '"type": "multiple_choice"')
        if not isinstance(question.get("answers"), list) or len(question["answers"]) < 2:
            raise _refuse(path, line, "not two answers", '"answers": a list of two or more')
        for here, answer in _elements(text, text.index('"answers"', at)):
            if not (
                isinstance(answer, dict)
                and _is_text(answer.get("answer"))
                and isinstance(answer.get("correct"), bool)
                and _is_text(answer.get("feedback"))
            ):
                raise _refuse(
                    path, _line(text, here), "an answer", '"answer", "correct" (true or false) and "feedback"'
                )
        right = sum(answer["correct"] for answer in question["answers"])
        if right != 1:
            raise _refuse(path, line, f"{right} answers that are correct", "one")
        questions.append(question)
    if not questions:
        raise _refuse(path, 1, "no question", "at least one")
    return questions


def _elements(text: str, start: int) -> Iterator[tuple[int, Any]]:
    """(place, value) of every element of the first list in `text` from `start` on, which is known to be JSON."""
    decoder, at = json.JSONDecoder(), text.index("[", start) + 1
    while True:
        at = re.compile(r"[\s,]*").match(text, at).end()
        if text[at] == "]":
            return
        value, end = decoder.raw_decode(text, at)
        yield at, value
        at = end


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _refuse(path: Path, line: int, what: str, allowed: str) -> InputError:
    return InputError(f"{path} line {line}", what, allowed, "correct that line")
