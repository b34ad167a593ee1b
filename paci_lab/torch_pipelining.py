"""`SchedulePACI`: PACI where `Schedule1F1B` of torch.distributed.pipelining stands, over the same `PipelineStage`.

    schedule = SchedulePACI(stage, n_microbatches=8, loss_fn=loss_fn, optimizer=optimizer)
    for batch, target in loader:
        schedule.step(batch)              # first stage; step(target=target, losses=[]) on the last, step() between
    schedule.flush()                      # before evaluation, a checkpoint, and at the end

The optimizer is the schedule's to step: remove `optimizer.step()` and `optimizer.zero_grad()` from the loop. A call of
`step` returns with up to N - 1 - s micro-batches of stage s still on their way; the next call goes on with them, so the
pipeline is filled once and not once a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._composable.fsdp import FSDPModule
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, _batch_p2p, _wait_batch_p2p
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.nn.parallel import DistributedDataParallel

from paci_lab.accumulation import LocalAccumulation
from paci_lab.errors import InputError
from paci_lab.runtime.guard import self_test

__all__ = ["SchedulePACI"]


class SchedulePACI(PipelineScheduleSingle):
    """1F1B that never flushes: every stage steps its own optimizer after each window of micro-batches.

    It uses underscored parts of torch's pipelining module: tested with 2.12.1, 2.13.0 and 2.14.1 (`make test-torch`).

    Args:
        stage, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads: as in
            torch's `Schedule1F1B`. With `scale_grads`, for a `loss_fn` that is a mean, gradients are divided by the
            number of micro-batches in their window before the optimizer steps.
        optimizer: of this stage's parameters.
        window: micro-batches per update; `n_microbatches` when None.

    Raises InputError for fewer micro-batches than stages, a window below 1, a stage wrapped for data parallelism, or a
    torch before 2.12.

    Attributes:
        accumulation: counts this stage's updates (`accumulation.version`).
    """

    def __init__(
        self,
        stage: _PipelineStageBase,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor],
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
        *,
        optimizer: Any,
        window: int | None = None,
    ) -> None:
        if torch.__version__ < (2, 12):
            raise InputError("torch", torch.__version__, "2.12 or newer for SchedulePACI", "install a newer torch")
        if n_microbatches < stage.num_stages:
            raise InputError(
                "n_microbatches", n_microbatches, f"{stage.num_stages} or more, as stages", "give more micro-batches"
            )
        if isinstance(stage.submod, DistributedDataParallel | FSDPModule):
            raise InputError(
                "stage", type(stage.submod).__name__, "a module without data parallelism", "pass the bare module"
            )
        self_test(str(stage.device))
        super().__init__(
            stage, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads
        )
        self.accumulation = LocalAccumulation(
            optimizer, window=n_microbatches if window is None else window, parameters=[*stage.submod.parameters()]
        )
        self._in_flight: deque[int] = deque()  # slots: forward done and backward not, oldest first
        self._next_slot = 0
        self._held: dict[int, Any] = {}  # torch forgets what is in flight at the start of a step; this does not
        self._unsent: list[dist.P2POp] = []  # to be sent together with the next receive from the same neighbour
        self._sending: list[tuple[list[dist.P2POp], list[dist.Work]]] = []  # tensors stay alive until they are sent

    def _step_microbatches(
        self,
        arg_mbs: list | None = None,
        kwarg_mbs: list | None = None,
        target_mbs: list | None = None,
        losses: list | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """One call of `step`: as many forwards as micro-batches, and a backward whenever N - s are in flight."""
        if not self._has_backward and self._held:
            raise RuntimeError("micro-batches are in flight: call flush() on every stage before eval()")
        arg_mbs, kwarg_mbs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        first_target = target_mbs[0] if target_mbs is not None else None
        more = {} if loss_kwargs is None else {"loss_kwargs": loss_kwargs}  # torch 2.12 does not know them
        self._initialize_stage(arg_mbs[0], kwarg_mbs[0], first_target, **more)
        stage = self._stage
        stage.fwd_cache.update(self._held)
        most = stage.num_stages - stage.stage_index
        for number, (args, kwargs) in enumerate(zip(arg_mbs, kwarg_mbs, strict=True)):
            slot = self._next_slot if self._has_backward else number
            self._exchange(stage.get_fwd_recv_ops(slot))
            output = stage.forward_one_chunk(slot, args, kwargs, save_forward_output=return_outputs)
            self._maybe_compute_loss(stage, output, target_mbs, number, **more)
            self._unsent = stage.get_fwd_send_ops(slot)
            if not self._has_backward:
                continue
            self._next_slot = (slot + 1) % self._n_microbatches
            self._in_flight.append(slot)
            if len(self._in_flight) == most:
                self._backward(self._maybe_get_loss(stage, number))
        self._send()
        self._held = dict(stage.fwd_cache) if self._has_backward else {}
        self._update_losses(stage, losses)

    def flush(self) -> None:
        """Finish what is in flight and close a window that is not full. To be called on every stage.

        The next `step` fills the pipeline anew.
        """
        self._stage.fwd_cache.update(self._held)
        while self._in_flight:
            self._backward(None)
        self._send()
        self._settle()
        self._held = {}
        if self.accumulation.pending:
            self._scale(self.accumulation.pending)
            self.accumulation.finish()

    # -- parts ----------------------------------------------------------------------------------------------------
    def _backward(self, loss: Tensor | None) -> None:
        slot = self._in_flight.popleft()
        self._exchange(self._stage.get_bwd_recv_ops(slot))
        self._stage.backward_one_chunk(slot, loss=loss)
        self._unsent = self._stage.get_bwd_send_ops(slot)
        if self.accumulation.pending + 1 == self.accumulation.window:
            self._send()  # the neighbour need not wait for the update
            self._scale(self.accumulation.window)
        self.accumulation.backward_done()

    def _scale(self, microbatches: int) -> None:
        if self.scale_grads:
            self._stage.scale_grads(microbatches)

    def _exchange(self, receives: list[dist.P2POp]) -> None:
        """Receive, and send with it what the last operation made: two neighbours that both send first would wait for
        each other for ever on NCCL."""
        self._settle()
        ops, self._unsent = self._unsent + receives, []
        _wait_batch_p2p(_batch_p2p(ops))

    def _send(self) -> None:
        ops, self._unsent = self._unsent, []
        if ops:
            self._sending.append((ops, _batch_p2p(ops)))

    def _settle(self) -> None:
        for _, works in self._sending:
            _wait_batch_p2p(works)
        self._sending.clear()
