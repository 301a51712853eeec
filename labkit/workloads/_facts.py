"""What a workload says of itself: its network's cost, its data, what it exchanges, and what it holds in memory."""

from __future__ import annotations

from typing import Any

import torch

from labkit.data import DataSet
from labkit.engines.captured import CapturedStep
from labkit.engines.exchange import bytes_to_send
from labkit.engines.hosted import HostedStep
from labkit.engines.training import Training
from labkit.measure import Held
from labkit.models import ModelFacts, count
from labkit.ranks import Team
from labkit.recipes import weight_passes
from labkit.trial import Trial


def cost_of(trial: Trial) -> ModelFacts:
    """Parameters and FLOP of an image, of the network as the trial has it."""
    return count(trial.model, image_px=trial.image_px, classes=trial.classes, stem=trial.stem, head=trial.head)


def facts_of_network(trial: Trial, cost: ModelFacts, data: DataSet) -> dict[str, Any]:
    """What is known of a network and its data before the first step."""
    return {
        "parameters": cost.parameters,
        "parameter_bytes": cost.parameter_bytes,
        "flop_forward": cost.flop_forward,
        "stem": trial.stem if trial.model.startswith("resnet") else None,
        "head": trial.head if trial.model.startswith("vgg") else None,
        "threads": torch.get_num_threads(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "data_description": data.description,
    }


def facts_of_training(trial: Trial, cost: ModelFacts, data: DataSet) -> dict[str, Any]:
    """What is known of a training before its first step. Weights are taken to stay in no cache."""
    traffic = weight_passes(trial.optimizer, trial.devices) * cost.parameter_bytes
    return {
        **facts_of_network(trial, cost, data),
        "weight_traffic_bytes_per_step": round(traffic),
        "flop_training": cost.flop_training,
        "train_images": len(data.train),
    }


def facts_of_exchange(training: Training, team: Team | None, *, averaged: bool) -> dict[str, Any]:
    """What a device must send in each step, and how a tuned exchange is cut; nothing where there is one device."""
    found: dict[str, Any] = {}
    if team is not None:
        about: dict[str, Any] = {"gradient_precision": training.trial.gradient_precision, "averaged": averaged}
        found["exchanged_bytes_per_step"] = bytes_to_send(training.model, team, **about)
    if training.buckets is not None:
        found["gradient_buckets_bytes"] = training.buckets.sizes_bytes
        found["shared_buckets_bytes"] = training.buckets.shared_sizes_bytes
    return found


def held(trial: Trial, training: Training, run: HostedStep | CapturedStep) -> Held:
    """What lies in memory between two steps."""
    captured, model = isinstance(run, CapturedStep), training.model
    unseen: dict[str, str] = {}
    if captured:
        unseen = dict.fromkeys(("saves_unseen", "peak_unseen"), "a captured step is replayed and allocates nothing")
    elif "compile" in trial.engine:
        unseen["saves_unseen"] = "the compiler decides what the backward pass reads and what it computes again"
    elif trial.parallel == "one_process":
        unseen["saves_unseen"] = "the network runs in threads of DataParallel, one a device"
        unseen["peak_unseen"] = "several devices have one each"
    loader = run.batch if isinstance(run, CapturedStep) else run.loader
    return Held(
        weights=list(model.parameters()),
        gradients=[weight.grad for weight in model.parameters() if weight.grad is not None],
        optimiser=training.state(),
        inputs=[run.images, run.labels],
        beside=[*model.buffers(), *(one for one in vars(loader).values() if isinstance(one, torch.Tensor))],
        **unseen,
    )
