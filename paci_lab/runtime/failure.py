"""What `failure.json` says of a rank that ended a run: which, where, in what, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paci_lab.runtime.rundir import RunDir
from paci_lab.schedules import Op, Schedule

__all__ = ["failure_of"]


def failure_of(
    run: RunDir,
    schedule: Schedule,
    ranks: int,
    rank: int,
    op: Op | None,
    say: Callable[[str], str],
    *,
    cause: str | None = None,
) -> dict[str, Any]:
    """The content of `failure.json`.

    Args:
        run, schedule: the run, and one of its pipelines.
        ranks: how many there are, of all replicas.
        rank: the one to blame. op: what it was at; None at its start.
        say: what happened, given the operation in words.
        cause: without the operation; all of what `say` says when None.
    """
    replica, place = divmod(rank, schedule.ranks)
    stage = op.stage if op else schedule.stages_of(place)[0]
    where = f"replica {replica}, stage {stage}" if ranks > schedule.ranks else f"stage {stage}"
    microbatch = op.microbatch if op and op.kind != "U" else None
    what = f"operation {op}" if op else "start-up"
    if microbatch is not None:
        what += f" (micro-batch {microbatch})"
    said, log = say(what), str(run.log_file(rank))
    return {
        "message": f"rank {rank} ({where}) {said}. Its log: {log}",
        "rank": rank,
        "replica": replica,
        "stage": stage,
        "op": str(op) if op else None,
        "microbatch": microbatch,
        "cause": said if cause is None else cause,
        "log": log,
    }
