"""Make the recordings that stand in for a live race: `python -m notebooks.make_race` (three minutes).

What the scenes of `paci-lab present` race is run, one after the other, and recorded into `notebooks/runs/race-<name>`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from notebooks.make_runs import keep
from paci_lab.lessons import RECORDINGS
from paci_lab.present.scenes import BASE, RATES
from paci_lab.runtime.launch import launch
from paci_lab.runtime.rundir import write_json


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for contender, rate in RATES.items():
            schedule, window = contender.split(":")
            spec = BASE.replace(schedule=schedule, window=int(window), learning_rate=rate)
            name = f"race-{schedule}-{window}"
            run = launch(spec, Path(folder) / name)
            run.wait()
            keep(run.path, RECORDINGS / name)
            file = RECORDINGS / name / "environment.json"
            write_json(file, json.loads(file.read_text(encoding="utf-8")) | {"recorded": time.strftime("%Y-%m-%d")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
