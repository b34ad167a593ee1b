"""Replicas: copies of the whole pipeline, whose same stages add up their gradients before every update.

Rank `replica * schedule.ranks + place` is rank `place` of that replica's pipeline; every replica follows the same
schedule. Micro-batch m of replica r is micro-batch m * replicas + r of the data stream, so `replicas` pipelines with
window a read what one with window replicas * a reads, window by window.

The version rule: U waits for the gradients of all replicas, so versions and gaps are those of one pipeline. What
overlaps is the rest of the window's last backward: a bucket is on its way as soon as its gradients are final there.

The order of the sum is replica 0's gradient, plus replica 1's, and so on, whoever comes first. A ring, as gloo's own
all-reduce is one, adds every part of a tensor in another order; so each replica is sent its share of every other
one's gradients, adds them in that order, and sends the sum back to all: as many bytes as a ring, and the numbers of
one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paci_lab.runtime.p2p import PeerLost
from paci_lab.schedules import Schedule
from paci_lab.spec import TrainSpec

__all__ = ["BUCKET_BYTES", "Bucket", "Reducer", "ReplicaGroup", "add_up_here"]

BUCKET_BYTES = 25 * 2**20
"""Gradients that travel together, as in torch's DistributedDataParallel: the first leave while others are computed."""

_ALIGNED_BYTES = 64
"""Where torch begins a tensor of its own. A gradient within a bucket does too: kernels may add up in an order that
depends on it, and the numbers must be those of a stage without replicas."""


class ReplicaGroup:
    """The ranks that hold the same stages, one of every replica; runs what they do together beside the computation.

    All ranks of the run make theirs at the same time, for making process groups is collective.

    Args:
        spec, schedule: the run, and one of its pipelines.
        rank: of this process in the whole run.
        device: of its stages.
    """

    def __init__(self, spec: TrainSpec, schedule: Schedule, rank: int, device: torch.device) -> None:
        self.replicas, self.device = spec.replicas, device
        self.replica, place = divmod(rank, schedule.ranks)
        self.ranks = [replica * schedule.ranks + place for replica in range(self.replicas)]
        for other in range(schedule.ranks):
            ranks = [replica * schedule.ranks + other for replica in range(self.replicas)]
            group = dist.new_group(ranks, timeout=timedelta(hours=1))
            if other == place:
                self.group = group
        self.staged = spec.backend == "gloo" and device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if spec.backend == "nccl" else None
        # gloo's collectives block the thread that asks for them, so that is one of its own: one, for they must come in
        # the same order on all replicas.
        self.thread = ThreadPoolExecutor(1, "replicas", partial(_begin_thread, spec.threads, device))
        self.start(partial(self.add_up, torch.zeros(self.replicas, device=device)))()  # connects them all now

    def start(self, action: Callable[[], None]) -> Callable[[], None]:
        """Begin `action`, which calls `add_up`; what is returned waits for it (on NCCL the stream does, not the host).

        Actions run one after the other in the order of the calls.
        """
        if self.stream is None:
            return self.thread.submit(action).result
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            action()
        return lambda: torch.cuda.current_stream().wait_stream(self.stream)

    def add_up(self, flat: Tensor) -> None:
        """Replace `flat` by the sum of all replicas' in their order; its length is a multiple of `replicas`."""
        ours = flat.cpu() if self.staged else flat
        shares = torch.empty_like(ours).view(self.replicas, -1)
        _together(dist.all_to_all_single, shares, ours.view(self.replicas, -1), group=self.group)
        for share in shares[1:]:
            shares[0].add_(share)
        _together(dist.all_gather_into_tensor, ours, shares[0], group=self.group)
        if self.staged:
            flat.copy_(ours)

    def hand_out(self, flat: Tensor, replica: int) -> None:
        """Replace `flat` by that of `replica`."""
        ours = flat.cpu() if self.staged else flat
        _together(dist.broadcast, ours, self.ranks[replica], group=self.group)
        if self.staged:
            flat.copy_(ours)


