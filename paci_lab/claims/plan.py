"""What is measured: the paper's table at an eighth of its batch, in three sizes of effort."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from paci_lab.claims.published import HOURS, STAGES, microbatch_costs
from paci_lab.partition import even_partition
from paci_lab.spec import TrainSpec

__all__ = ["OPTIMIZERS", "SCALE", "SIZES", "Size", "replayed_specs", "timed_specs", "times"]

SCALE = 8
"""The paper's batches and micro-batches over ours: 128 and 256 sequences are 16 and 32, 32, 16 and 8 are 4, 2 and 1."""

OPTIMIZERS = {
    "adamw": {"optimizer": "adamw", "learning_rate": 1e-3},
    "nadam": {"optimizer": "nadam", "momentum": 0.95, "learning_rate": 1e-3},
    "muon": {"optimizer": "muon", "learning_rate": 2e-3},
}
"""With the learning rate of batch 256; as in the paper it falls with the root of the batch."""


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is done.

    Args:
        model: 8 blocks, one a stage.
        updates: of the smaller batch; the larger has half as many, and so as many tokens.
        seeds: how many. optimizers: which.
        timed_updates, rounds: of the runs that are timed.
        ms: what forward and backward of the paper's micro-batch of 16 sequences are stated to take on a stage. The
            longer, the less of it is this machine's.
    """

    model: str
    updates: int
    seeds: int
    optimizers: tuple[str, ...]
    timed_updates: int
    rounds: int
    ms: float


SIZES = {
    "quick": Size("gpt:blocks=8,width=16,heads=1,context=16", 6, 2, ("adamw", "nadam"), 3, 1, 20.0),
    "default": Size("gpt:blocks=8,width=32,heads=2,context=32", 40, 3, tuple(OPTIMIZERS), 6, 1, 60.0),
    "full": Size("pico", 600, 3, tuple(OPTIMIZERS), 10, 3, 60.0),
}
"""quick: about a minute, to see that it works; default: about six; full: more than an hour. On two idle cores."""

TIMED_MODEL = "gpt:blocks=8,width=16,heads=1,context=16"
"""Its work is a millisecond, so that eight devices fit on two cores; how long they take is stated, not computed."""


def times(batch: int, window: int, ms: float) -> dict[str, float]:
    """Stated milliseconds of a forward and a backward of a micro-batch of `batch / window` of the paper's sequences."""
    whole = ms * microbatch_costs()[batch // window]
    return {"pace_forward_ms": round(whole / 3, 3), "pace_backward_ms": round(2 * whole / 3, 3)}


def timed_specs(size: Size) -> dict[str, TrainSpec]:
    """A short paced run for every row of the paper's table, by "<batch>-<schedule>-<window>"."""
    return {
        f"{batch}-{schedule}-{window}": TrainSpec(
            schedule=schedule,
            stages=STAGES,
            window=window,
            updates=size.timed_updates,
            microbatch_size=batch // window // SCALE,
            model=TIMED_MODEL,
            device="cpu",
            validation_batches=1,
            evaluate="after",
            **times(batch, window, size.ms),
        )
        for batch, runs in HOURS.items()
        for schedule, window in runs
    }


def replayed_specs(size: Size) -> Iterator[tuple[str, TrainSpec]]:
    """("<batch>-<schedule>-<window>-<optimizer>-<seed>", spec) for every loss curve.

    A flush has one curve for all its m, as in the paper: its gradient does not depend on m. It is replayed as plain
    accumulation, in micro-batches of the paper's 16 sequences, and named with window 0.
    """
    for seed in range(size.seeds):
        for name in size.optimizers:
            for batch, runs in HOURS.items():
                options = OPTIMIZERS[name] | {"learning_rate": OPTIMIZERS[name]["learning_rate"] * (batch / 256) ** 0.5}
                for schedule, window in [("1f1b", 0), *(key for key in runs if key[0] == "paci")]:
                    stages, used = (STAGES, window) if window else (1, batch // 16)
                    yield (
                        f"{batch}-{schedule}-{window}-{name}-{seed}",
                        TrainSpec(
                            schedule=schedule,
                            stages=stages,
                            window=used,
                            updates=size.updates * 128 // batch,
                            microbatch_size=batch // used // SCALE,
                            model=size.model,
                            partition=even_partition(10, stages),
                            seed=seed,
                            device="cpu",
                            evaluate_every=max(size.updates * 128 // batch // 20, 1) * used,
                            validation_batches=8,
                            trace=False,
                            **options,
                        ),
                    )
