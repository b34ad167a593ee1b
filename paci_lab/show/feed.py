"""What a run has written so far, read as it grows; made to show whatever can be shown of a run in any state."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from paci_lab.errors import InputError
from paci_lab.language import _, ngettext
from paci_lab.reading import METRICS, MOST, check_row, file_inside, parse_json, read_json, read_toml
from paci_lab.schedules import names_a_file
from paci_lab.spec import TrainSpec
from paci_lab.trace import OPS, Trace

__all__ = ["SCHEMA", "RunFeed"]

SCHEMA = 1
"""Newest layout of a run directory that this reader knows."""

_CODE = {op: code for code, op in enumerate(OPS)}
_FIELDS = ("stage", "rank", "op", "microbatch", "start_ns", "end_ns", "version", "update")
_SILENT_S = 10.0
_MOST_STAGES = 10**4
_CHUNK_BYTES = 2_000_000  # read at most this much of a file at once, so that a long run opens without a long stop


class _Lines:
    """Complete lines that a growing file has gained since the last look; a half-written last line is kept for later.

    Attributes:
        cut: a restart has cut the file since the last look, and `new` gave its lines from the first on.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.cut = path, 0, False

    def new(self) -> list[bytes]:
        self.cut = False
        try:
            if not self.path.is_file():  # a pipe would be waited for
                return []
            with open(self.path, "rb") as file:
                if self.offset:
                    file.seek(self.offset - 1)
                    if file.read(1) != b"\n":
                        self.offset, self.cut = 0, True
                file.seek(self.offset)
                text = file.read(_CHUNK_BYTES)
        except OSError:  # not there yet, or gone: what was read before stays
            return []
        end = text.rfind(b"\n") + 1
        if not end and len(text) == _CHUNK_BYTES:  # no line of a run is so long: it would never end, so skip it
            self.offset += len(text)
            return [b""]
        self.offset += end
        return text[:end].splitlines()


class _Rank:
    """The events of one rank in order, in arrays that grow by doubling."""

    def __init__(self, path: Path) -> None:
        self.lines = _Lines(path)
        self.count, self.bad = 0, 0
        self.columns = np.empty((len(_FIELDS), 1024), dtype=np.int64)

    def read(self) -> bool:
        rows, lines = [], self.lines.new()
        if self.lines.cut:
            self.count = self.bad = 0
        for line in lines:
            try:
                row = parse_json(line)
                values = [_CODE[row[name]] if name == "op" else row[name] for name in _FIELDS]
                if not all(type(value) is int and 0 <= value < MOST for value in values):
                    raise ValueError
                if max(values[:2]) >= _MOST_STAGES:
                    raise ValueError
                rows.append(values)
            except (ValueError, KeyError, TypeError):
                self.bad += 1
        if not rows:
            return False
        while self.count + len(rows) > self.columns.shape[1]:
            self.columns = np.concatenate([self.columns, np.empty_like(self.columns)], axis=1)
        self.columns[:, self.count : self.count + len(rows)] = np.array(rows, dtype=np.int64).T
        self.count += len(rows)
        return True

    def until(self, end_ns: int, count: int) -> np.ndarray:
        """The last `count` events that begin before `end_ns`: shape (fields, events)."""
        stop = int(np.searchsorted(self.columns[4, : self.count], end_ns, side="left"))
        return self.columns[:, max(stop - count, 0) : stop]


