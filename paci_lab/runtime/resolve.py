"""Fill in what a spec leaves open, and refuse what cannot run, before anything is started or written."""

from __future__ import annotations

import torch

from paci_lab.data import open_data
from paci_lab.errors import InputError
from paci_lab.models import build_model
from paci_lab.optimizers import build_optimizer
from paci_lab.partition import balanced_partition, check_partition, even_partition, measure_layer_costs
from paci_lab.peers import check_engine
from paci_lab.schedules import excerpt_of, validate
from paci_lab.spec import TrainSpec

__all__ = ["resolve"]


def resolve(spec: TrainSpec) -> TrainSpec:
    """A spec with partition, device, backend and context decided, so that running it again repeats the run.

    Raises InputError or ScheduleError for anything that would fail later: model, data, optimizer, partition, device.
    """
    check_engine(spec)
    device, backend = _device(spec)
    model = build_model(spec.model, context=spec.context, dropout=spec.dropout)
    data = open_data(spec.data, context=model.context, microbatch_size=spec.microbatch_size, seed=spec.seed)
    if data.vocabulary > model.vocabulary:
        raise InputError(
            "model",
            spec.model,
            f"a vocabulary of at least {data.vocabulary} for data {spec.data!r}, this one has {model.vocabulary}",
            "choose another model or other data",
        )
    partition = spec.partition
    if partition == "auto":
        even = even_partition(model.layers, spec.stages)  # refuses more stages than layers before anything is measured
        if spec.paced or spec.stages == 1:
            partition = even
        else:
            costs = measure_layer_costs(model, spec.microbatch_size, threads=spec.threads, device=device)
            partition = balanced_partition(costs, spec.stages)
    check_partition(partition, model.layers, spec.stages)
    spec = spec.replace(
        partition=list(partition),
        device=device,
        backend=backend,
        context=model.context,
        microbatches=spec.total_microbatches,
        updates=None,
    )
    from paci_lab.runtime.stage import optimizer_options
    from paci_lab.runtime.state import check_savable

    with torch.device("meta"):
        sample = model.build_layer(0, spec.seed)
    build_optimizer(
        spec.optimizer,
        list(sample.named_parameters()),
        learning_rate=spec.learning_rate,
        weight_decay=spec.weight_decay,
        implementation=spec.optimizer_implementation,
        options=optimizer_options(spec),
    )
    check_savable(spec, optimizer_options(spec))
    schedule = spec.build_schedule()
    validate(excerpt_of(spec.schedule, schedule))
    return spec


def _device(spec: TrainSpec) -> tuple[str, str]:
    if spec.paced and spec.device == "cuda":
        raise InputError(
            "device", "cuda", "cpu for paced devices: a GPU runs at its own speed", "use device cpu, or pace 0"
        )
    if spec.device == "cpu" or spec.paced:
        gpus = 0
    else:
        gpus = torch.cuda.device_count()
    if spec.device == "cuda" and not gpus:
        raise InputError(
            "device", "cuda", "auto or cpu on a machine without a GPU that torch can use", "use device cpu"
        )
    device = "cuda" if gpus else "cpu"
    ranks = spec.world_size
    enough = gpus >= ranks
    if spec.backend == "nccl" and not enough:
        raise InputError(
            "backend",
            "nccl",
            f"gloo: {ranks} ranks need {ranks} GPUs for NCCL, which refuses to share one, and {gpus} are here",
            "use backend auto",
        )
    backend = spec.backend if spec.backend != "auto" else "nccl" if enough else "gloo"
    return device, backend
