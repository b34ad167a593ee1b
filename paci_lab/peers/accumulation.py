"""Plain gradient accumulation: one process, no pipeline, the loop that everybody writes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from paci_lab.data import Data
from paci_lab.models import Model
from paci_lab.runtime.stage import Stage
from paci_lab.runtime.worker import PACED_DELAY, Worker
from paci_lab.schedules import Op

__all__ = ["AccumulationRank"]


class AccumulationRank(Worker):
    """Forward and backward of one micro-batch after the other, then the update."""

    def prepare(self, model: Model, data: Data) -> None:
        self.model, self.data = model, data
        torch.manual_seed(self.spec.seed)  # dropout masks are one stream, the same in every repetition

    def interpret(self) -> None:
        stage = self.stages[0]
        for update in range(self.schedule.updates):
            tokens = max(stage.window_tokens(update), 1)
            for microbatch in self.schedule.window_microbatches(update):
                loss = self.timed("F", microbatch, lambda m=microbatch: self.forward(stage, m))
                self.timed("B", microbatch, (loss / tokens).backward)
                stage.losses.append((microbatch, loss.detach() / max(self.data.train_tokens(microbatch), 1)))
            self.recorder.now(Op(0, "U", update))
            self.update(stage, update)

    def forward(self, stage: Stage, microbatch: int) -> Tensor:
        """Sum of the token losses of one micro-batch."""
        activation, targets = (tensor.to(self.device) for tensor in self.data.train(microbatch))
        for layer in stage.layers:
            activation = layer(activation)
        return self.model.loss(activation, targets)

    def timed(self, kind: str, microbatch: int, work: Callable[[], Tensor | None]) -> Tensor | None:
        """Do `work` on the clock, paced if the spec says so, and record it."""
        self.recorder.now(Op(0, kind, microbatch))
        version, pace_ns = self.stages[0].version, self.paces[0][kind]
        started = self.timer.start()
        if pace_ns:
            time.sleep(pace_ns * PACED_DELAY / 1e9)
        result = work()

        def done(start_ns: int, end_ns: int) -> None:
            update = self.schedule.window_of(microbatch)
            self.recorder.event(0, kind, microbatch, start_ns, end_ns, version, update)

        self.timer.report(self.timer.stop(started, pace_ns), done)
        return result
