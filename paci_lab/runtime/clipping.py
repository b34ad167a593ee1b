"""Gradient clipping without a global synchronisation: by the stage's own norm, or by a norm that the messages carry.

Exact clipping scales a gradient by min(1, C / norm) with the norm over *all* stages, which nobody knows before every
stage has ended its window: a flush. Two rules need none. N is the number of stages, C is `clip_norm`.

stage   Each stage scales its own gradient by min(1, (C / sqrt(N)) / own norm). The squares of N such stages add up to
        at most C squared, so the whole update is never longer than exact clipping allows; where one stage has most of
        the norm, it is cut although the whole would have passed.
lagged  Each stage scales by min(1, C / estimate). The estimate adds the stage's own squared norm, which it knows
        exactly, to the newest ones that it has heard of: every forward message carries the sum over the stages before,
        every backward message the sum over the stages behind, each with the number of stages in the sum. A stage that
        has not been heard of yet (in the first updates) counts as the mean of the others. What is heard is
        at most some updates old, and which updates it is from is fixed by the schedule's order alone, so real
        ranks and replay agree to the last bit. All stages use nearly the same factor: the direction is kept.

An exact reference is a flush run on one stage, where both rules are torch's `clip_grad_norm_`.
A gradient that is not finite is never told to others: they go on with the newest finite one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["NOTE_BYTES", "Clipping"]

NOTE_BYTES = 8
"""What a message carries beside its tensor under the lagged rule: a sum of squares and a number of stages, float32."""

_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6
_MOST = 1e36  # squares of so many stages still add up in float32


class Clipping:
    """The rule of one stage.

    Args:
        limit: `clip_norm`; None for no clipping.
        rule: "stage" or "lagged".
        stages: of the whole pipeline.
        device: where messages are.
    """

    def __init__(self, limit: float | None, rule: str, stages: int, device: torch.device) -> None:
        self.limit, self.rule, self.stages, self.device = limit, rule, stages, device
        self.carries_notes = limit is not None and rule == "lagged" and stages > 1
        self._own = torch.zeros(2, device=device)  # sum of squares, stages in it
        self._heard = {"F": torch.zeros(2, device=device), "B": torch.zeros(2, device=device)}

    def heard(self, kind: str, note: Tensor | None) -> None:
        """Take the note of a message that a forward ("F") or a backward ("B") received."""
        if note is not None:
            self._heard[kind] = note.clone()  # it lies in a buffer that is received into again

    def says(self, kind: str) -> Tensor | None:
        """The note for a message of this kind, float32 of shape (2,); None when messages carry none."""
        return self._own + self._heard[kind] if self.carries_notes else None

    def state(self) -> dict[str, Tensor]:
        """What this stage has heard and says, for a checkpoint."""
        own = {"own": self._own, **self._heard} if self.carries_notes else {}
        return {name: tensor.to("cpu", copy=True) for name, tensor in own.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The reverse of `state`."""
        for name, tensor in state.items():
            if name == "own":
                self._own = tensor.to(self.device)
            else:
                self._heard[name] = tensor.to(self.device)

    def clip(self, norm: float, gradients: list[Tensor]) -> tuple[float, float] | None:
        """Scale `gradients`, whose 2-norm is `norm`, in place.

        Returns (factor, norm that it was judged by); None without clipping.
        """
        if self.limit is None:
            return None
        self._own = torch.tensor([min(norm * norm, _MOST), 1.0], device=self.device)
        limit, judged = self.limit, norm
        if self.rule == "stage":
            limit /= math.sqrt(self.stages)
        else:
            squares, known = (self._own + self._heard["F"] + self._heard["B"]).tolist()
            judged = math.sqrt(squares * self.stages / known)
        factor = min(1.0, limit / (judged + _EPS))
        if factor < 1.0 and gradients:  # a stage without weights has none
            torch._foreach_mul_(gradients, factor)
        return factor, judged
