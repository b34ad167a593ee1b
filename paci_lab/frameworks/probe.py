"""What is read off a training, whoever runs it: gradients as the optimizer used them, and memory as torch took it."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paci_lab.frameworks.case import IGNORED, Case

__all__ = ["Meter", "Probe", "Result"]


@dataclass(kw_only=True)
class Result:
    """One case through one framework.

    Attributes:
        gradients: per update, the gradient that the optimizer used (so after clipping) by parameter name.
        learning_rates, losses: per update, the rate used and the mean loss of the targets of its micro-batches.
        unused: micro-batches whose gradients no update used.
        seconds: from one update to the next, the median; peak_bytes: tensors alive at once. Both None if not measured.
        collectives: how often each kind of message between ranks was sent, when measured.
    """

    case: Case
    version: str = ""
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    unused: int = 0
    seconds: float | None = None
    peak_bytes: int | None = None
    collectives: dict[str, int] = field(default_factory=dict)


class Probe:
    """Listens to `optimizer`, which every framework calls in the end, instead of trusting what a framework reports.

    It reads after the step: some frameworks run forward and backward inside it.
    """

    def __init__(self, case: Case, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.result = Result(case=case)
        self._named = list(net.named_parameters())
        self.sums = [[0.0, 0.0]]  # per update, of the losses and of the targets; the last is of the update to come
        self._seen = 0
        self._times: list[float] = []
        optimizer.register_step_post_hook(self._stepped)

    def saw(self, total: Tensor, targets: Tensor) -> None:
        """A micro-batch's forward: the sum of its losses, and its targets."""
        self._seen += 1
        self.sums[-1][0] += float(total.detach())
        self.sums[-1][1] += int((targets != IGNORED).sum())

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        result = self.result
        result.learning_rates.append(float(optimizer.param_groups[0]["lr"]))
        self._seen = 0
        self.sums.append([0.0, 0.0])
        with torch.no_grad():
            result.gradients.append({name: _whole(p.grad) for name, p in self._named if p.grad is not None})
        self._times.append(time.perf_counter())

    def finish(self) -> Result:
        result = self.result
        result.unused = self._seen
        result.losses = [total / max(targets, 1) for total, targets in self.sums[:-1]]
        gaps = sorted(b - a for a, b in zip(self._times, self._times[1:], strict=False))
        result.seconds = gaps[len(gaps) // 2] if gaps else None
        return result


def _whole(gradient: Tensor) -> Tensor:
    """A copy in float32; a gradient that is spread over ranks is put together."""
    full = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return full.detach().float().clone()


class Meter(TorchDispatchMode):
    """A context that adds up the bytes of all tensors made in it that are alive, and counts messages between ranks.

    Exact and repeatable, unlike what the operating system reports: views and results in place count once.
    Buffers inside a kernel are not seen.

    Attributes:
        now, peak: bytes, at this moment and at most.
        collectives: name of the operation -> calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.collectives: Counter[str] = Counter()
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            self.collectives[func.overloadpacket.__name__] += 1
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                with contextlib.suppress(NotImplementedError, RuntimeError):  # a wrapper has no storage of its own
                    self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive or storage.device.type == "meta":
            return
        size = storage.nbytes()
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._released, key, size)

    def _released(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size
