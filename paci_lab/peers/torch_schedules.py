"""torch.distributed.pipelining: its own `PipelineStage`, schedules and messages, on this project's clock.

torch calls its stage for every operation, so that is where an operation is timed, paced and written to the trace, just
as the engine does it. The loss belongs to the forward of the last stage, as in the engine. The first call of `step`,
in which torch finds out shapes and warms up, is made before the clock starts and its gradients are dropped.

Written against torch 2.13.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from paci_lab.data import Data
from paci_lab.models import Model
from paci_lab.runtime.p2p import PeerLost
from paci_lab.runtime.stage import Stage
from paci_lab.runtime.worker import PACED_DELAY, Worker
from paci_lab.schedules import Op

__all__ = ["TorchRank"]

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb-h1": ScheduleInterleavedZeroBubble,  # with one stage on a rank it is the paper's ZB1P
    "zb-v": ScheduleZBVZeroBubble,
}


class TorchRank(Worker):
    """A rank whose stages are run by torch's schedule; start, update, snapshots and records are the engine's."""

    def prepare(self, model: Model, data: Data) -> None:
        self.model, self.data = model, data
        self.watching = False
        torch.manual_seed(self.spec.seed)  # dropout masks are torch's own, but the same in every repetition
        stages = [TimedStage(self, stage) for stage in self.stages.values()]
        kind = SCHEDULES[self.spec.schedule]
        self.pipeline = kind(
            stages[0] if issubclass(kind, PipelineScheduleSingle) else stages,
            self.spec.window,
            loss_fn=self.loss,
            scale_grads=False,
        )
        self.step(0)
        for stage in self.stages.values():
            stage.optimizer.zero_grad()
        self.watching = True

    def interpret(self) -> None:
        for update in range(self.schedule.updates):
            losses = self.step(update)
            for stage in self.stages.values():
                if stage.last:
                    tokens = stage.window_tokens(update)
                    stage.losses = [
                        (microbatch, loss.detach() * tokens / max(self.data.train_tokens(microbatch), 1))
                        for microbatch, loss in zip(self.microbatches, losses, strict=True)
                    ]
                self.recorder.now(Op(stage.stage, "U", update))
                self.update(stage, update)

    def step(self, update: int) -> list[Tensor]:
        """One call of torch's schedule; the loss of every micro-batch where the last stage is."""
        self.microbatches = self.schedule.window_microbatches(update)
        self.tokens = max(sum(map(self.data.train_tokens, self.microbatches)), 1)
        batches = [self.data.train(microbatch) for microbatch in self.microbatches]
        inputs, losses, options = [], [], {}
        if any(stage.first for stage in self.stages.values()):
            inputs.append(torch.cat([tokens for tokens, _ in batches]).to(self.device))
        if any(stage.last for stage in self.stages.values()):
            options = {"target": torch.cat([targets for _, targets in batches]).to(self.device), "losses": losses}
        try:
            self.pipeline.step(*inputs, **options, return_outputs=False)
        except RuntimeError as error:
            if "onnection" in str(error) and "peer" in str(error):  # gloo's words for a rank that has gone
                raise PeerLost(f"a rank has gone: {error}") from error
            raise
        return losses

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Of one micro-batch, so divided that a window adds up to its mean per token."""
        loss = self.model.loss(output, targets) / self.tokens
        self.end()
        return loss

    # -- one operation on the clock -------------------------------------------------------------------------------
    def begin(self, stage: Stage, kind: str, chunk: int) -> None:
        """Before torch's work for micro-batch number `chunk` of the window."""
        if self.watching:
            self.op = Op(stage.stage, kind, self.microbatches[chunk])
            self.recorder.now(self.op)
            self.pace_ns = self.paces[stage.stage][kind]
            self.started = self.timer.start()
            if self.pace_ns:
                time.sleep(self.pace_ns * PACED_DELAY / 1e9)

    def end(self) -> None:
        """After it: wait for the stated duration, if there is one, and record."""
        if self.watching:
            op, version = self.op, self.stages[self.op.stage].version

            def done(start_ns: int, end_ns: int) -> None:
                update = self.schedule.window_of(op.microbatch)
                self.recorder.event(op.stage, op.kind, op.microbatch, start_ns, end_ns, version, update)

            self.timer.report(self.timer.stop(self.started, self.pace_ns), done)


class TimedStage(PipelineStage):
    """torch's stage over the layers of `stage`, telling `rank` when an operation begins and ends."""

    def __init__(self, rank: TorchRank, stage: Stage) -> None:
        super().__init__(nn.Sequential(*stage.layers), stage.stage, rank.spec.stages, rank.device)
        self._rank, self._own = rank, stage

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._rank.begin(self._own, "F", fwd_chunk_id)
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if not self.is_last:  # there the loss is still to come, see `TorchRank.loss`
            self._rank.end()
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, **kwargs: Any
    ) -> None:
        self._rank.begin(self._own, "B" if full_backward else "I", bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, loss=loss, full_backward=full_backward, **kwargs)
        self._rank.end()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, **kwargs: Any) -> None:
        self._rank.begin(self._own, "W", bwd_chunk_id)
        super().backward_weight_one_chunk(bwd_chunk_id, **kwargs)
        self._rank.end()
