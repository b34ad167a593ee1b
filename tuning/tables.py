"""What `paci-tune` prints as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paci_lab.commands.common import console, print_table
from tuning.settings import duration_text
from tuning.side import SIDES

__all__ = ["print_front", "print_plan"]


def print_plan(found: Mapping[str, Any]) -> None:
    """What `tuning.plan` returns."""
    for name in SIDES:
        side = found["sides"][name]
        kind = f"{side['points']} points, each tried once" if side["enumerated"] else "a sampler takes over after these"
        print_table(
            f"{name}: {kind}",
            ["window", "why", "gap max\n(mean)", "bubble", "in flight\nstage 0", "per update", "largest stage"],
            [
                [
                    str(r["window"]),
                    r["reason"],
                    f"{r['gap_max']} ({r['gap_mean']:.2f})",
                    f"{r['bubble']:.0%}",
                    str(r["held"]),
                    "?" if r["per_update_s"] is None else f"{r['per_update_s']:.3f} s",
                    f"{max(r['memory_bytes']) / 2**20:,.1f} MiB",
                ]
                for r in side["windows"]
            ],
            left=2,
        )
    screen = console()
    screen.print(
        "Largest stage: weights, gradients, optimizer state and activations in fp32; what torch itself takes "
        "comes on top.",
        style="dim",
    )
    if found["trial_s"] is None:
        screen.print(
            "Only the baseline can say how long a trial takes here: it runs first, and a budget that is too "
            "small is refused then."
        )
    else:
        screen.print(
            f"Baseline, then about {found['trials']} trials of up to {duration_text(found['trial_s'])} each "
            f"(half as long where they "
            f"are stopped early), then {found['confirmation']} runs of confirmation: "
            f"{duration_text(found['budget_s'])} on "
            f"{found['devices']} devices, {found['budget_s'] * found['devices'] / 3600:.2f} device-hours. "
            f"Nothing was started."
        )


def print_front(front: Sequence[Mapping[str, Any]]) -> None:
    """The front of a recommendation."""
    print_table(
        "the front of time and memory: no point beats another of these in both",
        ["point", "to target", "peak memory", "version\ngap", "runs that\nreached it"],
        [
            [
                spot["point"],
                f"{spot['time_to_target_s']:.1f} s",
                f"{spot['memory_bytes'] / 2**20:,.0f} MiB",
                str(spot["version_gap"]),
                f"{spot['reached']} of {spot['runs']}",
            ]
            for spot in front
        ],
    )
