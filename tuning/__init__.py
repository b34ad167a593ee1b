"""Tune the accumulation window against measured time to target, on your own machines.

    import paci_lab, tuning
    study = tuning.Study.create("tune/mine", tuning.Settings(base=paci_lab.TrainSpec(stages=4), budget_s=600))
    study.run()
    print(study.recommendation()["sentence"])

One trial is one run directory. Optuna proposes and coordinates; everything that is measured is in the run directories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuning.settings import Settings
from tuning.side import Range
from tuning.space import Space

if TYPE_CHECKING:
    from tuning.plan import plan
    from tuning.study import Study

__all__ = ["Range", "Settings", "Space", "Study", "plan"]

# Optuna takes most of a second to import, which --help and a refused flag need not wait for.
_LATER = {"Study": "tuning.study", "plan": "tuning.plan"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'tuning' has no attribute {name!r}")
    import importlib

    globals()[name] = value = getattr(importlib.import_module(_LATER[name]), name)
    return value
