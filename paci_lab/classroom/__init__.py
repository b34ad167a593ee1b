"""The classroom: exercises with a check, hints, quizzes, predictions, and what a teacher collects.

How to add an exercise to lesson 02:

1. In `paci_lab/classroom/exercises/lesson_02.py`, add an `Exercise` to the list that `exercises()` returns (for a new
   lesson, write the file with that function). Its sentences stand inside `_(…)`.

       Exercise(
           id="02-bubble",
           title=_("The bubble as a formula"),
           function="bubble",
           difficulty=1,
           minutes=3,
           hints=(_("…"), _("…"), _("…")),
           reference=lambda stages, m: (stages - 1) / (m + stages - 1),
           cases=[Case((2, 1), _("2 stages and m = 1")), Case((4, 8), _("4 stages and m = 8"))],
           compare=close(),
           mistakes=[Mistake(lambda stages, m: (stages - 1) / m, _("That is the share of the work."))],
       )

2. In the lesson, a heading with the exercise's badge, a cell with the function, its solution between marks, and a cell
   with the check. The learner's copy gets `...` instead of what stands between the marks.

       ## Exercise: the bubble as a formula
       `02-bubble` ●○○ · 3 min

       def bubble(stages, m):
           \"\"\"The share of time that is lost.\"\"\"
           # BEGIN SOLUTION
           return (stages - 1) / (m + stages - 1)
           # END SOLUTION

       check("02-bubble", bubble)

   Where there is something to repair, `# INSTEAD OF` and the faulty lines follow the solution; the learner's copy gets
   these, and a check of them as they are fails. See lesson 09.

3. `pytest tests/test_classroom_exercises.py`: it holds the badge to the data, passes the lesson's solution through the
   check, and wants every mistake to be told by its sentence.

An exercise whose function changes something instead of returning it, or needs a model, says how it is called with
`call=`; see `lesson_01.py`. `check` takes along the function's source with the imports, numbers and functions of the
notebook that it uses, and runs it in a process of its own: what is checked is what is collected and graded.
"""

from __future__ import annotations

import sys

from paci_lab.classroom.checking import check
from paci_lab.classroom.client import warm
from paci_lab.classroom.completion import progress
from paci_lab.classroom.exercise import Case, Exercise, Mistake
from paci_lab.classroom.feedback import Feedback
from paci_lab.classroom.hints import hint
from paci_lab.classroom.predictions import predict
from paci_lab.classroom.quizzes import quiz

__all__ = ["Case", "Exercise", "Feedback", "Mistake", "check", "hint", "predict", "progress", "quiz"]

# In a notebook the process that checks starts now: it is ready when the first function is written.
if "ipykernel" in sys.modules:
    warm()
