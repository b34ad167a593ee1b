"""Models that a pipeline can cut into stages.

To add one, put one file into this folder with three names in it; nothing else has to change:

    FAMILY = "gpt"                              the word before the colon in "gpt:blocks=8,..."
    MODELS = {"pico": "one line about it"}      its named sizes
    def build(name, *, vocabulary, context, dropout) -> Model
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from paci_lab.errors import InputError
from paci_lab.models.base import IGNORED_TARGET, Model, is_hidden, load_weights, mark_hidden

__all__ = ["IGNORED_TARGET", "MODELS", "Model", "build_model", "is_hidden", "load_weights", "mark_hidden"]


def _families() -> dict[str, ModuleType]:
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.FAMILY: module for module in modules if hasattr(module, "FAMILY")}


_FAMILIES = _families()

MODELS: dict[str, str] = {name: line for module in _FAMILIES.values() for name, line in module.MODELS.items()}
"""Every named model and one line about it."""


def build_model(name: str, *, vocabulary: int | None = None, context: int | None = None, dropout: float = 0.0) -> Model:
    """Describe a model by name; its weights are built layer by layer, later.

    Args:
        name: a key of ``MODELS``, or sizes written out: "gpt:blocks=8,width=64,heads=4,context=64".
        vocabulary: number of different tokens; None keeps the model's own.
        context: tokens per sequence; None keeps the model's own.
        dropout: probability in [0, 1).

    Raises:
        InputError: for an unknown name or impossible sizes.

    >>> model = build_model("pico")
    >>> model.layers, model.layer_name(1), model.boundary_shape(2)
    (10, 'block 0', (2, 64, 64))
    """
    for family, module in _FAMILIES.items():
        if name in module.MODELS or name.startswith(f"{family}:"):
            return module.build(name, vocabulary=vocabulary, context=context, dropout=dropout)
    allowed = ", ".join([*MODELS, *(f"{family}:SIZES" for family in _FAMILIES)])
    raise InputError("model", name, f"one of {allowed}", "try pico, or gpt:blocks=8,width=64,heads=4,context=64")
