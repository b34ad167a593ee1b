"""GPT-2's architecture in plain torch (Radford et al. 2019), with an output head of its own (no weight tying).

Learned positions, LayerNorm before attention and before the MLP, GELU, causal attention. Initial weights as in
GPT-2: normal with standard deviation 0.02, the projections back into the residual stream divided by
sqrt(2 * blocks), biases zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paci_lab.errors import InputError
from paci_lab.models.base import Model

__all__ = ["FAMILY", "GPT", "MODELS", "GPTSizes", "build"]

FAMILY = "gpt"


@dataclass(frozen=True)
class GPTSizes:
    """The numbers that make a GPT. ``width`` is a multiple of ``heads``."""

    blocks: int
    width: int
    heads: int
    context: int
    vocabulary: int = 256


SIZES = {
    "femto": GPTSizes(4, 32, 2, 32),
    "pico": GPTSizes(8, 64, 4, 64),
    "nano": GPTSizes(8, 128, 4, 64),
    "micro": GPTSizes(8, 256, 8, 128),
    "mini": GPTSizes(8, 512, 8, 256),
    "gpt2-small": GPTSizes(12, 768, 12, 1024, 50257),
    "gpt2-medium": GPTSizes(24, 1024, 16, 1024, 50257),
}

MODELS = {
    name: f"GPT, {s.blocks} blocks, width {s.width}, {s.heads} heads, context {s.context}, vocabulary {s.vocabulary}"
    for name, s in SIZES.items()
}


def _normal(weight: Tensor, std: float = 0.02) -> None:
    # normal_ on the meta device does nothing, but makes torch import sympy for 2 seconds.
    if not weight.is_meta:
        nn.init.normal_(weight, std=std)


def _linear(inputs: int, outputs: int, *, std: float = 0.02, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    _normal(layer.weight, std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Embedding(nn.Module):
    """Tokens (batch, context) int64 -> activation (batch, context, width)."""

    def __init__(self, sizes: GPTSizes, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding.from_pretrained(torch.empty(sizes.vocabulary, sizes.width), freeze=False)
        self.positions = nn.Parameter(torch.empty(sizes.context, sizes.width))
        self.dropout = nn.Dropout(dropout)
        _normal(self.tokens.weight)
        _normal(self.positions)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]])


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream: (batch, context, width) -> the same."""

    def __init__(self, sizes: GPTSizes, dropout: float) -> None:
        super().__init__()
        width, residual_std = sizes.width, 0.02 / math.sqrt(2 * sizes.blocks)
        self.heads, self.attention_dropout = sizes.heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = _linear(width, 3 * width)
        self.attention_out = _linear(width, width, std=residual_std)
        self.mlp_up = _linear(width, 4 * width)
        self.mlp_down = _linear(4 * width, width, std=residual_std)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        heads = self.query_key_value(x).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (batch, heads, context, width / heads)
        dropout = self.attention_dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, context, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp_down(F.gelu(self.mlp_up(self.norm2(x)), approximate="tanh")))


class Head(nn.Module):
    """Activation (batch, context, width) -> logits (batch, context, vocabulary)."""

    def __init__(self, sizes: GPTSizes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.width)
        self.logits = _linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))


class GPT(Model):
    """Layer 0 is the embedding, layers 1 .. blocks are the blocks, the last is the final LayerNorm and the head."""

    def __init__(self, name: str, sizes: GPTSizes, dropout: float) -> None:
        super().__init__(name, vocabulary=sizes.vocabulary, context=sizes.context, dropout=dropout)
        for key in ("blocks", "width", "heads"):
            if getattr(sizes, key) < 1:
                raise InputError(f"{name}: {key}", getattr(sizes, key), "a whole number from 1", f"raise {key}")
        if sizes.width % sizes.heads:
            raise InputError(
                f"{name}: width", sizes.width, f"a multiple of heads = {sizes.heads}", f"try width={64 * sizes.heads}"
            )
        self.sizes = sizes

    @property
    def layers(self) -> int:
        return self.sizes.blocks + 2

    def layer_kind(self, layer: int) -> str:
        if not 0 <= layer < self.layers:
            raise IndexError(f"layer {layer} of {self.name}, which has layers 0 to {self.layers - 1}")
        return "embedding" if layer == 0 else "head" if layer == self.layers - 1 else "block"

    def boundary_shape(self, microbatch_size: int) -> tuple[int, ...]:
        return (microbatch_size, self.context, self.sizes.width)

    def make_layer(self, layer: int) -> nn.Module:
        kind = self.layer_kind(layer)
        if kind == "embedding":
            return Embedding(self.sizes, self.dropout)
        return Head(self.sizes) if kind == "head" else Block(self.sizes, self.dropout)

    def activation_bytes_per_microbatch(self, layer: int, microbatch_size: int) -> int:
        """Bytes that autograd keeps in float32, its input included, from the tensors each operation saves.

        Per token, width w, h heads, vocabulary V, 4 bytes a number:
        embedding 2 (the int64 token);
        block 16w + h + 4 (two LayerNorms 4w + 4, q, k and v 3w, attention w, its log-sums h, MLP 8w);
        head 2w + V + 4 (LayerNorm 2w + 2, log-probabilities of the loss V, the int64 target 2).
        Dropout adds its mask, w after the embedding and 2w in a block, where attention over context c then keeps
        3hc instead of h, because a CPU's fused kernel takes no dropout (for a GPU this is too high).
        """
        width, heads, context = self.sizes.width, self.sizes.heads, self.context
        kind = self.layer_kind(layer)
        if kind == "embedding":
            numbers = 2 + (width if self.dropout else 0)
        elif kind == "head":
            numbers = 2 * width + 4 + self.vocabulary
        else:
            numbers = 16 * width + heads + 4
            if self.dropout:
                numbers += 2 * width + 3 * heads * context - heads
        return 4 * microbatch_size * context * numbers


def _parse(name: str) -> GPTSizes:
    """Read "gpt:blocks=8,width=64,heads=4,context=64[,vocabulary=256]"."""
    example = "try gpt:blocks=8,width=64,heads=4,context=64"
    required = ("blocks", "width", "heads", "context")
    sizes: dict[str, int] = {}
    for part in name.removeprefix(f"{FAMILY}:").split(","):
        key, _, value = (text.strip() for text in part.partition("="))
        if key not in (*required, "vocabulary") or key in sizes:
            raise InputError("model", name, f"each of {', '.join(required)} once, and vocabulary", example)
        try:
            sizes[key] = int(value)
        except ValueError:
            raise InputError(f"{name}: {key}", value or "nothing", "a whole number from 1", example) from None
    if missing := [key for key in required if key not in sizes]:
        raise InputError("model", name, f"a size for each of {', '.join(required)}", f"add {', '.join(missing)}")
    return GPTSizes(**sizes)


def build(name: str, *, vocabulary: int | None, context: int | None, dropout: float) -> Model:
    """Make a GPT from a named or written-out size; see ``paci_lab.models.build_model``."""
    sizes = SIZES[name] if name in SIZES else _parse(name)
    given = {"vocabulary": vocabulary, "context": context}
    return GPT(name, replace(sizes, **{key: value for key, value in given.items() if value is not None}), dropout)
