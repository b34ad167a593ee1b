"""DeepSpeed's engine, one process, ZeRO stage 0."""

from __future__ import annotations

import logging
import os
from typing import Any

import deepspeed
import torch.distributed as dist

from paci_lab.frameworks.case import Case, mean_loss, total_loss
from paci_lab.frameworks.probe import Probe, Result

__all__ = ["config", "train"]


def config(case: Case) -> dict[str, Any]:
    """What is in DeepSpeed's JSON file for this case."""
    return {
        "train_micro_batch_size_per_gpu": case.rows,
        "gradient_accumulation_steps": case.window,
        "gradient_clipping": case.clip or 0.0,
        "torch_autocast": {"enabled": case.bf16, "dtype": "bfloat16"},
    }


def train(case: Case) -> Result:
    """As documented: `engine.backward` and `engine.step` for every micro-batch; the engine knows when a window ends. It
    divides the loss by the accumulation steps, so one that knows the targets of the window is multiplied by them.

    Naive loss: the micro-batch's mean.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not dist.is_initialized():
        # For messages through shared memory it would compile an extension, for minutes; one process sends none.
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net = case.net()
    optimizer = case.optimizer(net)
    probe = Probe(case, net, optimizer)
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=optimizer,
        lr_scheduler=case.scheduler(optimizer),
        config=config(case),
        dist_init_required=False,
    )
    for window, targets in case.windows():
        for x, y in window:
            logits = engine(x)
            total = total_loss(logits, y)
            probe.saw(total, y)
            engine.backward(mean_loss(logits, y) if case.naive == "loss" else total * case.window / targets)
            engine.step()
    engine.destroy()
    return probe.finish()
