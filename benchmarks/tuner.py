"""How good the tuner's pick is and what it costs, against searching everything: `python -m benchmarks.tuner`.

`record` trains every window of both sides with several seeds on paced devices (about a quarter of an hour) into run
directories. Studies are then replayed over them, each with the seeds in another order: a trial gets the recorded run of
its point and seed, evaluation by evaluation, and is stopped where the tuner stops it.
`scale` times a study with 1,000 finished trials.
`live` runs real studies on paced devices against searching everything, in less than 20 minutes; see tuner_live.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tuning
from benchmarks.tuner_live import FOLDER as LIVE_FOLDER
from benchmarks.tuner_live import live
from paci_lab import InputError, TrainSpec, launch, open_run
from paci_lab.commands.common import print_table, write_figures
from tuning.confirm import FRESH
from tuning.trial import Trial

BASE = TrainSpec(
    stages=4,
    window=4,
    microbatches=600,
    model="femto",
    microbatch_size=2,
    device="cpu",
    partition=[1, 2, 2, 1],
    pace_forward_ms=4.0,
    pace_backward_ms=8.0,
    learning_rate=1e-3,
    learning_rate_schedule="constant",
    warmup=0.05,
    weight_decay=0.0,
    evaluate_every=10,
    target_loss=3.25,
)
SPACE = tuning.Space(windows=(1, 2, 3, 6, 12), flush_windows=(2, 4, 8, 16), learning_rate_rule="constant")
SEEDS = 5
STUDIES = 10
FOLDER = Path("runs/tuner-landscape")


class Replayed:
    """A launcher whose trials are recorded runs.

    Args:
        folder: of the recordings.
        order: the recorded seed that stands for seed 0 of the study, for seed 1, and so on in a circle.
    """

    name, here = "replayed", True

    def __init__(self, *, folder: str, order: list[int]) -> None:
        self.folder, self.order = Path(folder), order

    def start(self, spec: TrainSpec, run_dir: Path) -> ReplayedJob:
        return ReplayedJob(recording(self.folder, spec, self.order[spec.seed % SEEDS]), spec, run_dir)

    def cancel(self, job_id: str) -> None:
        """Nothing runs."""


class ReplayedJob:
    """Hands out the rows of a recording, up to one evaluation per question for its state."""

    id = ""

    def __init__(self, source: Path, spec: TrainSpec, run_dir: Path) -> None:
        self.source, self.run_dir = source, run_dir
        run_dir.mkdir(parents=True)
        for name in ("environment.json", "updates"):
            copy = shutil.copytree if (source / name).is_dir() else shutil.copy
            copy(source / name, run_dir / name)
        spec.save(run_dir / "spec.toml")
        lines = (source / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        cut = next(
            (n for n, line in enumerate(lines) if json.loads(line).get("val_loss", 9e9) <= (spec.target_loss or 0)),
            len(lines) - 1,
        )
        self.lines, self.stopped = lines[: cut + 1], False

    def state(self) -> str:
        if self.stopped:
            return "ended"
        if not self.lines:
            shutil.copy(self.source / "result.json", self.run_dir / "result.json")
            return "ended"
        upto = next((n for n, line in enumerate(self.lines) if "val_loss" in line), len(self.lines) - 1) + 1
        with open(self.run_dir / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.writelines(self.lines[:upto])
        self.lines = self.lines[upto:]
        return "running"

    def stop(self) -> None:
        self.stopped = True


def recording(folder: Path, spec: TrainSpec, seed: int) -> Path:
    return folder / f"{spec.schedule}-{spec.window}-{seed}"


def specs() -> list[TrainSpec]:
    sides = [SPACE.side(name, BASE) for name in ("paci", "flush")]
    return [
        side.spec(point, seed).replace(target_loss=BASE.target_loss)
        for seed in range(SEEDS)
        for side in sides
        for point in side.points()
    ]


def record(folder: Path) -> None:
    """Train what is not recorded yet."""
    for spec in specs():
        path = recording(folder, spec, spec.seed)
        if (path / "result.json").exists():
            continue
        shutil.rmtree(path, ignore_errors=True)
        result = launch(spec.replace(trace=False), path).wait()
        shutil.rmtree(path / "snapshots")
        print(
            f"{path.name}: target after {result['time_to_target_s']} s, loss {result['best_val_loss']:.3f}", flush=True
        )


def replay(folder: Path) -> dict[str, Any]:
    """Ten studies over the recordings against all of them."""
    if missing := [s for s in specs() if not (recording(folder, s, s.seed) / "result.json").exists()]:
        raise InputError(
            "recordings",
            folder,
            f"a folder with all of them, {len(missing)} are missing",
            "run python -m benchmarks.tuner record",
        )
    times: dict[str, list[float]] = {}
    spent = 0.0
    for spec in specs():
        result = open_run(recording(folder, spec, spec.seed)).result()
        spent += result["time_to_target_s"] or result["wall_time_s"]
        times.setdefault(f"{'paci' if spec.schedule == 'paci' else 'flush'}-{spec.window}", []).append(
            result["time_to_target_s"] or 9e9
        )
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians, key=medians.__getitem__)
    rows, studies = [], []
    for number in range(STUDIES):
        with tempfile.TemporaryDirectory() as place:
            settings = tuning.Settings(
                base=BASE,
                space=SPACE,
                budget_s=1e6,
                launcher=f"{Path(__file__).resolve()}:Replayed",
                launcher_options={
                    "folder": str(folder.resolve()),
                    "order": random.Random(number).sample(range(SEEDS), SEEDS),
                },
            )
            study = tuning.Study.create(Path(place) / "s", settings)
            began = time.monotonic()
            found = study.run()
            took, trials = time.monotonic() - began, study.trials()
        search = sum(t.training_s for t in trials if t.phase in ("baseline", "search"))
        confirmation = sum(t.training_s for t in trials if t.phase in ("shared", "final"))
        pick = found["point"]
        studies.append(
            {
                "pick": pick,
                "ratio": medians[pick] / medians[best],
                "search": search / spent,
                "confirmation": confirmation / spent,
                "overhead_s": took / len(trials),
            }
        )
        rows.append(
            [
                str(number),
                pick,
                f"{studies[-1]['ratio']:.3f}",
                f"{search / spent:.0%}",
                f"{confirmation / spent:.0%}",
                f"{took / len(trials):.2f} s",
            ]
        )
    near = sum(s["ratio"] <= 1.05 for s in studies)
    print_table(
        f"replayed studies; exhaustive search: {len(medians)} points × {SEEDS} seeds, {spent:.0f} s of "
        f"training, best {best} ({medians[best]:.1f} s)",
        ["study", "pick", "time / best's", "search: share\nof exhaustive", "confirmation", "controller\nper trial"],
        rows,
        notes=[
            f"within 5 % of the best: {near} of {STUDIES}; each study sees the recorded seeds in an order of its own",
            "medians: "
            + ", ".join(
                f"{n} {v:.1f}" if v < 9e8 else f"{n} missed" for n, v in sorted(medians.items(), key=lambda i: i[1])
            ),
        ],
    )
    return {"best": best, "medians": medians, "within_5_percent": near, "studies": studies}


def scale(folder: Path, count: int = 1000) -> dict[str, float]:
    """Seconds to open, report and resume a study with `count` finished trials."""
    from tuning.search import rebuild

    with tempfile.TemporaryDirectory() as place:
        source = next(iter(sorted(folder.glob("1f1b-4-0"))), None)
        if source is None:
            raise InputError("recordings", folder, "a folder with them", "run python -m benchmarks.tuner record")
        space = tuning.Space.from_dict(
            {"windows": "1..64", "flush_windows": "1..64", "learning_rate_scales": "0.25..4"}
        )
        settings = tuning.Settings(
            base=BASE,
            space=space,
            budget_s=1e6,
            confirm_seeds=1,
            launcher=f"{Path(__file__).resolve()}:Replayed",
            launcher_options={"folder": str(folder.resolve()), "order": list(range(SEEDS))},
        )
        study = tuning.Study.create(Path(place) / "s", settings)
        Path(study.folder / "controllers").mkdir()
        frozen = study.freeze(study.launcher(), lambda sentence, trial: None)
        for number in range(count):
            side = ("paci", "flush")[number % 2]
            params = {"window": 1 + number % 64, "learning_rate_scale": 0.25 + number / count}
            phase, seed = ("final", FRESH + number % 5) if number < 10 else ("search", 0)
            run_dir = study.folder / "trials" / f"{side}-{number:04d}"
            run_dir.mkdir(parents=True)
            if number < 10:
                params = {"window": 4, "learning_rate_scale": 1.0}
            for name in ("spec.toml", "metrics.jsonl"):
                os.link(study.folder / "baseline" / name, run_dir / name)
            Trial(
                side=side,
                number=number,
                phase=phase,
                params=params,
                seed=seed,
                status="reached",
                value=frozen.baseline_s + number % 97,
                constraints={"target": 0.0},
                training_s=9.0,
                wall_s=12.0,
                curve={s: 5.0 - s / 10 for s in range(1, 20)},
                figures={"updates_to_target": 100, "device_memory_bytes": 10**9 + number},
            ).save(run_dir)
        began = time.monotonic()
        held = rebuild(study)
        rebuilt = time.monotonic()
        opened = tuning.Study.open(study.folder)
        opened.status()
        shown = time.monotonic()
        opened.report()
        reported = time.monotonic()
        opened = tuning.Study.open(study.folder)
        opened.set_budget(1.0)  # everything is used: what is left is opening and finding that out
        opened.run(confirm=False)
        resumed = time.monotonic()
    figures = {
        "trials": float(held),
        "rebuild_s": rebuilt - began,
        "status_s": shown - rebuilt,
        "report_s": reported - shown,
        "resume_s": resumed - reported,
    }
    print_table(
        f"a study with {held} finished trials",
        ["rebuild", "open, status", "report", "resume, report"],
        [[f"{figures[k]:.1f} s" for k in ("rebuild_s", "status_s", "report_s", "resume_s")]],
        left=0,
    )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="*", choices=["record", "replay", "scale", "live", []], help="default: all but live"
    )
    parser.add_argument("--folder", default=str(FOLDER), help=f"of the recordings (default {FOLDER})")
    parser.add_argument("--studies", type=int, default=STUDIES, help=f"live studies (default {STUDIES})")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    wanted = arguments.what or ["record", "replay", "scale"]
    figures: dict[str, Any] = {}
    try:
        if "record" in wanted:
            record(Path(arguments.folder))
        if "replay" in wanted:
            figures["replay"] = replay(Path(arguments.folder))
        if "scale" in wanted:
            figures["scale"] = scale(Path(arguments.folder))
        if "live" in wanted:
            figures["live"] = live(LIVE_FOLDER, arguments.studies)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    write_figures(arguments.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
