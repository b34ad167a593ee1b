"""Optuna's part: it coordinates controllers, remembers what was proposed, and samples large spaces.

Each side is an Optuna study of its own in one storage, so that both get the same search. What a trial measured is in
its run directory; a storage that is lost can be built anew from those.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from paci_lab import InputError
from tuning.race import Seen
from tuning.side import Range, Side
from tuning.trial import Trial

__all__ = [
    "BehindPruner",
    "as_frozen",
    "distributions",
    "finish",
    "guarded",
    "open_side",
    "open_storage",
    "seen_trials",
]

optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_storage(folder: Path, url: str | None) -> optuna.storages.BaseStorage:
    """A journal in the study's folder, or whatever `url` names; raises InputError when it cannot be used."""
    with guarded(folder, url):
        if url is None:
            return optuna.storages.JournalStorage(
                optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))
            )
        return optuna.storages.get_storage(url)


@contextlib.contextmanager
def guarded(folder: Path, url: str | None) -> Iterator[None]:
    """Turn what a storage may raise into one message with what to do; nothing that was measured is lost by it."""
    where = folder / "study.journal" if url is None else _without_password(url)
    try:
        yield
    except OSError as error:
        raise InputError(
            "storage",
            where,
            "a place that can be written",
            f"free space or change its permissions, then run paci-tune resume {folder} ({error.strerror or error})",
        ) from None
    except (KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "storage",
            where,
            "an Optuna storage",
            f"check it, or run paci-tune resume {folder} --rebuild to make it anew "
            f"from the run directories ({type(error).__name__}: {error})",
        ) from None
    except ImportError as error:
        raise InputError(
            "storage", where, "a URL whose database driver is installed", f"install it ({error})"
        ) from None
    except Exception as error:  # SQLAlchemy's errors, without importing SQLAlchemy for those who use a journal
        if not type(error).__module__.startswith(("sqlalchemy", "optuna")):
            raise
        first = str(error).splitlines()[0]
        raise InputError(
            "storage",
            where,
            "a storage that answers",
            f"check its URL and server, then run paci-tune resume {folder} ({first})",
        ) from None


def open_side(storage: optuna.storages.BaseStorage, name: str, side: Side, slack: float) -> optuna.Study:
    """The Optuna study of one side, made if it is not there."""
    sampler = optuna.samplers.TPESampler(n_startup_trials=6)
    return optuna.create_study(
        study_name=f"{name}-{side.name}",
        storage=storage,
        sampler=sampler,
        pruner=BehindPruner(slack),
        load_if_exists=True,
    )


def distributions(side: Side) -> dict[str, BaseDistribution]:
    """A side's dimensions in Optuna's terms."""
    found: dict[str, BaseDistribution] = {}
    for name, values in side.dimensions.items():
        if not isinstance(values, Range):
            found[name] = CategoricalDistribution(values)
        elif values.whole:
            found[name] = IntDistribution(int(values.low), int(values.high), log=True)
        else:
            found[name] = FloatDistribution(values.low, values.high, log=True)
    return found


def seen_trials(study: optuna.Study) -> list[Seen]:
    """What has been proposed so far, by whichever controller."""
    return [
        Seen(
            number=t.number,
            params=t.params,
            state=t.state.name,
            value=t.value if t.state == TrialState.COMPLETE else None,
            feasible=t.state == TrialState.COMPLETE and all(v <= 0 for v in t.constraints.values()),
            status=t.user_attrs.get("status", ""),
            wall_s=t.user_attrs.get("wall_s", 0.0),
            training_s=t.user_attrs.get("training_s", 0.0),
            controller=t.user_attrs.get("controller", ""),
            job=t.user_attrs.get("job", ""),
        )
        for t in study.get_trials(deepcopy=False)
    ]


def finish(study: optuna.Study, asked: optuna.Trial, done: Trial) -> None:
    """Tell the outcome, always COMPLETE with a finite value: a sampler learns nothing from a trial without one."""
    for name, value in done.constraints.items():
        asked.set_constraint(name, value)
    for name in ("status", "why", "wall_s", "training_s"):
        asked.set_user_attr(name, getattr(done, name))
    study.tell(asked, done.value)


def as_frozen(trial: Trial, side: Side) -> FrozenTrial:
    """A trial of a run directory for a storage that is built anew."""
    attributes = {
        "seed": trial.seed,
        "reason": trial.reason,
        "status": trial.status,
        "why": trial.why,
        "wall_s": trial.wall_s,
        "training_s": trial.training_s,
        "path": Path(trial.path).name,
    }
    return optuna.trial.create_trial(
        value=trial.value,
        params=trial.params,
        distributions=distributions(side),
        user_attrs=attributes,
        intermediate_values=trial.curve,
        constraints=trial.constraints,
    )


class BehindPruner(optuna.pruners.BasePruner):
    """Stops a trial that is `slack` times slower than the best of its side in getting to the loss that it has now.

    Steps are a grid of training time, so the question is when the best trial had this loss. Three steps in a row must
    agree, and the first quarter of the best trial's time counts as warm-up.
    """

    def __init__(self, slack: float) -> None:
        self._slack = slack

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        good = [t for t in done if t.intermediate_values and all(v <= 0 for v in t.constraints.values())]
        if not good or trial.last_step is None:
            return False
        best = min(good, key=lambda t: t.value).intermediate_values
        steps = sorted(trial.intermediate_values)[-3:]
        return (
            len(steps) == 3
            and steps[0] > max(best) / 4
            and all(self._behind(step, trial.intermediate_values[step], best) for step in steps)
        )

    def _behind(self, step: int, loss: float, best: dict[int, float]) -> bool:
        there = next((s for s in sorted(best) if best[s] <= loss), None)
        return there is not None and step > self._slack * there


def _without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:…@", url)
