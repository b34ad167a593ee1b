"""A launcher whose trials take no time, so that decisions can be tested by themselves.

Given to a study as file.py:Class, the way a site gives its own."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import paci_lab

MACHINE = {
    "schema": 1,
    "cpu": "test",
    "cpu_cores": 2,
    "gpus": [],
    "torch": "2.13",
    "paci_lab": "0.1.0",
    "python": "3.11",
    "git": None,
}

FIRST, FLOOR = 5.0, 2.0


class Landscape:
    """Loss falls from 5 towards 2 at a speed that schedule and window decide: PACI is best at `best`, flush at 8.

    Args:
        best: PACI's best window; each factor of two away from it costs `slope`.
        advantage: how many times faster PACI is at its best than flush.
        noise: relative spread between seeds.
        faults: by "side-window" of a trial: "oom", "fail", "fail-once", "hang", "interrupt" or "die".
        memory: bytes per rank, by "side-window".
    """

    name, here = "landscape", True

    def __init__(
        self,
        *,
        best: int = 4,
        advantage: float = 1.6,
        slope: float = 0.3,
        noise: float = 0.02,
        faults: dict | None = None,
        memory: dict | None = None,
        log: str = "",
    ) -> None:
        self.best, self.advantage, self.slope, self.noise = best, advantage, slope, noise
        self.faults, self.memory, self.log = faults or {}, memory or {}, log

    def start(self, spec: paci_lab.TrainSpec, run_dir: Path):
        side = "paci" if spec.schedule == "paci" else "flush"
        key, folder = f"{side}-{spec.window}", run_dir.parent.parent
        fault = self.faults.get(key, "") if run_dir.name != "baseline" else ""
        once = folder / f"fault-{key}"
        if fault in ("fail-once", "interrupt", "die") and once.exists():
            fault = ""
        run_dir.mkdir(parents=True)
        (run_dir / "updates").mkdir()
        (run_dir / "environment.json").write_text(json.dumps(MACHINE))
        (spec if spec.partition != "auto" else spec.replace(partition=[1] * spec.stages)).save(run_dir / "spec.toml")
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{os.getpid()} {run_dir.name} {key} seed {spec.seed}\n")
        if fault in ("fail-once", "interrupt", "die"):
            once.touch()
        if fault == "interrupt":
            raise KeyboardInterrupt
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            (run_dir / "metrics.jsonl").write_text(
                json.dumps({"time_s": 0.1, "tokens": 1, "update": 0, "train_loss": 5.0}) + "\n"
            )
        elif fault:
            message = (
                "rank 1 (stage 1) failed: OutOfMemoryError: CUDA out of memory"
                if fault == "oom"
                else "rank 0 failed: boom"
            )
            (run_dir / "failure.json").write_text(json.dumps({"message": message}))
        else:
            return self.train(spec, run_dir, key)
        return Job(endless=fault == "hang")

    def train(self, spec: paci_lab.TrainSpec, run_dir: Path, key: str) -> Job:
        paci = spec.schedule == "paci"
        away = abs(math.log2(spec.window / (self.best if paci else 8)))
        wobble = 1 + self.noise * math.sin(17.0 * spec.seed + spec.window)
        tau = 10.0 * (1 + self.slope * away) * wobble / (self.advantage if paci else 1.0)
        per_update = 0.05 * spec.window
        updates, reached, rows = -(-spec.total_microbatches // spec.window), None, []
        for update in range(updates):
            when = {"time_s": (update + 1) * per_update, "tokens": (update + 1) * spec.window * 10, "update": update}
            rows.append({**when, "train_loss": 4.0, "grad_norm": 1.0, "learning_rate": 0.1})
            before, after = update * spec.window, (update + 1) * spec.window
            if before // spec.evaluate_every < after // spec.evaluate_every:
                loss = FLOOR + (FIRST - FLOOR) * math.exp(-when["time_s"] / tau)
                rows.append({**when, "val_loss": loss})
                if spec.target_loss is not None and loss <= spec.target_loss:
                    reached = rows[-1]
                    break
        peak = self.memory.get(key, 1000)
        for rank in range(spec.stages):
            (run_dir / "updates" / f"rank{rank}.jsonl").write_text(json.dumps({"peak_memory_bytes": peak}) + "\n")
        losses = [row["val_loss"] for row in rows if "val_loss" in row]
        gap = -(-(spec.stages - 1) // spec.window) if paci else 0
        result = {
            "window": spec.window,
            "updates": rows[-1]["update"] + 1,
            "wall_time_s": rows[-1]["time_s"],
            "reached": reached is not None,
            "time_to_target_s": reached and reached["time_s"],
            "updates_to_target": reached and reached["update"] + 1,
            "tokens_to_target": reached and reached["tokens"],
            "seconds_per_update": per_update,
            "best_val_loss": min(losses),
            "final_val_loss": losses[-1],
            "version_gap_max": [gap] * spec.stages,
            "bubble_fraction": 0.0,
            "device_kind": "cpu",
            "peak_memory_bytes": [peak] * spec.stages,
            "target_loss": spec.target_loss,
        }
        return Job(rows=rows, run_dir=run_dir, result=result)

    def cancel(self, job_id: str) -> None:
        raise AssertionError("a landscape has no jobs to cancel")


class Job:
    """Hands out its rows, one evaluation per question for its state, so that a trial can be stopped on its way."""

    id = ""

    def __init__(
        self,
        *,
        endless: bool = False,
        rows: list | None = None,
        run_dir: Path | None = None,
        result: dict | None = None,
    ) -> None:
        self._endless, self._rows, self._run_dir, self._result = endless, rows or [], run_dir, result

    def state(self) -> str:
        if not self._rows:
            if self._result is not None:
                (self._run_dir / "result.json").write_text(json.dumps(self._result))
            return "running" if self._endless else "ended"
        upto = next((n for n, row in enumerate(self._rows) if "val_loss" in row), len(self._rows) - 1) + 1
        with open(self._run_dir / "metrics.jsonl", "a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in self._rows[:upto]))
        self._rows = self._rows[upto:]
        return "running"

    def stop(self) -> None:
        self._endless, self._result, self._rows = False, None, []
