"""`LocalAccumulation`: a stage's own optimizer, stepped after each window of backwards and after nothing else.

It is what PACI asks of a stage (arXiv 2606.07881), and all it asks: no flush, no copies, no word with other stages. The
engine's stages use it, `paci_lab.torch_pipelining` uses it, and so can a pipeline loop of your own:

    local = LocalAccumulation(optimizer, window=8)
    ...
    loss.backward()          # with the loss of a micro-batch divided by what the window holds
    local.backward_done()    # steps after every eighth
    ...
    local.finish()           # at the end of the stream: a window that is not full is stepped as it is
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from paci_lab.errors import InputError
from paci_lab.runtime.guard import guarded_step

__all__ = ["LocalAccumulation"]


class LocalAccumulation:
    """Counts backwards and steps `optimizer` behind the version guard when a window is full.

    Args:
        optimizer: anything with `step()` and `zero_grad()`.
        window: backwards per update.
        parameters: what `step` changes; those of a torch optimizer's `param_groups` when None.

    Raises InputError for a window below 1.

    Attributes:
        version: updates made so far, the stage's weight version.
        pending: backwards since the last update.
    """

    def __init__(self, optimizer: Any, *, window: int, parameters: Sequence[Tensor] | None = None) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise InputError("window", window, "a whole number from 1", "give the micro-batches of one update")
        if parameters is None:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.optimizer, self.window, self.parameters = optimizer, window, tuple(parameters)
        self.version, self.pending = 0, 0

    def backward_done(self) -> bool:
        """Count one backward; True when it filled the window and the optimizer has stepped."""
        self.pending += 1
        if self.pending < self.window:
            return False
        self.step()
        return True

    def finish(self) -> bool:
        """Step a window that is not full, at the end of the stream; False when there was nothing to step."""
        if not self.pending:
            return False
        self.step()
        return True

    def step(self) -> None:
        """Step now and start the next window from nothing. Forwards whose backward is still to come stay valid: their
        backward will use the weights as they are then."""
        guarded_step(self.optimizer.step, self.parameters)
        self._next_window()

    def skip(self) -> None:
        """Drop the gradient and start the next window: an update that leaves weights and optimizer as they are. It has
        a version number like any other, so that the windows of all stages stay the same micro-batches."""
        self._next_window()

    def _next_window(self) -> None:
        self.optimizer.zero_grad()
        self.version += 1
        self.pending = 0