def _begin_thread(threads: int, device: torch.device) -> None:
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _together(collective: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    try:
        collective(*arguments, **options)
    except RuntimeError as error:
        raise PeerLost(f"lost the connection to another replica: {error}") from error


class Bucket:
    """Some parameters' gradients, side by side in one tensor, where the backwards of a window add them up."""

    def __init__(self, parameters: Sequence[nn.Parameter], replicas: int) -> None:
        self.parameters = list(parameters)
        dtype = _gradient_dtype(parameters[0])
        aligned = _ALIGNED_BYTES // dtype.itemsize
        starts, size = [], 0
        for parameter in parameters:
            starts.append(size)
            size += -(-parameter.numel() // aligned) * aligned
        size = -(-size // (aligned * replicas)) * aligned * replicas
        self.flat = torch.zeros(size, dtype=dtype, device=parameters[0].device)
        self.gradients = [
            self.flat[start : start + parameter.numel()].view(parameter.shape)
            for start, parameter in zip(starts, parameters, strict=True)
        ]

    def clear(self) -> None:
        """Begin a window: its backwards add to zeros, here. A parameter that none of them uses has gradient zero."""
        self.flat.zero_()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient


def _gradient_dtype(parameter: nn.Parameter) -> torch.dtype:
    return parameter.grad_dtype or parameter.dtype  # a bfloat16 weight has a float32 gradient


def buckets_of(parameters: Sequence[nn.Parameter], replicas: int, bucket_bytes: int) -> list[Bucket]:
    """Buckets of one dtype each, the last parameters first: a backward finishes them in about this order."""
    groups: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed([parameter for parameter in parameters if parameter.requires_grad]):
        size += parameter.numel() * _gradient_dtype(parameter).itemsize
        if not groups or size > bucket_bytes or _gradient_dtype(parameter) != _gradient_dtype(groups[-1][0]):
            groups.append([])
            size = parameter.numel() * _gradient_dtype(parameter).itemsize
        groups[-1].append(parameter)
    return [Bucket(group, replicas) for group in groups]


class Reducer:
    """Adds up one stage's gradients over the replicas, window by window.

    Args:
        parameters: of the stage.
        replicas: how many pipelines there are.
        group: this rank's; None where all replicas are in this process, and `add_up_here` is called instead of `wait`.
        early: start a bucket within the window's last backward. Not for one made in halves, whose parts may add to the
            same weight one after the other: there all buckets start after it.
        bucket_bytes: for tests.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        replicas: int,
        group: ReplicaGroup | None = None,
        *,
        early: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.group = group
        self.buckets = buckets_of(parameters, replicas, bucket_bytes)
        self.gathered = 0  # backwards of this window
        self.started: list[Callable[[], None]] = []  # waits, one for every bucket on its way
        self._missing: list[int] | None = None  # in the window's last backward, gradients to come by bucket
        if early:
            for number, bucket in enumerate(self.buckets):
                for parameter in bucket.parameters:
                    parameter.register_post_accumulate_grad_hook(partial(self._final, number))

    @contextmanager
    def backward(self, window: int) -> Iterator[None]:
        """Run the block, a B or a W, one of `window` that make an update."""
        if self.gathered == 0:
            for bucket in self.buckets:
                bucket.clear()
        self.gathered += 1
        if self.gathered < window or self.group is None:
            yield
            return
        self._missing = [len(bucket.parameters) for bucket in self.buckets]
        yield
        self._missing = None
        while len(self.started) < len(self.buckets):
            self._start_next()

    def _final(self, number: int, parameter: nn.Parameter) -> None:
        if self._missing is None:
            return
        if number < len(self.started):
            raise RuntimeError(
                f"the gradient of a weight of shape {tuple(parameter.shape)} came after its reduction had started: one "
                "backward adds to a weight of this stage more than once, which replicas cannot do"
            )
        self._missing[number] -= 1
        while len(self.started) < len(self.buckets) and self._missing[len(self.started)] == 0:
            self._start_next()

    def _start_next(self) -> None:
        flat = self.buckets[len(self.started)].flat
        self.started.append(self.group.start(partial(self.group.add_up, flat)))

    def wait(self) -> None:
        """Until the parameters' gradients are those of all replicas. The update comes next."""
        for wait in self.started:
            wait()
        self.started.clear()
        self.gathered = 0


def add_up_here(reducers: Sequence[Reducer]) -> None:
    """What `wait` does, for the same stage of all replicas in one process."""
    for same in zip(*(reducer.buckets for reducer in reducers), strict=True):
        first, *others = (bucket.flat for bucket in same)
        for other in others:
            first.add_(other)
        for other in others:
            other.copy_(first)
    for reducer in reducers:
        reducer.gathered = 0
