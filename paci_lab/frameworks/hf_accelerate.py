"""Hugging Face's Accelerate: a loop of one's own whose objects are wrapped."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader, TensorDataset

from paci_lab.frameworks.case import Case, mean_loss, total_loss
from paci_lab.frameworks.probe import Probe, Result

__all__ = ["train"]


def train(case: Case) -> Result:
    """As documented: `accumulate`, clipping only when gradients are complete, a prepared scheduler, and a loss that
    knows the targets of the window (`backward` divides by the accumulation steps, so it is multiplied by them first).

    Naive loss: the micro-batch's mean. Naive clip: after every backward. Naive schedule: a scheduler not prepared.
    """
    AcceleratorState._reset_state(reset_partial_state=True)  # else the first case's precision stays for all
    GradientState._reset_state()
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=case.window, mixed_precision="bf16" if case.bf16 else "no"
    )
    net = case.net()
    optimizer = case.optimizer(net)
    scheduler = case.scheduler(optimizer)
    probe = Probe(case, net, optimizer)
    loader = DataLoader(TensorDataset(*case.data()), batch_size=case.rows)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if case.naive != "schedule":
        scheduler = accelerator.prepare(scheduler)
    targets = [count for _, count in case.windows()]
    for number, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            logits = model(x)
            total = total_loss(logits, y)
            probe.saw(total, y)
            known = total * accelerator.gradient_accumulation_steps / targets[number // case.window]
            accelerator.backward(mean_loss(logits, y) if case.naive == "loss" else known)
            if case.clip and (case.naive == "clip" or accelerator.sync_gradients):
                accelerator.clip_grad_norm_(model.parameters(), case.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.free_memory()
    return probe.finish()
