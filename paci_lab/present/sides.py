"""What is said of two sides that may be anything: names that tell them apart, and words that are true of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paci_lab.language import _
from paci_lab.present.scenes import Scene
from paci_lab.spec import TrainSpec

__all__ = ["names", "scene_words"]

_TOLD_FIRST = ("slack", "learning_rate", "optimizer", "model", "stages", "engine", "seed")
_LONGEST = 20  # characters of a value within a name
_MODEL = ("model", "context", "dropout")
_DATA = ("data", "microbatch_size", "context")
# What changes neither what is learned nor what the race is about; the target is one for both sides.
_ASIDE = (
    "target_loss",
    "trace",
    "checkpoint_every",
    "keep_checkpoints",
    "updates",
    "microbatches",
    "validation_batches",
)


def names(specs: Sequence[TrainSpec]) -> list[str]:
    """What the audience reads of both contenders; two that are the same at first sight are told apart."""
    from paci_lab.present.race import describe

    found = [describe(spec) for spec in specs]
    if found[0] != found[1]:
        return found
    differs = _differs(specs)
    for field in [*(f for f in _TOLD_FIRST if f in differs), *differs]:
        values = [_short(getattr(spec, field)) for spec in specs]
        if all(len(value) <= _LONGEST for value in values) and values[0] != values[1]:
            words = _("{name}, {field} {value}")
            return [
                words.format(name=name, field=field.replace("_", " "), value=value)
                for name, value in zip(found, values, strict=True)
            ]
    return [_("{name} (above)").format(name=found[0]), _("{name} (below)").format(name=found[1])]


def scene_words(
    scene: Scene, specs: Sequence[TrainSpec], called: Sequence[str], target: float | None
) -> tuple[str, str]:
    """(title, text) of a scene: its own when both sides are what they tell of, else words that are true of these.

    Args:
        specs, called: specs and names of the sides; none of a scene that is no race. target: loss that decides.
    """
    if not specs or _as_told(scene, specs):
        return scene.title, scene.text
    differs = _differs(specs)
    sentences = [
        _("{above} against {below}: which is first at a validation loss of {target:g}?").format(
            above=called[0], below=called[1], target=target
        )
    ]
    if not any(field in differs for field in (*_MODEL, *_DATA, "seed")):
        sentences.append(_("Both train the same model on the same data, with the same seed."))
    if differs:
        told = ", ".join(field.replace("_", " ") for field in differs)
        sentences.append(_("What differs in their specs: {fields}.").format(fields=told))
    return _("The race"), " ".join(sentences)


def _as_told(scene: Scene, specs: Sequence[TrainSpec]) -> bool:
    return [f"{spec.schedule}:{spec.window}" for spec in specs] == list(scene.race) and set(_differs(specs)) <= {
        "schedule",
        "window",
        "learning_rate",
    }


def _differs(specs: Sequence[TrainSpec]) -> list[str]:
    """Fields in which two specs differ, in the order of a spec."""
    above, below = (spec.to_dict() for spec in specs)
    every = dict.fromkeys([*above, *below])
    return [field for field in every if field not in _ASIDE and above.get(field) != below.get(field)]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
