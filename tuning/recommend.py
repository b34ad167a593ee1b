"""From trials to one sentence: what to use, how sure that is, and on which machine it holds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from paci_lab import InputError, TrainSpec
from tuning.confirm import FRESH, finalists
from tuning.execute import trial_spec
from tuning.machine import difference, fingerprint, this_machine
from tuning.pareto import Spot, front_words, pareto_front
from tuning.side import point_key
from tuning.stats import ENOUGH_PAIRS, interval_of_median, log_ratio
from tuning.study import Study
from tuning.trial import Trial

__all__ = ["apply", "recommend", "write_recommendation"]


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Final runs of one finalist: times to target, and how many were run and missed."""

    label: str
    trial: Trial
    times: dict[int, float]
    runs: int
    confirmed: bool

    @property
    def failure_rate(self) -> float:
        return 1 - len(self.times) / self.runs if self.runs else 0.0


def recommend(study: Study) -> dict[str, Any]:
    """The recommendation and its evidence.

    Keys: "sentence"; "point", "spec" (None when no trial has reached the target); "winner", "rival": label, runs,
    median, interval, failure rate; "ratio": how many times longer the rival takes than the winner, with its interval,
    or None; "significant"; "confirmed": whether fresh seeds stand behind it; "machine", "versions"; with the setting
    `pareto`, "front": the points that no other beats in both time and memory, fastest first, least memory last.
    """
    frozen, trials = study.frozen, study.trials()
    if frozen is None:
        raise InputError("study", study.folder, "a study whose baseline has run", "run paci-tune resume first")
    winner, rival = finalists(trials, seeds=study.settings.seeds)
    found: dict[str, Any] = {
        "study": str(study.folder),
        "target_loss": frozen.target_loss,
        "device_kind": frozen.device_kind,
        "machine": frozen.machine,
        "versions": frozen.versions,
        "ratio": None,
        "significant": False,
        "confirmed": False,
        "point": None,
        "spec": None,
        "winner": None,
        "rival": None,
    }
    front = pareto_front(trials) if study.settings.pareto else []
    if study.settings.pareto:
        found["front"] = [_front_figures(study, spot) for spot in front]
    if winner is None:
        return found | {
            "sentence": "No trial has reached the target: there is nothing to recommend. Give the study more budget."
        }
    first = _evidence(study, trials, winner)
    second = _evidence(study, trials, rival) if rival is not None else None
    pairs = _pairs(first, second) if second is not None else []
    upset = log_ratio(pairs).ratio < 1 if pairs else _failed(first) and second is not None and bool(second.times)
    if upset:  # the fresh seeds say otherwise than the search
        first, second = second, first
    chosen, words = _decide(first, second, found)
    if upset:
        words += f" The search alone would have taken {second.label}."
    words += "".join(_at_the_edge(study, evidence) for evidence in (first, second) if evidence is not None)
    words += front_words(front, study.label)
    return found | {
        "sentence": words,
        "point": chosen.label,
        "spec": _spec(study, chosen.trial).to_dict(),
        "winner": _figures(first),
        "rival": _figures(second) if second else None,
    }


def _decide(first: Evidence, second: Evidence | None, found: dict[str, Any]) -> tuple[Evidence, str]:
    """Which of the two to take, and why in words; puts ratio, significance and confirmation into `found`."""
    if second is None:
        return (
            first,
            f"Take {first.label}: {_time(first)}. No point of the other side reached the target, so there is no "
            "comparison.",
        )
    pairs = _pairs(first, second)
    found["confirmed"] = len(pairs) > 0
    if not pairs and first.times and _failed(second):
        found["confirmed"] = first.confirmed
        return first, (
            f"Take {first.label}: {_time(first)}. {second.label} missed the target with every one of its "
            f"{second.runs} fresh seeds."
        )
    if not pairs:
        faster = second.trial.value / first.trial.value
        return first, (
            f"Take {first.label} for now: {_time(first)}, {faster:.2f}× as fast as {second.label}. This is not "
            "confirmed with fresh seeds, and the best of a search is always partly luck."
        )
    ratio = log_ratio(pairs)
    found["ratio"], found["significant"] = dataclasses.asdict(ratio), ratio.significant
    failures = "".join(
        f" {e.label} missed the target in {e.failure_rate:.0%} of its final runs."
        for e in (first, second)
        if e.failure_rate
    )
    if ratio.pairs < ENOUGH_PAIRS:
        return first, (
            f"Take {first.label} for now: {_time(first)}, {ratio} as fast as {second.label} over {ratio.pairs} fresh "
            f"seed{'s' * (ratio.pairs > 1)}. Fewer than {ENOUGH_PAIRS} cannot settle it: run paci-tune "
            f"confirm.{failures}"
        )
    if ratio.significant:
        return (
            first,
            f"Take {first.label}: {_time(first)}, {ratio} as fast as {second.label} over {ratio.pairs} fresh "
            f"seeds.{failures}",
        )
    calm = min((first, second), key=lambda e: (_gap(e), _memory(e)))
    why = "its version gap is smaller" if _gap(first) != _gap(second) else "it needs less memory"
    return calm, (
        f"No significant difference between {first.label} and {second.label} ({ratio} over {ratio.pairs} fresh "
        f"seeds): take {calm.label}, {why}.{failures}"
    )


def _spec(study: Study, trial: Trial) -> TrainSpec:
    return trial_spec(study.sides[trial.side], dataclasses.replace(trial, seed=0), study.frozen)


