"""Which weights a forward and its backward use: the live ones, or exactly one version, on stock torch.

Autograd saves the weights that a backward will need. Hooks on saved tensors put a note in their place, "parameter 3 of
version 17", and the backward is given that version, wherever it is by then: still live, or in a copy made just before
the update that would have overwritten it. So a version that nobody waits for is never copied, one that several
micro-batches wait for is copied once, and the gradients land on the live parameters as always.

What a module hides from autograd (a weight kept in a custom Function's own attributes) is beyond these hooks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paci_lab.schedules import NeededVersions, Schedule

__all__ = ["KeptVersions", "LiveWeights", "weights_for"]


class LiveWeights:
    """One copy: forward and backward each use what the stage holds at that moment."""

    kept_share = 0.0

    def forward(self, microbatch: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def again(self, microbatch: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def release(self, microbatch: int) -> None:
        pass

    def before_update(self) -> None:
        pass


class _Note(NamedTuple):
    """A view of a parameter, as autograd saved it."""

    version: int
    parameter: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class KeptVersions:
    """Forward and backward of a micro-batch use one version, the one that `Schedule.version_used` says.

    Attributes:
        kept_share: most weights kept at once beside the live ones, as a multiple of the stage's weights.
    """

    def __init__(self, schedule: Schedule, parameters: Sequence[nn.Parameter]) -> None:
        self.needed = NeededVersions(schedule)
        self.parameters = tuple(parameters)
        self.copies: dict[int, list[Tensor]] = {}
        self.kept_share = 0.0
        self._own = sum(parameter.numel() for parameter in parameters)

    def forward(self, microbatch: int) -> contextlib.AbstractContextManager[None]:
        """Run the block, a forward of `microbatch`, on its version of the weights."""
        return self._on(self.needed.forward(microbatch))

    def again(self, microbatch: int) -> contextlib.AbstractContextManager[None]:
        """Run the block, a second forward of `microbatch`, on the version that its first one used."""
        return self._on(self.needed.used[microbatch])

    @contextmanager
    def _on(self, version: int) -> Iterator[None]:
        values = self._values(version)
        number_of = {value.untyped_storage().data_ptr(): number for number, value in enumerate(values)}

        def pack(saved: Tensor) -> Tensor | _Note:
            number = number_of.get(saved.untyped_storage().data_ptr())
            if number is None or saved.dtype != values[number].dtype:
                return saved
            return _Note(version, number, saved.size(), saved.stride(), saved.storage_offset())

        def unpack(saved: Tensor | _Note) -> Tensor:
            if isinstance(saved, Tensor):
                return saved
            live = saved.version == self.needed.live  # looked up by itself: this is called for every saved weight
            value = self.parameters[saved.parameter].detach() if live else self.copies[saved.version][saved.parameter]
            return value.as_strided(saved.size, saved.stride, saved.offset)

        # The parameters stay the leaves of the graph, so that gradients of all versions add up in one place.
        live = values if version == self.needed.live else self._values(self.needed.live)
        if values is not live:
            self._show(values)
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                yield
        finally:
            if values is not live:
                self._show(live)

    def release(self, microbatch: int) -> None:
        """The backward of `microbatch` is over."""
        self.needed.release(microbatch)
        self._drop()

    def before_update(self) -> None:
        """Copy the weights if anybody still needs them; an update of the live ones follows."""
        version = self.needed.update()
        self._drop()
        if version is not None:
            self.copies[version] = [parameter.detach().clone() for parameter in self.parameters]
            kept = sum(tensor.numel() for copy in self.copies.values() for tensor in copy)
            self.kept_share = max(self.kept_share, kept / max(self._own, 1))

    def _values(self, version: int) -> list[Tensor]:
        if version == self.needed.live:
            return [parameter.detach() for parameter in self.parameters]
        return self.copies[version]

    def _show(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.data = value

    def _drop(self) -> None:
        for version in self.copies.keys() - self.needed.kept:
            del self.copies[version]


def weights_for(schedule: Schedule, parameters: Sequence[nn.Parameter]) -> LiveWeights | KeptVersions:
    """What `schedule` asks for."""
    return LiveWeights() if schedule.version_used(0, 0) is None else KeptVersions(schedule, parameters)
