"""The network for inference, with initial weights or with trained weights, which this module trains if necessary.

The cost of a prediction does not depend on the weights, but its accuracy does. A network with initial weights gets
running statistics from real images and weakened residual branches, so that activations stay finite and rounding small.
Trained weights come from a file. On a GPU, the first trial that needs the file makes it, with the loop that the
training studies time. The weights for ImageNet's own images are torchvision's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from labkit.data import DataSet
from labkit.errors import LabkitError
from labkit.models import build as build_model
from workbook.engines.batch_norm import fold_back, has_batch_norm, normalise
from workbook.engines.comparison import damp
from workbook.engines.inference_images import Pool
from workbook.engines.state import free_memory
from workbook.engines.weights_files import (
    Weights,
    can_train,
    find_weights,
    of_torchvision,
    read_torchvision,
    read_weights,
    why_none,
    write_weights,
)
from workbook.errors import Unsupported
from workbook.trials.recipes import CAPTURED, Recipe
from workbook.trials.trial import Trial
from workbook.workloads.train import TrainWorkload

SETTLING_IMAGES = 128  # images from which the running statistics are taken

# Weights are trained with the tuned loop (BF16, one launch per step), in seconds per network on a GPU.
RECIPE: Recipe = {**CAPTURED, "batch": 128, "schedule": "one_cycle"}


class Schedule(NamedTuple):
    """Epochs over 50,000 images (fewer for a larger set, no more for a smaller set), and highest learning rate."""

    epochs: int
    learning_rate: float


# Each schedule ends well between chance and certainty on synthetic32's 50,000 images, in seconds on an H200. Top-1
# there after the last epoch: ResNets 66 to 68 %, VGGs 85 %, AlexNet 71 %. At a rate of 0.02 ResNet-152 ended at 28 %.
SCHEDULES = {
    "resnet18": Schedule(10, 0.05),
    "resnet50": Schedule(15, 0.05),
    "resnet101": Schedule(15, 0.05),
    "resnet152": Schedule(15, 0.05),
    "vgg16": Schedule(12, 0.05),
    "vgg19": Schedule(12, 0.05),
    "googlenet": Schedule(12, 0.05),
    "alexnet": Schedule(15, 0.02),
}
IMAGES_OF_SCHEDULE = 50_000


@dataclass(frozen=True)
class Network:
    """A model in evaluation mode, FP32, on the trial's device. `weights` is None for initial weights."""

    model: nn.Module
    build_s: float
    weights: Weights | None = None
    phases: dict[str, float] = field(default_factory=dict)  # seconds of the phases before the model is built, by name


def make_network(trial: Trial, data: DataSet, folder: Path | None = None) -> Network:
    """Return the trial's network; trained weights lie in `folder`, by default in the cache.

    Raise Unsupported if trained weights can neither be found nor trained.
    """
    if trial.weights == "trained":
        began = time.perf_counter()
        weights = _trained_weights(replace(trial, data_checksum=data.checksum), data, folder)
        phases = {"weights": time.perf_counter() - began}
        began = time.perf_counter()
        model = _empty_model(trial)
        model.load_state_dict(weights.state)
        return Network(model.eval(), time.perf_counter() - began, weights, phases)
    began = time.perf_counter()
    model = initial_model(trial)
    build_s = time.perf_counter() - began
    settle(model, trial, data)
    return Network(model, build_s)


def initial_model(trial: Trial) -> nn.Module:
    """Return the trial's model in evaluation mode with initial FP32 weights and weakened residual branches."""
    model = _empty_model(trial)
    damp(model)
    return model.eval()


def _empty_model(trial: Trial) -> nn.Module:
    torch.manual_seed(trial.seed)
    with torch.device(trial.device):
        return _model(trial)


def _model(trial: Trial) -> nn.Module:
    return build_model(trial.model, image_px=trial.image_px, classes=trial.classes, head=trial.head)


