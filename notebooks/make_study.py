"""Make the study that lesson 06 shows when training is switched off: `python -m notebooks.make_study` (six minutes).

The lesson is executed from top to bottom, and what its study wrote is kept in `notebooks/studies/`, without traces,
snapshots and logs. It is a measurement of the machine that made it, which its environment.json files describe.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from paci_lab.lab import FOLDER, execute
from tuning.notebook import RECORDINGS

NAME = "06-window"
KEPT = ("trial.json", "spec.toml", "environment.json", "metrics.jsonl", "result.json")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        execute(
            FOLDER / "06_tune_the_window.md", Path(folder), environment={"PACI_LAB_TRAIN": "1"}, cell_timeout_s=1200
        )
        keep(Path(folder) / "tune" / NAME, RECORDINGS / NAME)
    return 0


def keep(study: Path, target: Path) -> None:
    """Copy what a reader of the study needs."""
    shutil.rmtree(target, ignore_errors=True)
    for run in (study / "baseline", *sorted(study.glob("trials/*/")), *sorted(study.glob("confirm/*/"))):
        copy = target / run.relative_to(study)
        copy.mkdir(parents=True)
        for name in KEPT:
            if (run / name).exists():
                shutil.copy(run / name, copy / name)
        # The kernel's build name says nothing about the figures, and something about whose machine it was.
        environment = json.loads((copy / "environment.json").read_text(encoding="utf-8"))
        environment["system"] = environment["system"].split()[0]
        (copy / "environment.json").write_text(json.dumps(environment, indent=1) + "\n", encoding="utf-8")
    for name in ("study.toml", "frozen.json"):
        shutil.copy(study / name, target / name)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{NAME}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