def _front_figures(study: Study, spot: Spot) -> dict[str, Any]:
    return {
        "point": study.label(spot.trial),
        "window": spot.trial.params["window"],
        "time_to_target_s": spot.time_s,
        "memory_bytes": spot.memory_bytes,
        "reached": spot.reached,
        "runs": spot.runs,
        "version_gap": max(spot.trial.figures.get("version_gap_max") or [0]),
        "spec": _spec(study, spot.trial).to_dict(),
    }


def _pairs(first: Evidence, second: Evidence) -> list[tuple[float, float]]:
    """(time of the second, time of the first) for every fresh seed with which both reached the target."""
    if not (first.confirmed and second.confirmed):
        return []
    return [(second.times[seed], first.times[seed]) for seed in sorted(set(first.times) & set(second.times))]


def _evidence(study: Study, trials: list[Trial], point: Trial) -> Evidence:
    same = [
        t
        for t in trials
        if t.side == point.side and point_key(t.params) == point_key(point.params) and t.value is not None
    ]
    fresh = [t for t in same if t.seed >= FRESH]
    used = fresh or [t for t in same if t.phase != "baseline"] or same
    best = min((t for t in same if t.feasible), key=lambda t: t.seed)
    return Evidence(
        study.label(point), best, {t.seed: t.value for t in used if t.status == "reached"}, len(used), bool(fresh)
    )


def _at_the_edge(study: Study, evidence: Evidence) -> str:
    """A warning when the best window is the last one of its list: the best of all may lie beyond."""
    windows, window = study.sides[evidence.trial.side].dimensions["window"], evidence.trial.params["window"]
    if not isinstance(windows, tuple) or len(windows) == 1 or window == 1 or min(windows) < window < max(windows):
        return ""
    kind, further = ("narrowest", "narrower") if window == min(windows) else ("widest", "wider")
    return f" {evidence.label} has the {kind} window that was tried on its side: try {further} ones as well."


def _figures(evidence: Evidence) -> dict[str, Any]:
    times = list(evidence.times.values())
    median, low, high = interval_of_median(times) if times else (None, None, None)
    return {
        "label": evidence.label,
        "runs": evidence.runs,
        "median_s": median,
        "low_s": low,
        "high_s": high,
        "failure_rate": evidence.failure_rate,
        "version_gap": _gap(evidence),
        "memory_bytes": _memory(evidence),
    }


def _failed(evidence: Evidence) -> bool:
    """True when fresh seeds were run and none reached the target."""
    return evidence.confirmed and not evidence.times


def _time(evidence: Evidence) -> str:
    return (
        f"median {statistics.median(evidence.times.values()):.1f} s to the target"
        if evidence.times
        else "target missed"
    )


def _gap(evidence: Evidence) -> int:
    return max(evidence.trial.figures.get("version_gap_max") or [0])


def _memory(evidence: Evidence) -> float:
    return evidence.trial.figures.get("device_memory_bytes") or 0


def write_recommendation(found: Mapping[str, Any], path: Path) -> None:
    """recommended.toml: the recommendation as a file, without what is not known."""

    def known(value: Any) -> Any:
        if isinstance(value, list):
            return [known(v) for v in value]
        return {k: known(v) for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value

    path.write_text(tomli_w.dumps(known(found)), encoding="utf-8")


def apply(study: Study, out: Path, *, run: Path | None = None, pick: str | None = None) -> TrainSpec:
    """Write the recommended spec, or another one of the front, which `paci-lab train` takes, to `out`.

    Args:
        run: a run directory of the machine where the spec will be used; this machine when None.
        pick: "fastest", "least-memory" or a point of the front, for a study with `pareto`; when None the recommended
            point: the fastest, unless fresh seeds showed no difference between the last two.

    Raises InputError when nothing is recommended, or when it was measured on another machine.
    """
    found = study.recommendation()
    if found["spec"] is None:
        raise InputError(
            "recommendation", "none", "a study in which a trial has reached the target", "give it more budget"
        )
    if run is None:
        here = this_machine(found["device_kind"])
    else:
        from paci_lab import open_run

        here = fingerprint(open_run(run).dir.environment() or {})
    if differs := difference(found["machine"], here):
        raise InputError(
            "recommendation",
            study.folder,
            f"one for this machine: times to a target hold where they were measured ({differs})",
            "run paci-tune run here, with --warm-start and this study",
        )
    spec = TrainSpec.from_dict(found["spec"] if pick is None else _picked(study, found, pick))
    try:
        spec.save(out)
    except OSError as error:
        raise InputError(
            "--out", out, "a file that can be written", f"choose another ({error.strerror or error})"
        ) from None
    return spec


def _picked(study: Study, found: Mapping[str, Any], pick: str) -> dict[str, Any]:
    """The spec of a point of the front; raises InputError when there is no front or no such point."""
    if not study.settings.pareto:
        raise InputError(
            "--pick",
            pick,
            "a study of time and memory: this one looked for little time alone, and may have stopped points that need "
            "little memory",
            "leave it out, or make a new study with --pareto",
        )
    front = found["front"]
    points = (
        {"fastest": front[0], "least-memory": front[-1], **{spot["point"]: spot for spot in front}} if front else {}
    )
    if pick not in points:
        raise InputError("--pick", pick, ", ".join(points) or "nothing: the front is empty", "name one of these")
    return points[pick]["spec"]
