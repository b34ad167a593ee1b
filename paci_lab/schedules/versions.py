"""Which versions of its weights a stage still needs: the bookkeeping of weight stashing and of double buffering."""

from __future__ import annotations

from paci_lab.schedules.schedule import Schedule

__all__ = ["NeededVersions", "weight_copies"]


class NeededVersions:
    """Versions that one stage of a schedule with `version_used` has to keep beside its live weights.

    Version v is the weights after v updates. Forwards are expected in the order of their micro-batches.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.live = schedule.first_update
        self.used: dict[int, int] = {}  # micro-batch -> version, forward done and backward not
        self.kept: set[int] = set()
        self.peak = 0  # most versions kept at once, the live one not counted
        self._next = schedule.stream.start

    def forward(self, microbatch: int) -> int:
        """Begin a forward; the version that it and its backward use."""
        version = self.schedule.version_used(microbatch, self.live)
        assert version is not None, "a schedule on live weights keeps no versions"
        assert version == self.live or version in self.kept, f"version {version} is not kept any more"
        self.used[microbatch] = version
        self._next = microbatch + 1
        return version

    def release(self, microbatch: int) -> None:
        """The backward of `microbatch` is over."""
        del self.used[microbatch]
        self._drop()

    def update(self) -> int | None:
        """An update follows; the version to copy before it, or None when nobody will ask for it again."""
        before, self.live = self.live, self.live + 1
        self._drop()
        if not self._needed(before):
            return None
        self.kept.add(before)
        self.peak = max(self.peak, len(self.kept))
        return before

    def _drop(self) -> None:
        self.kept = {version for version in self.kept if self._needed(version)}

    def _needed(self, version: int) -> bool:
        if version in self.used.values():
            return True
        more = self._next < self.schedule.microbatches
        return more and self.schedule.version_used(self._next, self.live) == version


def weight_copies(schedule: Schedule, stage: int) -> int:
    """Most copies of its weights that `stage` holds at once, the live one included."""
    if schedule.version_used(0, 0) is None:
        return 1
    needed = NeededVersions(schedule)
    for op in schedule.ops(schedule.rank_of(stage)):
        if op.stage == stage and op.kind == "F":
            needed.forward(op.microbatch)
        elif op.stage == stage and op.kind in "BW":
            needed.release(op.microbatch)
        elif op.stage == stage and op.kind == "U":
            needed.update()
    return 1 + needed.peak