class RunFeed:
    """Reads a run directory again and again; only what is new is read each time.

    Raises InputError when `path` is no run directory at all. Everything else that is wrong with it is in `notes`.

    Attributes:
        spec: what spec.toml says, as plain values; empty when it cannot be read.
        stages: number of stages, from the spec or from what the trace shows.
        source: where the figures come from, in words.
        on_cores: whether the ranks compute on processor cores, and do so all the time.
        metrics, validation: rows of metrics.jsonl so far.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise InputError("run directory", path, "an existing folder", "name a folder under runs/")
        if not any((self.path / name).exists() for name in ("spec.toml", "trace", "metrics.jsonl", "result.json")):
            raise InputError(
                "run directory",
                path,
                "a folder that a run has written (spec.toml, trace/, metrics.jsonl)",
                "name a folder under runs/",
            )
        self.notes: list[str] = []
        self.spec = self._read_spec()
        self._ranks: dict[int, _Rank] = {}
        self._metric_lines, self._bad_metrics = _Lines(self.path / "metrics.jsonl"), 0
        self.metrics: list[dict[str, Any]] = []
        self.validation: list[dict[str, Any]] = []
        self.stages = self._count("stages")
        paced = any(
            self.spec.get(key, 0) not in (0, [0] * self.stages) for key in ("pace_forward_ms", "pace_backward_ms")
        )
        self.source = "measured on paced devices" if paced else "measured"
        self._shown_ranks: float = np.inf  # of several replicas the first one's
        if (replicas := self._count("replicas")) > 1:
            self.source += f", replica 0 of {replicas}"
            self._shown_ranks = self._ranks_of_a_replica()
        self.on_cores = not paced and self.spec.get("device") != "cuda"
        self._grown_at = time.monotonic()
        self._result: dict[str, Any] | None = None
        self._failure: dict[str, Any] | None = None
        self._check_schema()

    def _count(self, key: str) -> int:
        value = self.spec.get(key, 0)
        return value if isinstance(value, int) and 0 <= value <= _MOST_STAGES else 0

    def _read_spec(self) -> dict[str, Any]:
        try:
            if (path := file_inside(self.path, self.path / "spec.toml")) is not None:
                return read_toml(path, what="spec.toml")
            self.notes.append(_("spec.toml is missing: this folder is not a complete run directory."))
        except InputError as error:
            self.notes.append(_("spec.toml cannot be read ({error}).").format(error=error))
        return {}

    def _ranks_of_a_replica(self) -> int:
        try:
            spec = TrainSpec.from_dict(self.spec)
            return self.stages if names_a_file(spec.schedule) else spec.build_schedule().ranks
        except (InputError, TypeError):  # a spec that is broken
            return self.stages

    def _check_schema(self) -> None:
        for name in ("environment.json", "result.json"):
            schema = (_json(self.path / name) or {}).get("schema", SCHEMA)
            if not isinstance(schema, int) or schema > SCHEMA:
                words = _(
                    "{name} is of schema {schema}, newer than {known}, the newest this version knows: figures may be "
                    "missing or wrong. Update paci_lab."
                )
                self.notes.append(words.format(name=name, schema=schema, known=SCHEMA))
                return

    # -- reading --------------------------------------------------------------------------------------------------
    def poll(self) -> bool:
        """Read what is new; True when anything was."""
        grown = False
        for path in (self.path / "trace").glob("rank*.jsonl"):
            number = re.fullmatch(r"rank(\d+)\.jsonl", path.name)
            if number and int(number[1]) not in self._ranks and int(number[1]) < self._shown_ranks:
                self._ranks[int(number[1])] = _Rank(path)
        for rank in self._ranks.values():
            if rank.read():
                grown = True
                self.stages = max(self.stages, int(rank.columns[0, : rank.count].max()) + 1)
        lines = self._metric_lines.new()
        if self._metric_lines.cut:
            self.metrics.clear(), self.validation.clear()
        for line in lines:
            try:
                row = check_row(parse_json(line), METRICS, "metrics.jsonl")
                (self.validation if row.get("val_loss") is not None else self.metrics).append(row)
                grown = True
            except (ValueError, AttributeError):
                self._bad_metrics += 1
        self._result = self._result or _json(self.path / "result.json")
        self._failure = _json(self.path / "failure.json")  # gone again when torchrun starts the run again
        if grown:
            self._grown_at = time.monotonic()
        return grown

    @property
    def ended(self) -> bool:
        """True when the run has said that it ended, well or badly."""
        return self._result is not None or self._failure is not None

    @property
    def result(self) -> dict[str, Any] | None:
        """What result.json says, once it is there."""
        return self._result

    @property
    def end_ns(self) -> int:
        """The last moment that every stage has reported; the slowest reporter decides, so that no row ends early."""
        ends = [int(rank.columns[5, rank.count - 1]) for rank in self._ranks.values() if rank.count]
        if not ends:
            return 0
        return max(ends) if self.ended else min(ends)

    def status(self) -> str:
        """The state of the run, in a sentence."""
        if self._failure is not None:
            why = self._failure.get("message") or _("failure.json does not say why")
            return _("The run failed: {why}").format(why=why)
        if self._result is not None:
            return _("The run ended well.")
        silent = time.monotonic() - self._grown_at
        if silent > _SILENT_S:
            return _(
                "The run has no result and has written nothing for {seconds} s: it was killed, or it stands still. "
                "What it wrote until then is shown."
            ).format(seconds=f"{silent:.0f}")
        return _("Running.")

    def problems(self) -> list[str]:
        """What is wrong with the run directory, in sentences; empty when all is well."""
        bad = sum(rank.bad for rank in self._ranks.values())
        lines = list(self.notes)
        if bad:
            words = ngettext(
                "{number} line of the trace cannot be read and is left out.",
                "{number} lines of the trace cannot be read and are left out.",
                bad,
            )
            lines.append(words.format(number=bad))
        if self._bad_metrics:
            words = ngettext(
                "{number} unreadable line of metrics.jsonl left out.",
                "{number} unreadable lines of metrics.jsonl left out.",
                self._bad_metrics,
            )
            lines.append(words.format(number=self._bad_metrics))
        missing = sorted(
            set(range(self.stages)) - {int(s) for r in self._ranks.values() for s in np.unique(r.columns[0, : r.count])}
        )
        if self._ranks and missing and (self.ended or self.end_ns):
            words = ngettext("No trace from stage {stages}.", "No trace from stages {stages}.", len(missing))
            lines.append(words.format(stages=", ".join(map(str, missing))))
        if self.ended and not any(rank.count for rank in self._ranks.values()):
            lines.append(_("There is no trace: the run was made without one, or it was not copied."))
        return lines

    # -- what is shown --------------------------------------------------------------------------------------------
    def window(self, end_ns: int, count: int) -> tuple[Trace, int, int]:
        """The last `count` events before `end_ns` over all ranks, and the span (start_ns, end_ns) they all cover."""
        ranks = [rank for rank in self._ranks.values() if rank.count]
        share = max(count // max(len(ranks), 1), 1)
        parts = [part for part in (rank.until(end_ns, share) for rank in ranks) if part.shape[1]]
        if not parts:
            return Trace([], source=self.source, stages=self.stages), 0, max(end_ns, 1)
        start = max((int(part[4, 0]) for part in parts if part.shape[1] >= share), default=0)
        columns = np.concatenate(parts, axis=1)
        columns = columns[:, columns[5] > start]
        return Trace.from_columns(list(columns), source=self.source, stages=self.stages), start, max(end_ns, start + 1)

    def trace(self) -> Trace:
        """Every event read so far."""
        columns = np.concatenate(
            [np.empty((len(_FIELDS), 0), np.int64), *(r.columns[:, : r.count] for r in self._ranks.values())], axis=1
        )
        return Trace.from_columns(list(columns), source=self.source, stages=self.stages)

    def losses(self, until_s: float) -> dict[str, tuple[list[float], list[float]]]:
        """(seconds, loss) of training and of validation up to a moment of training time."""
        rows = {"train_loss": self.metrics, "val_loss": self.validation}
        return {
            key: tuple(
                map(
                    list,
                    zip(
                        *[
                            (row["time_s"], row[key])
                            for row in found
                            if row.get("time_s", np.inf) <= until_s and row.get(key) is not None
                        ],
                        strict=True,
                    ),
                )
            )
            or ([], [])
            for key, found in rows.items()
        }

    def tokens_per_second(self, until_s: float, over_s: float = 5.0) -> float | None:
        """Tokens trained on per second over the last seconds before a moment; None when there are no two rows there."""
        rows = [r for r in self.metrics if until_s - over_s <= r.get("time_s", np.inf) <= until_s and "tokens" in r]
        if len(rows) < 2 or rows[-1]["time_s"] <= rows[0]["time_s"]:
            return None
        return (rows[-1]["tokens"] - rows[0]["tokens"]) / (rows[-1]["time_s"] - rows[0]["time_s"])


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path.parent, path)
    except InputError:
        return None
