"""PyTorch's own exchange in place of labkit's buckets: the workload of `data_parallel.py --rivals`.

A captured step is captured whole with DistributedDataParallel, which sends gradients in the types of the weights. The
eager step has the optimiser of ZeRO, which divides momenta and updates among the ranks.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from labkit.data import DataSet
from workbook import ranks
from workbook.engines.regions import loss_function
from workbook.engines.steps import CapturedStep
from workbook.engines.training import Training
from workbook.trials.recipes import MOMENTUM, WEIGHT_DECAY
from workbook.trials.trial import Trial
from workbook.workloads import Workload
from workbook.workloads.train import TrainWorkload
from workbook.workloads.train import build as build_training

# DistributedDataParallel times its first ten steps with events that no capture may read.
STEPS_BEFORE_CAPTURE = 11


class Loss(nn.Module):
    """A model with its loss, so that DistributedDataParallel sees the forward pass of a compiled loss too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.function = loss_function(model, None)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return self.function(images, labels)


class CapturedDdp(Training):
    """A captured training whose gradients DistributedDataParallel averages. No gradient is made on a side stream."""

    def __init__(self, *about: Any, **how: Any) -> None:
        with (
            patch("workbook.engines.training.SIDE_STREAM_PX", 0),
            patch.object(Training, "_make_buckets", lambda *_: None),
        ):
            super().__init__(*about, **how)
        if self._by_hand:
            return
        team = ranks.team()
        assert team is not None
        self._of_model = Loss(self.model)
        with torch.cuda.stream(torch.cuda.Stream()):  # a capture cannot wait for the default stream
            self._parallel = nn.parallel.DistributedDataParallel(
                self._of_model,
                process_group=team.work,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                static_graph=True,
            )
        self._loss = self._parallel

    def compile(self) -> None:
        """Compile the loss inside the module that DistributedDataParallel wraps."""
        super().compile()
        self._of_model.function, self._loss = self._loss, self._parallel


class Zero(Training):
    """An eager training with the optimiser of ZeRO."""

    def _make_optimizer(self) -> Any:
        if self._by_hand:
            return super()._make_optimizer()
        team = ranks.team()
        assert team is not None
        about: dict[str, Any] = {"lr": self.trial.learning_rate, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
        return ZeroRedundancyOptimizer(
            self.model.parameters(), torch.optim.SGD, process_group=team.work, fused=True, **about
        )


def build(trial: Trial, data: DataSet) -> Workload:
    """Return the training workload of a trial with PyTorch's exchange."""
    is_captured = "graph" in trial.engine
    with patch("workbook.workloads.train.Training", CapturedDdp if is_captured else Zero):
        workload = build_training(trial, data)
    assert isinstance(workload, TrainWorkload)
    if isinstance(workload.run, CapturedStep):
        warmed_first(workload.run)
    return workload


def warmed_first(step: CapturedStep) -> None:
    """Let the step run on a stream of its own before its capture."""
    capture = step.capture

    def after_steps() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(STEPS_BEFORE_CAPTURE):
                step.warm_up()
        capture()

    step.capture = after_steps  # type: ignore[method-assign]
