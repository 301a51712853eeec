"""Training: forward, cross-entropy, backward, SGD with momentum, images from the loader of the trial.

The plain loop is what the five papers ran: eager FP32 (TF32 off), one fresh batch a step. Engine, precision and memory
format are fields of the trial; a combination that this module has no engine for is `unsupported`, never run as another.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional

from labkit.data import DataSet
from labkit.data.augment import Augment
from labkit.data.loader import make_loader
from labkit.errors import GateError, Unsupported
from labkit.models import build as build_model
from labkit.models import count
from labkit.trial import Trial

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4


def build(trial: Trial, data: DataSet | None) -> TrainWorkload:
    """The training workload of a trial; Unsupported for an engine, precision or device count it has no means for."""
    if data is None:
        raise GateError("training needs images: the trial's `data` names none")
    if trial.engine not in ("eager", "compile"):
        raise Unsupported(f"the training workload has no engine {trial.engine!r} yet")
    if trial.precision not in ("fp32", "tf32", "bf16"):
        raise Unsupported(f"the training workload does not train in {trial.precision} yet")
    if trial.precision == "tf32" and trial.device == "cpu":
        raise Unsupported("TF32 is a mode of NVIDIA's tensor cores (Ampere and later); a CPU has none")
    if trial.devices != 1:
        raise Unsupported("this version trains on one device")
    if trial.optimizer != "sgd":
        raise Unsupported(f"the training workload has no optimiser {trial.optimizer!r}")
    return TrainWorkload(trial, data)


class TrainWorkload:
    """One model, its optimiser and its loader on one device."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        self.trial = trial
        self.images_per_step: int | None = trial.batch
        self.bytes_per_step: int | None = None
        _set_precision(trial.precision)
        torch.manual_seed(trial.seed)
        device = torch.device(trial.device)
        with device:
            model = build_model(
                trial.model, image_px=trial.image_px, classes=trial.classes, stem=trial.stem, head=trial.head
            )
        if trial.memory_format == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=trial.learning_rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
        )
        self.model: Any = torch.compile(model, dynamic=False) if trial.engine == "compile" else model
        self.loader = make_loader(
            data.train,
            batch=trial.batch,
            device=trial.device,
            mean=data.mean,
            std=data.std,
            seed=trial.seed,
            augment=Augment(flip=trial.augment, crop=trial.augment),
            image_px=trial.image_px,
        )
        cost = count(trial.model, image_px=trial.image_px, classes=trial.classes, stem=trial.stem, head=trial.head)
        self.flop_per_step: int | None = cost.flop_training * trial.batch
        self.facts: dict[str, Any] = {
            "parameters": cost.parameters,
            "parameter_bytes": cost.parameter_bytes,
            # SGD with momentum: forward and backward read the weights, backward writes the gradients, the update reads
            # weights, gradients and momenta and writes weights and momenta: eight passes (unless they stay in a cache).
            "weight_traffic_bytes_per_step": 8 * cost.parameter_bytes,
            "image_bytes": 3 * trial.image_px**2,
            "flop_training": cost.flop_training,
            "flop_forward": cost.flop_forward,
            "stem": trial.stem if trial.model.startswith("resnet") else None,
            "head": trial.head if trial.model.startswith("vgg") else None,
            "loader": self.loader.kind,
            "threads": torch.get_num_threads(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "data_description": data.description,
            "train_images": len(data.train.labels),
        }
        self._losses: list[torch.Tensor] = []

    def _precision(self) -> AbstractContextManager[Any]:
        if self.trial.precision == "bf16":
            context: AbstractContextManager[Any] = torch.autocast(self.trial.device, torch.bfloat16)
            return context
        return nullcontext()

    def step(self) -> torch.Tensor:
        """One training step on the next batch; its loss, still on the device."""
        images, labels = self.loader.next_batch()
        if self.trial.memory_format == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self._losses.append(loss.detach())
        return loss

    def check(self) -> None:
        """One step: the logits have the shape (batch, classes), the loss is finite, every weight got a gradient."""
        shapes: list[tuple[int, ...]] = []
        hook = self.model.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape)))
        loss = float(self.step().detach())
        hook.remove()
        expected = (self.trial.batch, self.trial.classes)
        if shapes != [expected]:
            raise GateError(f"{self.trial.model} gave outputs of shape {shapes}, expected {expected}")
        if not math.isfinite(loss):
            raise GateError(f"the first step's loss is {loss}")
        without = [name for name, weight in self.model.named_parameters() if weight.grad is None]
        if without:
            raise GateError(f"{len(without)} weights got no gradient, {without[0]} first")
        self.facts["first_loss"] = loss

    def read_loss(self) -> float | None:
        """Mean loss since the last call, None when it was not finite."""
        losses, self._losses = self._losses, []
        mean = float(torch.stack(losses).float().mean()) if losses else math.nan
        return mean if math.isfinite(mean) else None


def _set_precision(precision: str) -> None:
    """FP32 means FP32: TF32 only where the trial says so. cuDNN picks its algorithms by trial for the fixed shapes."""
    tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
