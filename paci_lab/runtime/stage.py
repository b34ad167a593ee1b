"""`Stage`: one piece of the model with its own optimizer, its own gradient and its own weight version.

Replay and the real ranks run the same stage, which is why their numbers agree to the last bit.

Recomputation (`recompute`): a forward keeps the stage's input and no graph. The backward (or I, where backwards are
split) first runs the stage's forward again on that input, with the weights of its moment and the dropout masks of the
first forward, and then goes back through what it has just made. On live weights the gradient of a micro-batch is thus
exactly that of the *current* stage at an *older* input: activations and weights inside a stage are of one version, and
what is left of the gap is the input that came from the stage before, and the gradient that came from the stage behind.
The loss that is reported stays the first forward's. A schedule that names versions (PipeDream, 2BW) has both forwards
use the one it names. On a flush schedule every number stays the same. A stage that holds one micro-batch at a time with
no update in between does not recompute: it would save nothing and change nothing.

Skipped updates: a gradient whose norm is not finite is dropped, on that stage alone. Weights and optimizer stay as they
are, and the version still advances, so that windows stay lined up. A loss that is not finite ends the run: then it is
the weights that are lost.
"""

from __future__ import annotations

import contextlib
import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paci_lab.accumulation import LocalAccumulation
from paci_lab.data import Data
from paci_lab.models import Model
from paci_lab.optimizers import NamedParameters, Optimizer, build_optimizer, learning_rate_factor
from paci_lab.precision import MasterWeights, computing, master_of, message_dtype, to_bf16
from paci_lab.runtime.clipping import Clipping
from paci_lab.runtime.replicas import ReplicaGroup
from paci_lab.runtime.sharding import sharded_optimizer
from paci_lab.runtime.split import SplitBackward, splits_backward
from paci_lab.runtime.weights import weights_for
from paci_lab.schedules import Schedule
from paci_lab.spec import TrainSpec

__all__ = ["NonFiniteLoss", "Stage", "UpdateRecord", "optimizer_options"]


class NonFiniteLoss(ArithmeticError):
    """The loss of a micro-batch is NaN or infinite."""

    def __init__(self, microbatch: int, loss: float) -> None:
        self.microbatch = microbatch
        super().__init__(f"the loss of micro-batch {microbatch} is {loss}")


class UpdateRecord(NamedTuple):
    """What one update on one stage says about itself.

    Args:
        update: its number.
        tokens: tokens of the whole stream, of all replicas, up to and including its window.
        learning_rate: the rate it stepped with.
        grad_norm: 2-norm of this stage's gradient, the mean over the tokens of all replicas' windows, before clipping;
            None when it is not finite.
        train_loss: on the last stage the mean loss per token of the window, elsewhere None. Of several replicas, this
            one's part: what they have adds up to the mean over all.
        losses: on the last stage the mean loss per token of every micro-batch of this replica's window, elsewhere
            empty.
        skipped: the gradient was not finite and the update was none.
        clipping: (factor on the gradient, norm it was judged by); None without clipping.
    """

    update: int
    tokens: int
    learning_rate: float
    grad_norm: float | None
    train_loss: float | None
    losses: list[float]
    skipped: bool
    clipping: tuple[float, float] | None