@torch.inference_mode()
def settle(model: nn.Module, trial: Trial, data: DataSet) -> None:
    """Set a model's running statistics from real images, in place."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        return
    settling = replace(trial, engine="eager", precision="fp32", memory_format="contiguous", batch=SETTLING_IMAGES)
    pool = Pool(settling, data, dtype=torch.float32, where="host")
    for norm in norms:
        norm.momentum = None  # None makes the running statistics the mean over all batches
    model.train()
    model(pool.ready(next(pool).to(trial.device)))
    model.eval()


def _trained_weights(trial: Trial, data: DataSet, folder: Path | None) -> Weights:
    path = find_weights(trial, folder)
    if path is None:
        if not can_train(trial):
            raise Unsupported(why_none(trial))
        state, facts = train_weights(trial, data)
        path = write_weights(trial, state, facts, folder)
        free_memory(trial.device)
    return read_torchvision(trial, path) if of_torchvision(trial) else read_weights(path)


def train_weights(trial: Trial, data: DataSet) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Train the trial's network from its initial weights, and return its state (FP32, on the host) and facts.

    The facts include epochs, highest learning rate, batch, seconds, and top-1 and top-5 on the data's own validation
    images after the last epoch. Raise Unsupported for a model without schedule, LabkitError if the loss is not finite.
    """
    if trial.model not in SCHEDULES:
        raise Unsupported(
            f"no schedule to train {trial.model}; models with a schedule: {', '.join(SCHEDULES)}", "version"
        )
    schedule = SCHEDULES[trial.model]
    epochs = max(1, round(schedule.epochs * min(1.0, IMAGES_OF_SCHEDULE / len(data.train))))
    base = {name: getattr(trial, name) for name in _OF_NETWORK}
    run = Trial(**base, **RECIPE, workload="train", epochs=epochs, learning_rate=schedule.learning_rate)
    began = time.perf_counter()
    with torch.device("meta"):
        lacks_norm = not has_batch_norm(_model(trial))
    training = TrainWorkload(run, data, adapt=_eager_to_learn)
    for name, prepare in training.preparations():
        if name != "reference":  # no gate needed: the accuracy shows whether the steps are right
            prepare()
    training.restart()
    for epoch in range(epochs):
        for _ in range(training.steps_of_epoch(epoch)):
            training.step()
    loss, scores = training.read_loss(), training.evaluate()
    if loss is None:
        raise LabkitError(f"training {trial.model} failed: its loss is not finite.")
    facts = {
        "epochs": epochs,
        "learning_rate": schedule.learning_rate,
        "batch": run.batch,
        "precision": run.precision,
        "train_images": len(data.train),
        "batch_norm_folded": lacks_norm,
        "top1": scores.top1,
        "top5": scores.top5,
        "took_s": time.perf_counter() - began,
    }
    state = _state(training)
    return (_without_norm(trial, state) if lacks_norm else state), facts


def _eager_to_learn(model: nn.Module) -> None:
    """Change a model in place so that a dozen epochs of small images suffice. The network for inference stays the same.

    Networks without batch norm get it (see `engines.batch_norm`). Residual branches start at zero, so that 152 layers
    learn as fast as 50 (Goyal et al. 2017, arXiv:1706.02677). No dropout: VGG-16 ended at 54 % with it, 86 % without.
    """
    if not has_batch_norm(model):
        normalise(model)
    damp(model, 0.0)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def _without_norm(trial: Trial, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state of the original network, made from `state` of the network trained with added batch norm."""
    model = _model(trial)
    normalise(model)
    model.load_state_dict(state)
    model.eval()
    fold_back(model)
    return dict(model.state_dict())


_OF_NETWORK = ("model", "image_px", "classes", "head", "data", "data_checksum", "seed", "device")


def _state(training: TrainWorkload) -> dict[str, torch.Tensor]:
    """Return the state of a training's model with the optimiser's weights, in FP32 for every precision."""
    model = training.training.model
    named = zip((name for name, _ in model.named_parameters()), training.training.weights(), strict=True)
    state = {name: value.detach().float().cpu() for name, value in named}
    buffers = {name: value.detach().cpu() for name, value in model.named_buffers()}
    return state | {name: value.float() if value.is_floating_point() else value for name, value in buffers.items()}
