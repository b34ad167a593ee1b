"""The version guard: an optimizer step between a forward and its backward, on stock torch.

Autograd counts in-place changes of every tensor and refuses a backward that would use a changed one. PACI changes
weights between forward and backward on purpose: the stored activation is from the old weights, the backward uses the
current ones. The guard hides exactly those changes, of exactly these tensors, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.autograd import _unsafe_preserve_version_counter

__all__ = ["guarded_step", "self_test"]


def guarded_step(step: Callable[[], object], parameters: Sequence[torch.Tensor]) -> None:
    """Run `step`, which changes `parameters` in place, without autograd taking notice.

    torch's own context manager is exact for foreach, for-loop and fused optimizers alike: it sets the counters back
    after the step. Its underscore says that torch may change it, which is why `self_test` runs before every training.
    """
    with _unsafe_preserve_version_counter(tuple(parameters)):
        step()


def self_test(device: str = "cpu") -> None:
    """Check on Linear + LayerNorm that this torch lets the guard work; raise RuntimeError with what is wrong.

    Three facts: an unguarded step is refused by autograd (else the test would prove nothing), a guarded one is not, and
    the input gradient after it is the one of the *current* weights.
    """
    torch_cpu_state = torch.get_rng_state()
    try:
        torch.manual_seed(0)
        linear, norm = nn.Linear(4, 4).to(device), nn.LayerNorm(4).to(device)
        parameters = [*linear.parameters(), *norm.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.25, foreach=True)
        x = torch.randn(2, 4).to(device).requires_grad_()
        # Without this factor the gradient of a LayerNorm's sum of squares is zero, whatever the weights.
        mix = torch.randn(2, 4).to(device)

        def forward() -> torch.Tensor:
            return (norm(linear(x)) * mix).square().sum()

        def gradient_after(step: Callable[[], object]) -> torch.Tensor:
            loss = forward()
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            step()
            return torch.autograd.grad(loss, x)[0]

        try:
            gradient_after(optimizer.step)
        except RuntimeError:
            pass
        else:
            raise RuntimeError("the version guard cannot be trusted: autograd did not refuse an unguarded step")
        hidden = linear(x)  # the stored activation, of the old weights
        gradient = gradient_after(lambda: guarded_step(optimizer.step, parameters))
        # By hand: the stored normalised activation, and the weights as they are now.
        mean, spread = hidden.mean(1, keepdim=True), (hidden.var(1, keepdim=True, unbiased=False) + norm.eps).sqrt()
        normal = (hidden - mean) / spread
        old_scale, old_shift = norm.weight + 0.25, norm.bias + 0.25  # undo the step to get the stored output
        upstream = 2 * (normal * old_scale + old_shift) * mix.square() * norm.weight
        through_norm = (
            upstream - upstream.mean(1, keepdim=True) - normal * (upstream * normal).mean(1, keepdim=True)
        ) / spread
        expected = (through_norm @ linear.weight).detach()
        if not torch.allclose(gradient, expected, rtol=1e-3, atol=1e-4):
            raise RuntimeError("the version guard cannot be trusted: a backward did not use the current weights")
    finally:
        torch.set_rng_state(torch_cpu_state)
