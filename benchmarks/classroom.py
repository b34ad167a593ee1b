"""How long a learner waits for a check: `python -m benchmarks.classroom [--json FILE]`.

Each figure is the median of the runs, with the smallest and the largest. "at once" is a check in the moment in which
the notebook imports the classroom, so it waits until the process that checks has imported torch; the others come later.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from paci_lab.classroom import client
from paci_lab.classroom.checking import judge
from paci_lab.classroom.exercise import every_exercise, find
from paci_lab.lab import solution

IMPORTS = "import math, torch\nimport torch.nn.functional as F\n"
WRONG = 'def order(stage, stages, m):\n    return [f"{kind}{k}" for kind in "FB" for k in range(m)]\n'


def seconds(action, repeats: int) -> dict[str, float]:
    """Median, least and most of `repeats` runs."""
    taken = []
    for _number in range(repeats):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return {"median_s": statistics.median(taken), "least_s": min(taken), "most_s": max(taken), "runs": repeats}


def at_once() -> None:
    client.stop()
    judge(find("00-bubble"), IMPORTS + solution("00", "bubble"), "bubble")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    os.chdir(tempfile.mkdtemp())
    figures = {"at once": seconds(at_once, 7)}
    for exercise in every_exercise():
        source = IMPORTS + (solution(exercise.lesson, exercise.function) or "")
        judge(exercise, source, exercise.function)  # the reference may have something to import, once
        figures[exercise.id] = seconds(lambda e=exercise, s=source: judge(e, s, e.function), 15)
    figures["02-order, wrong, drawn"] = seconds(lambda: judge(find("02-order"), WRONG, "order"), 15)
    resident = Path(f"/proc/{client._server.pid}/statm").read_text().split()[1]
    client.stop()
    for name, row in figures.items():
        print(f"{name:26} {row['median_s']:6.3f} s  ({row['least_s']:.3f} to {row['most_s']:.3f}, {row['runs']} runs)")
    print(f"the process that checks holds {int(resident) * os.sysconf('SC_PAGE_SIZE') / 2**20:.0f} MiB")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
