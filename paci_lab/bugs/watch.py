"""Watches a training loop from outside, through hooks of the modules and optimizers that it was given.

So nothing has to be written into the loop, and what is reported is what happened, not what the loop believes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paci_lab.bugs.babble import IGNORED, Batch, held_out_loss
from paci_lab.bugs.seen import EVALUATION, Seen, timeline
from paci_lab.language import _

__all__ = ["Watch"]


class Watch:
    """Counts forwards, backwards and updates of stages, and keeps each update's gradient and the loss after it.

    Args:
        stages: (module, its optimizer) in order; one pair for a loop without a pipeline.
        batches: the micro-batches, in the order in which the loop should take them.
        window: micro-batches per update.
    """

    def __init__(
        self, stages: Sequence[tuple[nn.Module, torch.optim.Optimizer]], batches: Sequence[Batch], window: int
    ) -> None:
        self._stages, self._window = list(stages), window
        self._tokens = [int((y != IGNORED).sum()) for _x, y in batches]
        self._order: list[tuple[int, str, int, float]] = []
        self._forwards = [0] * len(self._stages)
        self._evaluations, self._measuring = 0, False
        self._rows: list[list[np.ndarray]] = [[] for _s in self._stages]
        self._rates: list[float] = []
        self._losses: list[float] = []
        self._types: set[str] = set()
        for number, (module, optimizer) in enumerate(self._stages):
            module.register_forward_hook(self._forward_of(number))
            optimizer.register_step_pre_hook(self._before_step_of(number))
            optimizer.register_step_post_hook(self._after_step_of(number))

    def seen(self) -> Seen:
        """All of it; to be asked for when the loop has ended."""
        updates = min(map(len, self._rows))
        parts = [np.array(rows[:updates]).reshape(updates, -1 if updates else 0) for rows in self._rows]
        return Seen(
            losses=self._losses,
            gradients=np.concatenate(parts, axis=1),
            rates=self._rates[:updates],
            tokens=self._tokens,
            evaluations=self._evaluations,
            events=timeline(self._order, window=self._window, stages=len(self._stages)),
            source=_("operations in the order in which they happened, times simulated"),
            computed_in=" and ".join(sorted(self._types)),
            stages=len(self._stages),
        )

    def _forward_of(self, stage: int) -> Callable[..., None]:
        def forward(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if self._measuring:
                return
            if not output.requires_grad:
                self._order.append((stage, "F", EVALUATION + self._evaluations, 1.0))
                self._evaluations += 1
                return
            self._types.add(str(output.dtype).removeprefix("torch."))
            number = self._forwards[stage]
            self._forwards[stage] += 1
            tokens = self._tokens[number] if number < len(self._tokens) else max(self._tokens)
            length = max(tokens / max(self._tokens), 0.25)
            self._order.append((stage, "F", number, length))
            output.register_hook(lambda _gradient: self._order.append((stage, "B", number, length)))

        return forward

    def _before_step_of(self, stage: int) -> Callable[..., None]:
        def before(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            parameters = self._stages[stage][0].parameters()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            self._rows[stage].append(torch.cat([g.detach().flatten() for g in gradients]).double().numpy())
            if stage == 0:
                self._rates.append(float(optimizer.param_groups[0]["lr"]))

        return before

    def _after_step_of(self, stage: int) -> Callable[..., None]:
        def after(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            self._order.append((stage, "U", len(self._rows[stage]) - 1, 1.0))
            if len(self._losses) < min(map(len, self._rows)):  # every stage has made it
                self._measuring = True
                self._losses.append(held_out_loss(nn.Sequential(*(module for module, _o in self._stages))))
                self._measuring = False

        return after
