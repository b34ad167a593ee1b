"""Optuna's part: it coordinates controllers, remembers what was proposed, and samples large spaces.

Each side is an Optuna study of its own in one storage, so that both get the same search. What a trial measured is in
its run directory; a storage that is lost can be built anew from those.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from paci_lab import InputError
from tuning.race import Seen, lighter
from tuning.settings import Settings
from tuning.side import Point, Range, Side
from tuning.trial import Trial

__all__ = [
    "BehindPruner",
    "as_frozen",
    "distributions",
    "finish",
    "guarded",
    "made_sampler",
    "open_side",
    "open_storage",
    "propose_for_both",
    "seen_trials",
]

optuna.logging.set_verbosity(optuna.logging.WARNING)

_RANDOM_FIRST = 6
"""Trials before a sampler models anything; theory's windows are among them."""


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


def open_side(storage: optuna.storages.BaseStorage, name: str, side: Side, settings: Settings) -> optuna.Study:
    """The Optuna study of one side, made if it is not there."""
    return optuna.create_study(
        study_name=f"{name}-{side.name}",
        storage=storage,
        sampler=made_sampler(settings.sampler),
        pruner=BehindPruner(settings.slack, pareto=settings.pareto),
        load_if_exists=True,
    )


def made_sampler(name: str) -> optuna.samplers.BaseSampler:
    """ "tpe" or "gp"; raises InputError with what to install when the latter lacks a package."""
    if name == "tpe":
        return optuna.samplers.TPESampler(n_startup_trials=_RANDOM_FIRST)
    missing = [package for package in ("scipy", "torch") if importlib.util.find_spec(package) is None]
    if missing:
        raise InputError(
            "sampler",
            f"gp without {' and '.join(missing)}",
            "tpe, or gp with scipy and torch",
            f"run: python -m pip install {' '.join(missing)}",
        )
    return optuna.samplers.GPSampler(n_startup_trials=_RANDOM_FIRST)


def propose_for_both(study: optuna.Study, side: Side, sampler: str) -> Point:
    """A sampled point that may be better in time or in memory than what the front has.

    The stored study has time alone, because Optuna stops no trial of a study with two objectives; this one lives for
    one proposal.
    """
    both = optuna.create_study(directions=["minimize", "minimize"], sampler=made_sampler(sampler))
    both.add_trials(
        [
            optuna.trial.create_trial(
                values=[t.value, t.user_attrs.get("memory_bytes", 0.0)],
                params=t.params,
                distributions=t.distributions,
                constraints=t.constraints,
            )
            for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        ]
    )
    return both.ask(distributions(side)).params


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
            memory_bytes=t.user_attrs.get("memory_bytes", 0.0),
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
    asked.set_user_attr("memory_bytes", done.memory_bytes)
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
        "memory_bytes": trial.memory_bytes,
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
    agree, and the first quarter of the best trial's time counts as warm-up. With `pareto`, a trial is compared with
    the best of those alone that need no more memory than it does so far.
    """

    def __init__(self, slack: float, *, pareto: bool = False) -> None:
        self._slack, self._pareto = slack, pareto

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        good = [t for t in done if t.intermediate_values and all(v <= 0 for v in t.constraints.values())]
        if self._pareto:
            mine = trial.user_attrs.get("memory_bytes", 0.0)
            good = [t for t in good if not lighter(mine, t.user_attrs.get("memory_bytes", 0.0))]
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
