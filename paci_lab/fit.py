"""Fit a wanted batch into the memory of a device: the largest micro-batch that every rank can hold, by measurement."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paci_lab.errors import InputError, RunFailed
from paci_lab.spec import TrainSpec

__all__ = ["Fit", "available_bytes", "fit", "parse_memory", "probing", "search", "sizes_for"]

Probe = Callable[[TrainSpec, int, int], "int | None"]
"""(resolved spec, rank, limit in bytes) -> the rank's peak in bytes; None when it was stopped at the limit."""

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclasses.dataclass(frozen=True)
class Fit:
    """What was found.

    Args:
        spec: with micro-batch size, window and partition decided.
        predicted: peak bytes of every rank by a straight line through the two largest smaller sizes that were probed,
            or the probe itself where there are not two.
        probed: peak bytes of every rank, by size; None for a rank that was stopped at the limit.
        next_size: the next larger size that was considered, and is too large; None when there is none.
    """

    spec: TrainSpec
    predicted: list[int]
    probed: dict[int, list[int | None]]
    next_size: int | None


def parse_memory(text: str) -> int:
    """Bytes of "8GB" (10^9), "512MB", "6GiB" (2^30) and the like.

    >>> parse_memory("8GB"), parse_memory("1.5 GiB")
    (8000000000, 1610612736)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmMgG]?i?[bB])\s*", text)
    if match is None or (count := float(match[1]) * _UNITS[match[2].upper()]) < 1:
        raise InputError("--memory", text, "a number with its unit: MB, GB, MiB or GiB", "write it as in 8GB")
    return int(count)


def available_bytes() -> int:
    """Memory of this machine that is free for use, as far as the system tells."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if most.isdigit():
            found.append(int(most) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except OSError:
        pass
    return max(min(found), 0)


def sizes_for(batch: int, spec: TrainSpec) -> list[int]:
    """Micro-batch sizes that divide each replica's share of `batch`, smallest first.

    A pipeline keeps a window of at least as many micro-batches as it has ranks, if the batch has them: fewer leave a
    flush mostly bubble and let PACI's version gap grow over 1. Sizes whose window the schedule refuses are left out.
    """

    def possible(size: int) -> bool:
        try:
            with_size(spec, batch, size)
        except InputError:
            return False
        return True

    if batch % spec.replicas:
        raise InputError("batch", batch, f"a multiple of the {spec.replicas} replicas", "round it up")
    ranks, share = spec.build_schedule().ranks, batch // spec.replicas
    sizes = [size for size in range(1, share + 1) if share % size == 0 and possible(size)]
    if not sizes:
        with_size(spec, batch, 1)  # refuses, in the schedule's words
    return [size for size in sizes if share // size >= ranks] or sizes[:1]


def with_size(spec: TrainSpec, batch: int, size: int) -> TrainSpec:
    """`spec` with this micro-batch size, its length and its evaluations counted in as many sequences as before."""
    changes: dict[str, int] = {"microbatch_size": size, "window": batch // spec.replicas // size}
    for field in ("microbatches", "evaluate_every"):
        if count := getattr(spec, field):
            changes[field] = max(1, round(count * spec.microbatch_size / size))
    return spec.replace(**changes)


def fit(
    spec: TrainSpec,
    *,
    memory: int,
    batch: int,
    headroom: float = 0.1,
    say: Callable[[str], None] = lambda text: None,
) -> Fit:
    """The largest micro-batch for `batch` sequences an update in `memory` bytes per device, of which a share `headroom`
    stays free.

    Raises InputError when the smallest does not fit (with what it needs), and what `resolve` raises.
    """
    from paci_lab.runtime.resolve import resolve

    if spec.engine != "paci-lab":
        raise InputError("engine", spec.engine, "paci-lab: it is this engine that is measured", "leave --engine out")
    sizes = sizes_for(batch, spec)
    smallest = resolve(with_size(spec, batch, sizes[0]))
    spec = spec.replace(partition=smallest.partition, device=smallest.device)
    with probing() as probe:
        return search(spec, sizes, memory=memory, batch=batch, headroom=headroom, probe=probe, say=say)


def search(
    spec: TrainSpec,
    sizes: Sequence[int],
    *,
    memory: int,
    batch: int,
    headroom: float,
    probe: Probe,
    say: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Double the place in `sizes` until one is too large, then halve the interval; a size whose prediction is over the
    budget is not tried."""
    from paci_lab.runtime.resolve import resolve

    budget = int(memory * (1 - headroom))
    ranks = range(spec.build_schedule().ranks)
    probed: dict[int, list[int | None]] = {}

    def fits(size: int) -> bool:
        if (guess := _predicted(probed, size)) is not None and max(guess) > budget:
            say(f"micro-batch {size}: predicted to need {_text(max(guess))}, not tried")
            return False
        asked = resolve(with_size(spec, batch, size))
        probed[size] = []
        for rank in ranks:
            probed[size].append(probe(asked, rank, memory))
            if probed[size][-1] is None or probed[size][-1] > budget:
                say(f"micro-batch {size}: rank {rank} needs more than {_text(budget)}")
                return False
        say(f"micro-batch {size}: at most {_text(max(probed[size]))} on a rank")
        return True

    if not fits(sizes[0]):
        raise _too_small(spec, batch, sizes[0], memory, headroom, probe)
    low, step = 0, 1
    high = len(sizes)
    while low + step < len(sizes) and fits(sizes[low + step]):
        low += step
        step *= 2
    high = min(low + step, len(sizes))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    best = sizes[low]
    smaller = {size: peaks for size, peaks in probed.items() if size < best}
    return Fit(
        spec=with_size(spec, batch, best),
        predicted=_predicted(smaller, best) or probed[best],
        probed=probed,
        next_size=sizes[high] if high < len(sizes) else None,
    )


def _predicted(probed: dict[int, list[int | None]], size: int) -> list[int] | None:
    """Every rank's bytes on the line through the two largest sizes that all ranks could hold; None without two."""
    whole = sorted(known for known, peaks in probed.items() if None not in peaks)
    # A size that was too large ends at the first rank that was, so it may have fewer ranks than the others.
    whole = [known for known in whole if len(probed[known]) == max(map(len, probed.values()))]
    if len(whole) < 2:
        return None
    a, b = whole[-2:]
    return [round(at_b + (at_b - at_a) / (b - a) * (size - b)) for at_a, at_b in zip(probed[a], probed[b], strict=True)]


def _too_small(spec: TrainSpec, batch: int, size: int, memory: int, headroom: float, probe: Probe) -> InputError:
    """The refusal, with what the smallest needs: measured in half of what this machine has free, if that is enough."""
    from paci_lab.dry_run import dry_run
    from paci_lab.runtime.resolve import resolve

    asked = resolve(with_size(spec, batch, size))
    limit = max(memory, available_bytes() // 2)
    needs = [probe(asked, rank, limit) for rank in range(asked.build_schedule().ranks)]
    if None in needs:
        rank = needs.index(None)
        estimate = max(stage.bytes for stage in dry_run(asked).stages)
        what = f"more than {_text(limit)} on rank {rank}, for its tensors alone about {_text(estimate)} by their shapes"
    else:
        needed = max(needs)
        what = f"{_text(int(needed / (1 - headroom)))}: rank {needs.index(needed)} was seen to hold {_text(needed)}"
        what += f" with micro-batches of {size}, and {headroom:.0%} stay free"
    return InputError("--memory", _text(memory), what, "use more stages, a shorter context or a smaller model")


def _text(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


@contextmanager
def probing() -> Iterator[Probe]:
    """A process beside this one that probes, so that what this one holds is not counted; it ends with the block."""
    logs = tempfile.TemporaryDirectory()
    server = subprocess.Popen(
        [sys.executable, "-m", "paci_lab.runtime.probe", logs.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def probe(spec: TrainSpec, rank: int, limit: int) -> int | None:
        server.stdin.write(json.dumps({"spec": spec.to_dict(), "rank": rank, "limit": limit}) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            raise RunFailed("the process that probes ended: its error is above")
        answer = json.loads(line)
        if answer["error"]:
            raise RunFailed(f"rank {rank} with micro-batches of {spec.microbatch_size} failed: {answer['error']}")
        return None if answer["stopped"] else answer["peak"]

    try:
        yield probe
    finally:
        server.kill()
        server.wait()
        logs.cleanup()
