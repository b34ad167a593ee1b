"""What every framework is given: the same model, rows, windows, learning rates and seeds, described by one `Case`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paci_lab.data import open_data
from paci_lab.errors import InputError
from paci_lab.frameworks.shapes import shapes_batch
from paci_lab.models import build_model

__all__ = ["Case", "IGNORED", "Net", "mean_loss", "total_loss"]

IGNORED = -100
"""A target that does not count: padding. It is cross_entropy's own default."""

NAIVE = ("", "loss", "clip", "schedule", "exchange")

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batchnorm": nn.BatchNorm2d,
    "groupnorm": lambda channels: nn.GroupNorm(4, channels),
}


class Net(nn.Module):
    """A model whose pieces can be checkpointed; the classes of its output are in dimension 1.

    `activation_checkpointing_enable` and `inputs` are the names by which Hugging Face's Trainer knows them.
    """

    checkpointed = False

    def activation_checkpointing_enable(self, **_: Any) -> None:
        self.checkpointed = True

    def through(self, piece: nn.Module, x: Tensor) -> Tensor:
        """`piece(x)`; when checkpointed, its activations are forgotten and computed again in the backward."""
        return checkpoint(piece, x, use_reentrant=False) if self.checkpointed else piece(x)


class GPTNet(Net):
    """A GPT of `paci_lab.models`: tokens (rows, context) -> logits (rows, vocabulary, context)."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__()
        model = build_model(name)
        self.layers = nn.ModuleList(model.build_layer(layer, seed) for layer in range(model.layers))

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs
        for layer in self.layers[:-1]:
            x = self.through(layer, x)
        return self.layers[-1](x).transpose(1, 2)


class UNet(Net):
    """A small U-Net: images (rows, 1, side, side) -> logits (rows, 2, side, side), side a multiple of 4.

    Convolutions have no bias: in front of BatchNorm its gradient is zero, and comparing rounding means nothing.
    """

    def __init__(self, norm: str, seed: int, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(seed)

        def block(inputs: int, outputs: int) -> nn.Module:
            parts: list[nn.Module] = []
            for channels in (inputs, outputs):
                parts += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), NORMS[norm](outputs), nn.ReLU()]
            return nn.Sequential(*parts)

        self.down1, self.down2, self.bottom = block(1, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        fine = self.through(self.down1, inputs)
        middle = self.through(self.down2, F.max_pool2d(fine, 2))
        coarse = self.through(self.bottom, F.max_pool2d(middle, 2))
        middle = self.through(self.up2, torch.cat([middle, F.interpolate(coarse, scale_factor=2)], dim=1))
        fine = self.through(self.up1, torch.cat([fine, F.interpolate(middle, scale_factor=2)], dim=1))
        return self.out(fine)


def total_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the losses of all targets that count."""
    return F.cross_entropy(logits.float(), targets, reduction="sum", ignore_index=IGNORED)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Their mean within this micro-batch: what a model usually returns."""
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORED)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training to be repeated by every framework, with plain SGD so that a wrong factor stays visible.

    Args:
        name: for people and for the key of its results.
        model: a GPT's name, or "unet-batchnorm", "unet-groupnorm".
        microbatches, window, rows: how many there are, how many make an update, and rows in each.
        unequal: sequences end at a length drawn by chance; targets behind it do not count. GPT only.
        clip: largest norm of the gradient of an update; None for no clipping.
        bf16: bfloat16 mixed precision in the framework's own way.
        checkpointing: activations are computed again in the backward.
        naive: which part is used as looks right instead of as the framework documents: "loss" (each micro-batch's
            mean), "clip", "schedule", "exchange" (between ranks), or none.
        measured: peak memory too, and time from a second run.
    """

    name: str
    model: str = "femto"
    microbatches: int = 12
    window: int = 4
    rows: int = 4
    unequal: bool = False
    clip: float | None = None
    bf16: bool = False
    checkpointing: bool = False
    naive: str = ""
    measured: bool = False
    learning_rate: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for what in ("microbatches", "window", "rows"):
            if getattr(self, what) < 1:
                raise InputError(what, getattr(self, what), "a whole number from 1", f"use {what} = 1 or more")
        if self.naive not in NAIVE:
            raise InputError("naive", self.naive, ", ".join(NAIVE[1:]) + " or nothing", "choose one of them")
        if self.model.startswith("unet-") and (self.model[5:] not in NORMS or self.unequal):
            allowed = " or ".join(f"unet-{norm}" for norm in NORMS) + " with equal micro-batches, or a GPT"
            raise InputError("model", f"{self.model}, unequal={self.unequal}", allowed, "choose one of them")

    def replace(self, **changes: Any) -> Case:
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def updates(self) -> int:
        """Updates of one pass over the data, the last of which may be of fewer micro-batches."""
        return -(-self.microbatches // self.window)

    def net(self) -> Net:
        """The model with its first weights, always the same."""
        norm = self.model.removeprefix("unet-")
        net = UNet(norm, self.seed) if norm in NORMS else GPTNet(self.model, self.seed)
        if self.checkpointing:
            net.activation_checkpointing_enable()
        return net

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of all rows, in the order in which they are trained."""
        return _data(self.model, self.rows * self.microbatches, self.unequal, self.seed)

    def windows(self) -> Iterator[tuple[list[tuple[Tensor, Tensor]], int]]:
        """For every update its micro-batches and how many targets count in all of them together."""
        inputs, targets = self.data()
        pairs = list(zip(inputs.split(self.rows), targets.split(self.rows), strict=True))
        for first in range(0, len(pairs), self.window):
            window = pairs[first : first + self.window]
            yield window, sum(int((y != IGNORED).sum()) for _, y in window)

    def optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), lr=self.learning_rate)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        """From the learning rate straight down to zero after the last update; one step an update."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / self.updates))


@lru_cache(maxsize=8)
def _data(model: str, rows: int, unequal: bool, seed: int) -> tuple[Tensor, Tensor]:
    if model.startswith("unet-"):
        return shapes_batch(rows, seed=seed)
    context = build_model(model).context
    inputs, targets = open_data("stdlib", context=context, microbatch_size=rows, seed=seed).train(0)
    if unequal:
        lengths = torch.randint(1, context + 1, (rows, 1), generator=torch.Generator().manual_seed(seed))
        targets = targets.masked_fill(torch.arange(context) >= lengths, IGNORED)
    return inputs, targets
