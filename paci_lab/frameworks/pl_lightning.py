"""PyTorch Lightning with automatic optimization."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from paci_lab.frameworks.case import Case, mean_loss, total_loss
from paci_lab.frameworks.probe import Probe, Result

__all__ = ["train"]


def train(case: Case) -> Result:
    """As documented: `accumulate_grad_batches`, `gradient_clip_val`, a scheduler with interval "step". Lightning has no
    place for the targets of a window, so they come with the data and the step multiplies by what will be divided.

    Naive loss: the micro-batch's mean. Naive schedule: no interval given.
    """
    module = _Module(case)
    inputs, targets = case.data()
    counts = [count for window, count in case.windows() for _ in window for _ in range(case.rows)]
    loader = DataLoader(TensorDataset(inputs, targets, torch.tensor(counts)), batch_size=case.rows)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            accumulate_grad_batches=case.window,
            gradient_clip_val=case.clip,
            precision="bf16-mixed" if case.bf16 else "32-true",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader)
    return module.probe.finish()


class _Module(L.LightningModule):
    probe: Probe

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.net = case, case.net()

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y, counts = batch
        logits = self.net(x)
        total = total_loss(logits, y)
        self.probe.saw(total, y)
        if self.case.naive == "loss":
            return mean_loss(logits, y)
        return total * self.trainer.accumulate_grad_batches / counts[0]

    def configure_optimizers(self) -> Any:
        optimizer = self.case.optimizer(self.net)
        self.probe = Probe(self.case, self.net, optimizer)
        scheduler = self.case.scheduler(optimizer)
        wanted = (
            {"scheduler": scheduler} if self.case.naive == "schedule" else {"scheduler": scheduler, "interval": "step"}
        )
        return {"optimizer": optimizer, "lr_scheduler": wanted}
