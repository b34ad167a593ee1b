"""Whether the times of several hosts may stand on one axis, and what a reader must be told if not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paci_lab.reading import check_row

__all__ = ["doubt_about_clocks"]


def doubt_about_clocks(clock: Mapping[str, Any] | None, *, hosts: int, shortest_ns: int) -> str:
    """Why the events of a run may be out of order between its hosts, in words for its source; "" when they are not.

    Times are right to the uncertainty of the measured offsets, plus what a clock has drifted since. An operation that
    is shorter than that may be drawn before the one that it waited for.

    Args:
        clock: what `clock.json` holds, None when there is none.
        hosts: on how many hosts the run was, as `environment.json` says.
        shortest_ns: of its operations.
    """
    if hosts < 2:
        return ""
    ranks = (clock or {}).get("ranks")
    if not isinstance(ranks, list) or not ranks:
        return f"the clocks of its {hosts} hosts were not measured: times of different hosts cannot be compared"
    worst = 0
    for rank in ranks:
        known = {name: value for name, value in rank.items() if value is not None} if isinstance(rank, dict) else rank
        numbers = dict.fromkeys((*_OFFSETS, *_UNCERTAINTIES), "number")
        row = check_row(known, numbers, "clock.json")
        drift = row.get("clock_offset_end_ns", row.get("clock_offset_ns", 0)) - row.get("clock_offset_ns", 0)
        worst = max(worst, abs(drift) + max(row.get(name, 0) for name in _UNCERTAINTIES))
    if worst <= shortest_ns:
        return ""
    return (
        f"the clocks of its {hosts} hosts agree to {worst / 1e6:.3g} ms only, more than its shortest operation takes "
        f"({shortest_ns / 1e6:.3g} ms): times of different hosts cannot be compared that closely"
    )


_OFFSETS = ("clock_offset_ns", "clock_offset_end_ns")
_UNCERTAINTIES = ("uncertainty_ns", "uncertainty_end_ns")
