"""What the explorer's sliders mean: settings to a simulated trace and the numbers that follow. No widgets here."""

from __future__ import annotations

import dataclasses
import functools

from paci_lab.language import _
from paci_lab.schedules import Schedule, build_schedule, has_option, is_own, validate
from paci_lab.simulate import Costs, simulate
from paci_lab.trace import Trace

__all__ = ["Numbers", "Settings", "TRANSFORMERS", "activation_bytes", "explore"]

TRANSFORMERS = {
    "GPT-2 small": (12, 768, 12, 1024),
    "GPT-2 medium": (24, 1024, 16, 1024),
    "GPT-2 XL": (48, 1600, 25, 1024),
    "GPT-3 6.7B": (32, 4096, 32, 2048),
}
"""(layers, width, heads, context) of models whose activation memory is shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One position of the sliders.

    Args:
        schedule, stages, microbatches, window, slack: as in `paci_lab.build_schedule`; slack counts if it has one.
        forward_ms, backward_ms: milliseconds per micro-batch and stage.
        weight_share: part of a backward that its weight half W takes, for schedules that split it.
        update_ms, latency_ms, jitter: as in `paci_lab.Costs`.
        straggler: the stage that is slower; -1 for none. straggler_factor: how many times slower.
        model: a key of `TRANSFORMERS`; microbatch_size: sequences per micro-batch.
    """

    schedule: str = "paci"
    stages: int = 4
    microbatches: int = 32
    window: int = 8
    slack: int = 0
    forward_ms: float = 1.0
    backward_ms: float = 2.0
    weight_share: float = 0.5
    update_ms: float = 0.0
    latency_ms: float = 0.0
    jitter: float = 0.0
    straggler: int = -1
    straggler_factor: float = 1.5
    model: str = "GPT-2 medium"
    microbatch_size: int = 1

    def build(self) -> Schedule:
        """The schedule; raises InputError for settings that no schedule has."""
        slack = {"slack": self.slack} if has_option(self.schedule, "slack") else {}
        return build_schedule(
            self.schedule, stages=self.stages, microbatches=self.microbatches, window=self.window, **slack
        )

    def costs(self) -> Costs:
        """The costs, with a straggler only when it names one of the stages."""
        slow = {self.straggler: self.straggler_factor} if 0 <= self.straggler < self.stages else {}
        return Costs(
            forward_ms=self.forward_ms,
            backward_ms=self.backward_ms,
            input_ms=self.backward_ms * (1 - self.weight_share),
            weight_ms=self.backward_ms * self.weight_share,
            update_ms=self.update_ms,
            latency_ms=self.latency_ms,
            jitter=self.jitter,
            stragglers=slow,
        )


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What a simulated schedule comes to; lists have one entry per stage.

    Args:
        bubble: share of all stages' time that is idle, fill and drain included.
        steady_utilization: mean working share after the fill and before the drain; None when there is no such part.
        against_flush: throughput per rank as a multiple of that of 1F1B-flush with the same settings.
        held: most micro-batches whose activations a stage holds. memory: the bytes of these activations.
        gap_max, gap_mean: version gap.
        weights: what a stage keeps of its weights, in words.
    """

    bubble: float
    steady_utilization: float | None
    against_flush: float
    held: list[int]
    memory: list[float]
    gap_max: list[int]
    gap_mean: list[float]
    weights: str


def explore(settings: Settings) -> tuple[Trace, Numbers]:
    """Simulate, and work out the numbers. Takes about 10 ms for 8 stages with 64 micro-batches."""
    schedule = settings.build()
    if is_own(settings.schedule):  # simulated anew each time, for its file may have changed
        validate(schedule)
        trace = simulate(schedule, settings.costs())
    else:
        trace = _simulated(settings)
    flush = _simulated(dataclasses.replace(settings, schedule="1f1b", slack=0))
    steady = trace.steady_utilization()
    held = trace.in_flight_peak()
    per_microbatch = activation_bytes(settings.model, stages=settings.stages, microbatch_size=settings.microbatch_size)
    return trace, Numbers(
        bubble=trace.bubble_fraction(),
        steady_utilization=float(steady.mean()) if steady.any() else None,
        against_flush=flush.makespan_ns * settings.stages / (trace.makespan_ns * schedule.ranks),
        held=held,
        memory=[count * per_microbatch for count in held],
        gap_max=trace.version_gap_max(),
        gap_mean=trace.version_gap_mean(),
        weights=_policy_words(schedule.weight_policy),
    )


def _policy_words(policy: str) -> str:
    known = {"live": _("one copy"), "double-buffered": _("double-buffered"), "stashed": _("stashed")}
    return known.get(policy, policy)


@functools.lru_cache(maxsize=8)
def _simulated(settings: Settings) -> Trace:
    """Kept for the explorer, whose two schedules have one and the same flush to be compared with."""
    return simulate(settings.build(), settings.costs())


def activation_bytes(model: str, *, stages: int, microbatch_size: int) -> float:
    """Activations that one stage keeps for one micro-batch, in bytes, in 16 bits and without recomputation.

    Per transformer layer: context * batch * width * (34 + 5 * heads * context / width), Korthikanti et al. 2022
    (arXiv 2205.05198), equation 1; the layers are shared out evenly, embeddings and head are left out.
    """
    layers, width, heads, context = TRANSFORMERS[model]
    return layers / stages * context * microbatch_size * width * (34 + 5 * heads * context / width)
