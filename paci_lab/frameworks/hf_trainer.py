"""Hugging Face's Trainer."""

from __future__ import annotations

import tempfile
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from paci_lab.frameworks.case import Case, mean_loss, total_loss
from paci_lab.frameworks.probe import Probe, Result

__all__ = ["train"]


def train(case: Case) -> Result:
    """As documented: a loss function that is given `num_items_in_batch`, the targets of the whole window.

    Naive loss: a model that returns the mean of its micro-batch. Naive clip: the limit left as it comes.
    The learning rate is always the Trainer's own linear schedule.
    """
    net = case.net()
    optimizer = case.optimizer(net)
    probe = Probe(case, net, optimizer)
    inputs, targets = case.data()
    rows = [{"inputs": x, "labels": y} for x, y in zip(inputs, targets, strict=True)]

    def of_the_window(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int) -> Tensor:
        total = total_loss(logits, labels)
        probe.saw(total, labels)
        return total / num_items_in_batch

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {} if case.naive == "clip" else {"max_grad_norm": case.clip or 0.0}
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=case.rows,
            gradient_accumulation_steps=case.window,
            num_train_epochs=1,
            lr_scheduler_type="linear",
            learning_rate=case.learning_rate,
            bf16=case.bf16,
            activation_checkpointing=case.checkpointing,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            seed=case.seed,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **options,
        )
        Trainer(
            model=_ReturnsLoss(net, probe) if case.naive == "loss" else net,
            args=arguments,
            train_dataset=rows,
            optimizers=(optimizer, None),
            compute_loss_func=None if case.naive == "loss" else of_the_window,
        ).train()
    return probe.finish()


class _ReturnsLoss(nn.Module):
    """A model as many are: it takes labels, and returns the mean loss of its micro-batch."""

    def __init__(self, net: nn.Module, probe: Probe) -> None:
        super().__init__()
        self.net, self._probe = net, probe

    def activation_checkpointing_enable(self, **options: Any) -> None:
        self.net.activation_checkpointing_enable(**options)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(inputs)
        self._probe.saw(total_loss(logits, labels), labels)
        return {"loss": mean_loss(logits, labels)}
