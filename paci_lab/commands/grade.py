"""`paci-lab grade`: the completion files of a class, checked again, in one table."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape

from paci_lab.commands.common import add_json_argument, console, print_table, write_figures
from paci_lab.language import _

HELP = "check the completion files of a class again, offline, and print who solved what"
EXAMPLE = "paci-lab grade collected/ --json grades.json"


_SIGNS = {"passed": "✓", "failed": "✗", "missing": "·", "claimed": "!"}
"""One character each: a lesson's marks stand side by side, and a class fits into 80 columns."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the files are; folders in it are read too")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from paci_lab.classroom import client
    from paci_lab.classroom.exercise import every_exercise
    from paci_lab.classroom.grade import grade

    screen = console()
    try:
        graded, refused = grade(arguments.folder, say=lambda sentence: screen.print(sentence, markup=False))
    finally:
        client.stop()
    every = every_exercise()
    lessons: dict[str, list[str]] = {}
    for exercise in every:
        lessons.setdefault(exercise.lesson, []).append(exercise.id)
    words = "  ".join(f"{lesson} {', '.join(name[3:] for name in names)}" for lesson, names in lessons.items())
    several = {found.learner for found in graded if sum(found.learner == other.learner for other in graded) > 1}
    print_table(
        _("Exercises solved, checked again"),
        [_("learner"), _("solved"), *lessons],
        [
            (
                escape(f"{found.learner} ({found.file})" if found.learner in several else found.learner),
                f"{found.count('passed')}/{len(every)}",
                *("".join(_SIGNS[found.exercises[name][0]] for name in names) for names in lessons.values()),
            )
            for found in graded
        ],
        notes=[
            _("✓ passed   ✗ failed   · missing   ! claimed to pass, and does not"),
            _("A column is a lesson, and in it a mark is an exercise, in this order: {exercises}").format(
                exercises=words
            ),
        ],
        left=2 + len(lessons),
        padding=0,  # names keep 35 of 80 columns
    )
    for found in graded:
        for name, (state, sentence) in found.exercises.items():
            if state == "claimed":
                screen.print(f"{found.learner}, {name}: {sentence}", markup=False, soft_wrap=True)
    for one in refused:
        screen.print(_("Left out: {why}").format(why=one.why), markup=False, soft_wrap=True)
    write_figures(
        arguments.json,
        {
            "learners": [
                {
                    "learner": found.learner,
                    "file": found.file,
                    "solved": found.count("passed"),
                    "exercises": {
                        name: {"state": state, "sentence": said} for name, (state, said) in found.exercises.items()
                    },
                }
                for found in graded
            ],
            "left_out": [{"file": one.file, "why": one.why} for one in refused],
        },
    )
    return 0
