"""What a model must be so that a pipeline can cut it anywhere: a chain of layers built one at a time."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paci_lab.errors import InputError

__all__ = ["IGNORED_TARGET", "Model", "is_hidden", "load_weights", "mark_hidden"]

IGNORED_TARGET = -100
"""A target with this value does not count in the loss (the value of ``torch.nn.functional.cross_entropy``)."""


def mark_hidden(parameters: Iterable[nn.Parameter]) -> None:
    """Mark the matrices that Muon may orthogonalise; see ``is_hidden``."""
    for parameter in parameters:
        parameter.paci_hidden = True


def is_hidden(parameter: nn.Parameter) -> bool:
    """Whether the model marked this parameter as a hidden matrix.

    The mark is an attribute of the Parameter object: ``Module.to`` keeps it, a new Parameter made from ``p.data``
    or by ``copy.deepcopy`` needs ``mark_hidden`` again.
    """
    return getattr(parameter, "paci_hidden", False)


class Model(ABC):
    """A chain of layers, each a module from one activation to one activation; it holds no weights itself.

    Layer 0 takes int64 tokens of shape (batch, context); the last layer gives logits (batch, context, vocabulary);
    every other boundary has ``boundary_shape``. A stage builds only the layers it owns.

    Subclasses give ``layers``, ``layer_kind``, ``boundary_shape``, ``make_layer`` and
    ``activation_bytes_per_microbatch``. Two layers of the same kind have the same shapes and cost.

    Args:
        name: as the user wrote it.
        vocabulary: number of different tokens, from 2.
        context: tokens per sequence, from 1.
        dropout: probability in [0, 1).

    Raises:
        InputError: for a value outside these ranges.
    """

    def __init__(self, name: str, *, vocabulary: int, context: int, dropout: float = 0.0) -> None:
        if vocabulary < 2:
            raise InputError("vocabulary", vocabulary, "a whole number from 2", "use 256 for bytes, 50257 for GPT-2")
        if context < 1:
            raise InputError("context", context, "a whole number from 1", "use 64 for a small model")
        if not 0.0 <= dropout < 1.0:
            raise InputError("dropout", dropout, "a number from 0 up to, not including, 1", "use dropout 0 or 0.1")
        self.name, self.vocabulary, self.context, self.dropout = name, vocabulary, context, dropout

    @property
    @abstractmethod
    def layers(self) -> int:
        """Number of layers that a pipeline can cut between."""

    @abstractmethod
    def layer_kind(self, layer: int) -> str:
        """A word such as "block"; layers of one kind are the same but for their weights."""

    @abstractmethod
    def boundary_shape(self, microbatch_size: int) -> tuple[int, ...]:
        """Shape of the float activation that passes between any two neighbouring layers."""

    @abstractmethod
    def make_layer(self, layer: int) -> nn.Module:
        """A fresh layer with its initial weights, drawn from torch's default generator."""

    @abstractmethod
    def activation_bytes_per_microbatch(self, layer: int, microbatch_size: int) -> int:
        """Estimated bytes that autograd holds for one micro-batch between the layer's forward and its backward."""

    def layer_name(self, layer: int) -> str:
        """Name for people: "embedding", "block 3", "head"."""
        kind = self.layer_kind(layer)
        alike = [i for i in range(self.layers) if self.layer_kind(i) == kind]
        return kind if len(alike) == 1 else f"{kind} {alike.index(layer)}"

    def hidden_matrix(self, layer: int, parameter: nn.Parameter) -> bool:
        """Whether Muon may orthogonalise this parameter: a matrix outside the first and the last layer."""
        return parameter.ndim == 2 and 0 < layer < self.layers - 1

    def build_layer(self, layer: int, seed: int) -> nn.Module:
        """Build one layer; its weights depend on (seed, layer) alone, so every partition starts from the same model.

        Built on the CPU, whatever the default device, because GPU generators draw other numbers; inside
        ``with torch.device("meta")`` it has shapes only. The global random state is left as it was.
        """
        device = "meta" if torch.get_default_device().type == "meta" else "cpu"
        digest = hashlib.sha256(f"weights,{seed},{layer}".encode()).digest()
        with torch.random.fork_rng(devices=[]), torch.device(device):
            # torch.manual_seed would also seed the GPUs, which fork_rng(devices=[]) does not restore.
            torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
            module = self.make_layer(layer)
        mark_hidden(p for p in module.parameters() if self.hidden_matrix(layer, p))
        return module

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Sum of the token losses in float32 (a scalar, in nats), without the targets that are -100.

        A sum, not a mean: the window divides by its own number of tokens, so micro-batches may differ in size.
        """
        logits = output.float().flatten(0, -2)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum")

    def parameters_per_layer(self) -> list[int]:
        """Number of weights of every layer; needs no memory for them."""
        counts: dict[str, int] = {}
        with torch.device("meta"):
            for layer in range(self.layers):
                if (kind := self.layer_kind(layer)) not in counts:
                    counts[kind] = sum(p.numel() for p in self.make_layer(layer).parameters())
        return [counts[self.layer_kind(layer)] for layer in range(self.layers)]


def load_weights(model: Model, path: str | Path) -> nn.Sequential:
    """All layers of ``model`` as one module from tokens to logits, with the weights that ``paci-lab export`` wrote.

    Raises:
        InputError: for a file that cannot be read, or whose weights are not those of this model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = {name.removeprefix("layers."): tensor for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise InputError("weights", path, "a safetensors file", f"write one with paci-lab export ({error})") from None
    module = nn.Sequential(*(model.build_layer(layer, seed=0) for layer in range(model.layers)))
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        allowed = f"the weights of model {model.name} with context {model.context}"
        raise InputError("weights", path, allowed, f"build the model they were trained in ({first})") from None
    return module
