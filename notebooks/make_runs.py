"""Make the recordings that lessons show when training is switched off: `python -m notebooks.make_runs` (minutes).

Every lesson that trains is executed from top to bottom, and what it trains is recorded into `notebooks/runs/<name>`:
run directories without snapshots and logs. They are measurements of the machine that made them, which environment.json
describes.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from paci_lab.lab import execute, lesson_sources
from paci_lab.lessons import RECORD, RECORDINGS
from paci_lab.runtime.rundir import write_json

KEPT = ("spec.toml", "environment.json", "metrics.jsonl", "result.json", "trace", "updates")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "runs"
        for lesson in lesson_sources():
            text = lesson.read_text(encoding="utf-8")
            if "lessons.start(" not in text and "lessons.loss_curve(" not in text:
                continue
            print(f"executing {lesson.name}", flush=True)
            execute(lesson, Path(folder), environment={RECORD: str(made)})
        for run in sorted(made.iterdir()):
            keep(run, RECORDINGS / run.name)
    return 0


def keep(run: Path, target: Path) -> None:
    """Copy what a reader of the run needs."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in KEPT:
        if (run / name).is_dir() and any((run / name).iterdir()):
            shutil.copytree(run / name, target / name)
        elif (run / name).is_file():
            shutil.copy(run / name, target / name)
    # The kernel's build name says nothing about the figures, and something about whose machine it was.
    environment = json.loads((target / "environment.json").read_text(encoding="utf-8"))
    environment["system"] = environment["system"].split()[0]
    write_json(target / "environment.json", environment)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{target.name}: {size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
