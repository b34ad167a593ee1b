"""The five scenes, from one device to the window, as data: what is said, and which pipelines are shown.

A scene is either simulated, at the speed of the race's devices, or a race of real paced runs.
"""

from __future__ import annotations

import dataclasses

from paci_lab.language import _
from paci_lab.schedules import build_schedule
from paci_lab.simulate import Costs, simulate
from paci_lab.spec import TrainSpec
from paci_lab.trace import Trace

__all__ = ["BASE", "RATES", "Lane", "Scene", "Simulated", "scenes"]

BASE = TrainSpec(
    schedule="1f1b",
    stages=4,
    window=8,
    microbatches=480,
    model="femto",
    microbatch_size=8,
    pace_forward_ms=50,
    pace_backward_ms=100,
    device="cpu",
    optimizer="nadam",
    learning_rate=4e-3,
    learning_rate_schedule="constant",
    warmup=0.05,
    weight_decay=0.0,
    target_loss=3.1,
    evaluate_every=8,
    validation_batches=8,
)
"""What both sides of a race train unless told otherwise: the same weights to begin with, the same batches in the same
order, the same target. At this pace eight ranks have room on two cores, and a race ends after about 75 s."""

RATES = {"1f1b:8": 4e-3, "paci:8": 4e-3, "paci:2": 2e-3}
"""Learning rates of the scenes' races: for each the first at the target of 1e-3, 2e-3, 4e-3 and 8e-3, by replay with
seed 0; each side got the same search."""


@dataclasses.dataclass(frozen=True)
class Lane:
    """One pipeline of a simulated scene.

    Args:
        name: what the audience reads. schedule, stages, window: as in `TrainSpec`.
    """

    name: str
    schedule: str
    stages: int
    window: int

    def trace(self, microbatches: int = 32) -> Trace:
        """Its simulation. All lanes hold the same model, so with fewer stages each takes longer."""
        schedule = build_schedule(self.schedule, stages=self.stages, window=self.window, microbatches=microbatches)
        share = BASE.stages / self.stages
        return simulate(
            schedule, Costs(forward_ms=BASE.pace_forward_ms * share, backward_ms=BASE.pace_backward_ms * share)
        )


class Simulated:
    """A simulation as a chart plays it, with what it needs of a `RunFeed`."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self.stages = trace, trace.stages
        self.end_ns = trace.begin_ns + trace.makespan_ns

    def window(self, end_ns: int, count: int) -> tuple[Trace, int, int]:
        """The events before a moment, and the span (start_ns, end_ns) that they cover; `count` is of a longer run."""
        return self._trace.between(0, end_ns), 0, end_ns


@dataclasses.dataclass(frozen=True)
class Scene:
    """What one scene shows: simulated lanes, or the contenders of a race as `paci-lab compare` writes them."""

    key: str
    title: str
    text: str
    lanes: tuple[Lane, ...] = ()
    race: tuple[str, ...] = ()


def scenes() -> list[Scene]:
    """All five, in the language in use."""
    return [
        Scene(
            "one-device",
            _("One device"),
            _(
                "Gradient accumulation: eight micro-batches add up their gradients, then the weights are updated. "
                "There is nobody to wait for, so the device always works. But the whole model has to fit on it."
            ),
            lanes=(Lane(_("One device holds the whole model"), "1f1b", 1, 8),),
        ),
        Scene(
            "in-turn",
            _("More devices, in turn"),
            _(
                "A model cut into stages fits on more devices. With one micro-batch at a time only one of them works, "
                "and the others wait. Their waiting is the bubble."
            ),
            lanes=(
                Lane(_("Two devices, one micro-batch at a time"), "1f1b", 2, 1),
                Lane(_("Four devices, one micro-batch at a time"), "1f1b", 4, 1),
            ),
        ),
        Scene(
            "flush",
            _("Many micro-batches, and a flush"),
            _(
                "1F1B sends one micro-batch after the other, so the devices work at the same time. Before every update "
                "the pipeline still runs empty. A larger window makes that bubble smaller, and updates rarer."
            ),
            lanes=(
                Lane(_("1F1B with a flush, window 4"), "1f1b", 4, 4),
                Lane(_("1F1B with a flush, window 8"), "1f1b", 4, 8),
            ),
        ),
        Scene(
            "race",
            _("The race: PACI never flushes"),
            _(
                "Both train the same model on the same batches towards the same validation loss. PACI's stages update "
                "at once and go on; some of its gradients come from weights that are one update old."
            ),
            race=("1f1b:8", "paci:8"),
        ),
        Scene(
            "window",
            _("The window, and what it costs"),
            _(
                "PACI has no bubble at any window. A small window updates often, and its gradients are older: the "
                "version gap grows, and often the learning rate has to be smaller. Which is first at the target?"
            ),
            race=("paci:2", "paci:8"),
        ),
    ]