class Stage:
    """Runs F, B, I, W and U of one stage.

    Args:
        spec: the run.
        model, data, schedule: as built from it.
        stage: which one; its layers are `spec.partition` (a list by now) cut at this place.
        device: where its weights live.
        replica: of which copy of the pipeline.
        group: the other replicas' same stage; None when they are in this process, or there are none.
    """

    def __init__(
        self,
        spec: TrainSpec,
        model: Model,
        data: Data,
        schedule: Schedule,
        stage: int,
        device: torch.device,
        *,
        replica: int = 0,
        group: ReplicaGroup | None = None,
    ) -> None:
        assert isinstance(spec.partition, list), "the partition is resolved before a stage is built"
        self.spec, self.model, self.data, self.schedule, self.stage, self.device = (
            spec,
            model,
            data,
            schedule,
            stage,
            device,
        )
        self.replica = replica
        self.first, self.last = stage == 0, stage == spec.stages - 1
        self.first_layer = sum(spec.partition[:stage])
        layers = range(self.first_layer, self.first_layer + spec.partition[stage])
        self.layers = nn.ModuleList(model.build_layer(layer, spec.seed) for layer in layers).to(device)
        self.optimizer = self._build_optimizer(group)
        self.accumulation = LocalAccumulation(
            self.optimizer, window=schedule.window, parameters=self.optimizer.parameters
        )
        self.weights = weights_for(schedule, self.optimizer.parameters)
        self.clipping = Clipping(spec.clip_norm, spec.clip, spec.stages, device)
        self.recomputes = spec.recompute and (schedule.in_flight(stage) > 1 or schedule.gap_bound(stage) > 0)
        self.split = SplitBackward(self.layers) if splits_backward(schedule, stage) else None
        if self.split is not None:
            self.split.check(lambda activation: self._run_layers(activation, 0), self._sample())
        # micro-batch -> (input, output), forward done and backward not; the output is None when it will be recomputed
        self.held: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.losses: list[tuple[int, Tensor]] = []
        self.saved_copies = 0.0  # copies of the weights that autograd makes on its own, measured by warm_up
        self.tokens = 0
        self.total_tokens = sum(map(data.train_tokens, range(schedule.microbatches * spec.replicas)))

    @property
    def version(self) -> int:
        """Updates made so far: the weight version."""
        return self.accumulation.version

    # -- the operations -------------------------------------------------------------------------------------------
    def forward(self, microbatch: int, activation: Tensor | None) -> Tensor | None:
        """F: take the activation from the stage before (None on the first), give the next one's (None on the last)."""
        if self.first:
            activation = self.data.train(self.number(microbatch))[0].to(self.device, non_blocking=True)
        else:
            activation = activation.detach().requires_grad_()
        with self.weights.forward(microbatch), torch.set_grad_enabled(not self.recomputes):
            output = self._run(activation, microbatch)
        self.held[microbatch] = (activation, None if self.recomputes else output)
        return None if self.last else output.detach()

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """B: take the gradient of this stage's output (None on the last), add to its own, give the one of its input."""
        activation, output = self._graph(microbatch)
        del self.held[microbatch]
        if self.split is not None:
            self.split.whole(microbatch)
        torch.autograd.backward(output, gradient)
        self.weights.release(microbatch)
        return activation.grad  # None on the first stage, whose input is tokens

    def input_gradient(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """I: take the gradient of this stage's output (None on the last), give the one of its input."""
        if self.split is None:
            raise ValueError(f"micro-batch {microbatch} has an I, and the first window of stage {self.stage} has none")
        activation, output = self._graph(microbatch)
        return self.split.input_half(microbatch, None if self.first else activation, output, gradient)

    def weight_gradient(self, microbatch: int) -> None:
        """W: add to this stage's gradient what I left undone."""
        del self.held[microbatch]
        self.split.weight_half(microbatch)
        self.weights.release(microbatch)

    def update(self, update: int) -> UpdateRecord:
        """U: step this stage's optimizer with the gradient of its window, and start the next window from nothing."""
        spec = self.spec
        losses = [(microbatch, float(loss)) for microbatch, loss in self.losses]
        for microbatch, loss in losses:
            _check_finite(microbatch, loss)
        self.losses.clear()
        self.tokens += self.window_tokens(update)
        factor = learning_rate_factor(
            self.tokens,
            self.total_tokens,
            kind=spec.learning_rate_schedule,
            warmup=spec.warmup,
            final=spec.final_learning_rate,
        )
        factor *= self.schedule.learning_rate_factor(self.stage, self.tokens / self.total_tokens)
        self.optimizer.scale_learning_rate(factor)
        norm = self.gradient_norm()
        skipped, clipping = not math.isfinite(norm), None
        self.weights.before_update()
        if skipped:
            self.accumulation.skip()
        else:
            clipping = self.clipping.clip(norm, self.gradients())
            self.accumulation.step()
        total = sum(loss * self.data.train_tokens(self.number(microbatch)) for microbatch, loss in losses)
        train_loss = total / max(self.window_tokens(update), 1) if self.last else None
        return UpdateRecord(
            update,
            self.tokens,
            spec.learning_rate * factor,
            None if skipped else norm,
            train_loss,
            [loss for _, loss in losses],
            skipped,
            clipping,
        )

    # -- their parts ----------------------------------------------------------------------------------------------
    def _build_optimizer(self, group: ReplicaGroup | None) -> Optimizer:
        """The stage's optimizer, over masters of its weights when those become bfloat16 here."""
        spec, bf16 = self.spec, self.spec.precision == "bf16"

        def build(named: NamedParameters) -> Optimizer:
            optimizer = build_optimizer(
                spec.optimizer,
                master_of(named) if bf16 else named,
                learning_rate=spec.learning_rate,
                weight_decay=spec.weight_decay,
                implementation=spec.optimizer_implementation,
                options=optimizer_options(spec),
            )
            return MasterWeights([parameter for _, parameter in named], optimizer) if bf16 else optimizer

        named = list(self.layers.named_parameters())
        sharded = spec.shard_optimizer and group is not None
        optimizer = sharded_optimizer(build, named, group) if sharded else build(named)
        if bf16:
            to_bf16(self.layers)
        return optimizer

    def _graph(self, microbatch: int) -> tuple[Tensor, Tensor]:
        """(input, output) of `microbatch` with the graph between them, made now where a forward has left none."""
        activation, output = self.held[microbatch]
        if output is None:
            with self.weights.again(microbatch):
                output = self._run(activation, microbatch, again=True)
        return activation, output

    def _run(self, activation: Tensor, microbatch: int, *, again: bool = False) -> Tensor:
        """This stage's output for `microbatch`, which is its share of the window's loss on the last one."""
        watched = contextlib.nullcontext() if self.split is None else self.split.forward(microbatch)
        with watched:
            output = self._run_layers(activation, microbatch)
            return self._loss(microbatch, output, again=again) if self.last else output

    def _run_layers(self, activation: Tensor, microbatch: int) -> Tensor:
        with computing(self.spec.precision, self.device):
            for layer, module in enumerate(self.layers, self.first_layer):
                if self.spec.dropout:
                    # The mask belongs to (seed, micro-batch, layer), whatever the partition and the order of
                    # operations.
                    number = self.number(microbatch)
                    torch.manual_seed(((self.spec.seed * 1_000_003 + number) * 10_007 + layer) % 2**63)
                activation = module(activation)
        # Under autocast the last operation decides the type, and messages have one that is agreed.
        return activation.float() if self.spec.precision == "autocast" else activation

    def _loss(self, microbatch: int, output: Tensor, *, again: bool) -> Tensor:
        number = self.number(microbatch)
        targets = self.data.train(number)[1].to(self.device, non_blocking=True)
        total = self.model.loss(output, targets)
        mean = total.detach() / max(self.data.train_tokens(number), 1)  # one without targets has loss 0, not 0/0
        if not again:
            if self.device.type == "cpu":
                # At once where looking is free; on a GPU it would stall the stream.
                _check_finite(microbatch, float(mean))
            self.losses.append((microbatch, mean))
        # Divided by the window's tokens before the backward, micro-batches of any size add up to the mean over tokens.
        return total / max(self.window_tokens(self.schedule.window_of(microbatch)), 1)

    def number(self, microbatch: int) -> int:
        """Number in the data stream of this replica's `microbatch`: the replicas take turns."""
        return microbatch * self.spec.replicas + self.replica

    def window_tokens(self, update: int) -> int:
        """Tokens that count in the loss of window `update`, of all replicas."""
        window, replicas = self.schedule.window_microbatches(update), self.spec.replicas
        return sum(map(self.data.train_tokens, range(window.start * replicas, window.stop * replicas)))

    def gradient_norm(self) -> float:
        """2-norm of the gradient this stage holds."""
        gradients = self.gradients()
        if not gradients:
            return 0.0
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))

    def gradients(self) -> list[Tensor]:
        """What the backwards of this window have added up so far, in float32 whatever the precision."""
        return [p.grad for p in self.optimizer.parameters if p.grad is not None]

    def _sample(self) -> Tensor:
        """An input that no weight is indifferent to; the global random state is left as it is."""
        if self.first:
            return self.data.train(0)[0].to(self.device)
        shape, dtype = self.model.boundary_shape(self.spec.microbatch_size), message_dtype(self.spec.precision)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.device, dtype).requires_grad_()

    def warm_up(self) -> Tensor:
        """Run the layers forward and backward once on zeros, so that the first micro-batch pays for nothing but itself.

        Leaves weights, gradients, optimizer and counters as they were, and measures `saved_copies`. Returns the
        output, whose shape and type the next stage is told.
        """
        shape, dtype = self.model.boundary_shape(self.spec.microbatch_size), message_dtype(self.spec.precision)
        if self.first:
            activation = torch.zeros_like(self.data.train(0)[0]).to(self.device)
        else:
            activation = torch.zeros(shape, device=self.device, dtype=dtype, requires_grad=True)
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
        ):
            output = self._run_layers(activation, 0)
        graphs = 1 if self.recomputes else self.schedule.in_flight(self.stage)
        self.saved_copies = graphs * _share_copied(self.optimizer.parameters, saved)
        torch.autograd.backward(output, torch.zeros_like(output))
        self.optimizer.zero_grad()
        return output.detach()

    @cached_property
    def optimizer_bytes(self) -> int:
        """What this process's optimizer keeps beside the weights. It makes that in its first step: ask after it."""
        states = (state for inner in self.optimizer.inner for state in inner.state.values())
        return sum(v.numel() * v.element_size() for state in states for v in state.values() if isinstance(v, Tensor))

    @property
    def weight_copies(self) -> float:
        """Most copies of its weights that this stage has held at once, the live one included.

        A copy is what a forward or a backward reads, in any precision: one that autocast casts counts as a whole one.
        Masters are none, for only the optimizer reads them.
        """
        return 1.0 + self.saved_copies + self.weights.kept_share

    def state(self) -> dict[str, Tensor]:
        """Copies of this stage's weights on the CPU, named `layers.<number in the whole model>.<name in the layer>`.

        In bf16 they are the masters: rounded, they are the weights that the run computes with. Where replicas share out
        the optimizer none has all masters, and it is the rounded ones.
        """
        full = (lambda tensor: tensor) if self.spec.shard_optimizer else self.optimizer.in_full
        return {
            f"layers.{layer}.{name}": full(tensor).detach().to("cpu", copy=True)
            for layer, module in enumerate(self.layers, self.first_layer)
            for name, tensor in module.state_dict(keep_vars=True).items()
        }


