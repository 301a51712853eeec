"""Facts of a workload for its record: cost of the network, data, exchanged bytes, and tensors in memory."""

from __future__ import annotations

from typing import Any

import torch

from labkit.models import ModelFacts, count
from workbook.engines.exchange.averaging import bytes_to_send
from workbook.engines.steps import CapturedStep, HostedStep
from workbook.engines.training import Training
from workbook.ranks import Team
from workbook.trace import Held
from workbook.trials.trial import Trial


def cost_of(trial: Trial) -> ModelFacts:
    """Return parameters and FLOP per image of the trial's network."""
    return count(trial.model, image_px=trial.image_px, classes=trial.classes, head=trial.head)


def facts_of_network(trial: Trial, cost: ModelFacts, description: str) -> dict[str, Any]:
    """Return the facts of a network and its data before the first step. `description` is a sentence on the data."""
    return {
        "parameters": cost.parameters,
        "parameter_bytes": cost.parameter_bytes,
        "flop_forward": cost.flop_forward,
        "head": trial.head if trial.model.startswith("vgg") else None,
        "threads": torch.get_num_threads(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "data_description": description,
    }


def facts_of_exchange(training: Training, team: Team | None, *, averaged: bool) -> dict[str, Any]:
    """Return the bytes a device must send per step and the sizes of gradient buckets; empty for a single device."""
    facts: dict[str, Any] = {}
    if team is not None:
        about: dict[str, Any] = {"gradient_precision": training.trial.gradient_precision, "averaged": averaged}
        facts["exchanged_bytes_per_step"] = bytes_to_send(training.model, team, **about)
    if training.buckets is not None:
        facts["gradient_buckets_bytes"] = training.buckets.sizes_bytes
        facts["shared_buckets_bytes"] = training.buckets.shared_sizes_bytes
    return facts


def unseen(trial: Trial) -> dict[str, str]:
    """Return the reasons for quantities of a step that hooks cannot observe, as arguments of `Held`."""
    if "graph" in trial.engine:
        return dict.fromkeys(("saves_unseen", "peak_unseen"), "a captured step is replayed and allocates nothing")
    if "compile" in trial.engine:
        return {"saves_unseen": "the compiler decides what the backward pass reads and what it computes again"}
    if trial.parallel == "one_process":
        saves = "the network runs in threads of DataParallel, one per device"
        return {"saves_unseen": saves, "peak_unseen": "each of several devices has a peak of its own"}
    return {}


def held(trial: Trial, training: Training, run: HostedStep | CapturedStep) -> Held:
    """Return the tensors in memory between two steps, and the reasons for quantities that hooks cannot observe."""
    model = training.model
    loader = run.batch if isinstance(run, CapturedStep) else run.loader
    return Held(
        weights=list(model.parameters()),
        gradients=[weight.grad for weight in model.parameters() if weight.grad is not None],
        optimiser=training.state(),
        inputs=[run.images, run.labels],
        beside=[*model.buffers(), *(value for value in vars(loader).values() if isinstance(value, torch.Tensor))],
        **unseen(trial),
    )
