"""A single process with the whole batch at once: no pipeline, no accumulation, one forward and backward an update."""

from __future__ import annotations

import torch
from torch import Tensor

from paci_lab.peers.accumulation import AccumulationRank
from paci_lab.runtime.stage import Stage
from paci_lab.schedules import Op

__all__ = ["SingleRank"]


class SingleRank(AccumulationRank):
    """The micro-batches of a window put together to one batch; in the trace it is the window's first micro-batch."""

    def interpret(self) -> None:
        stage = self.stages[0]
        for update in range(self.schedule.updates):
            microbatches = self.schedule.window_microbatches(update)
            tokens = max(stage.window_tokens(update), 1)
            losses = self.timed("F", microbatches[0], lambda them=microbatches: self.forward_all(stage, them))
            mean = losses.sum() / tokens
            self.timed("B", microbatches[0], mean.backward)
            stage.losses = [
                (microbatch, loss / max(self.data.train_tokens(microbatch), 1))
                for microbatch, loss in zip(microbatches, losses.detach(), strict=True)
            ]
            self.recorder.now(Op(0, "U", update))
            self.update(stage, update)

    def forward_all(self, stage: Stage, microbatches: range) -> Tensor:
        """(micro-batches,): sum of the token losses of each, so that a run says as much as any other."""
        batches = [self.data.train(microbatch) for microbatch in microbatches]
        activation = torch.cat([tokens for tokens, _ in batches]).to(self.device)
        for layer in stage.layers:
            activation = layer(activation)
        parts = activation.split([len(tokens) for tokens, _ in batches])
        pairs = zip(parts, (targets for _, targets in batches), strict=True)
        return torch.stack([self.model.loss(part, targets.to(self.device)) for part, targets in pairs])