def _share_copied(weights: tuple[nn.Parameter, ...], saved: list[Tensor]) -> float:
    """Share of the weights that autograd saved a copy of (same values, other storage) for one micro-batch."""
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    foreign = [tensor for tensor in saved if tensor.untyped_storage().data_ptr() not in own]
    copied = sum(
        weight.numel()
        for weight in weights
        if any(
            form.shape == weight.shape and torch.allclose(form.float(), weight.float(), rtol=1e-2)
            for tensor in foreign
            for form in ([tensor, tensor.T] if tensor.ndim == 2 else [tensor])
            if weight.ndim == 2
        )
    )
    return copied / max(sum(weight.numel() for weight in weights), 1)


def _check_finite(microbatch: int, loss: float) -> None:
    if not math.isfinite(loss):
        raise NonFiniteLoss(microbatch, loss)


def optimizer_options(spec: TrainSpec) -> dict:
    options = dict(spec.optimizer_options)
    if spec.momentum is not None:
        if spec.optimizer in ("adamw", "nadam"):
            betas = options.get("betas", (0.9, 0.95))
            if (
                isinstance(betas, list | tuple) and len(betas) == 2
            ):  # anything else is refused where options are checked
                options["betas"] = (spec.momentum, betas[1])
        else:
            options["momentum"] = spec.momentum
    return options
