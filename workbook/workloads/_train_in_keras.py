"""Training in Keras 3 on one of its back ends, with labkit's loop and the images, batches and order of PyTorch.

The host gathers each batch's bytes into new arrays. The framework does the rest on the device (`engines.keras`).
The gate compares the first step with PyTorch's on the same weights (with weakened branches in a ResNet). The restart
then undoes the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from labkit.data import DataSet
from labkit.models import known_count
from workbook.engines.comparison import weakened
from workbook.engines.keras import back_end, reference, support
from workbook.engines.keras.back_end import make_training
from workbook.engines.keras.networks.correspondence import carry_to_keras, carry_to_torch
from workbook.engines.keras.training import HostBatches, Pixels
from workbook.errors import GateError
from workbook.hardware.frameworks import KNOWN
from workbook.trials.inputs import check_data, input_bytes
from workbook.trials.trial import Trial
from workbook.workloads import Workload

RULES = support.RULES


def build(trial: Trial, data: DataSet) -> KerasTrainWorkload:
    """Return the training workload of a trial. Raise Unsupported if this device cannot train it."""
    check_data(trial.model, words=data.words)
    return KerasTrainWorkload(trial, data)


class KerasTrainWorkload(Workload):
    """One Keras model, on one device or several devices of this process."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        keras = back_end.enter(trial.framework)
        self.trial = trial
        self.images_per_step = trial.batch_of_step
        self._pixels = Pixels(data.edge_px, data.mean, data.std)
        self._batches = HostBatches(data.train, batch=trial.batch_of_step, seed=trial.seed)
        self._batch = self._batches.next_batch()  # the first batch, on which all preparations run
        self.training = make_training(trial, self._pixels)
        self.facts: dict[str, Any] = {
            "parameters": sum(math.prod(weight.shape) for weight in self.training.model.trainable_variables),
            "image_bytes": input_bytes(trial.model, trial.image_px),
            "head": trial.head if trial.model.startswith("vgg") else None,
            "loader": self._batches.kind,
            "data_format": "channels_last",
            "dtype_policy": keras.config.dtype_policy().name,
            "backend": KNOWN[trial.framework].backend,
            "data_description": data.description,
            "train_images": len(data.train),
        }
        shape: dict[str, Any] = {"image_px": trial.image_px, "head": trial.head}
        if cost := known_count(trial.model, classes=trial.classes, **shape):
            self._count(cost.flop_training, cost.flop_forward)
        self._initial = carry_to_torch(self.training.model)
        self._expected = math.nan
        self._undropped: float | None = None
        self._first = math.nan
        self._compares = True

    def _count(self, flop_training: int, flop_forward: int) -> None:
        self.facts |= {"flop_training": flop_training, "flop_forward": flop_forward}
        self.flop_per_step = flop_training * self.trial.batch_of_step

    def leave_out_gate(self) -> None:
        """Leave out PyTorch's step, unless it must count the network's operations."""
        self._compares = self._compares and self.flop_per_step is None

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield tracing and compiling (if the engine separates them), the first step, and PyTorch's first step.

        PyTorch's step comes late, so that a trial too large for the device fails first. The last call undoes the steps.
        """
        if self._compares:
            yield "weights", self._load_weakened
        yield from self.training.preparations(self._batch)
        yield "first_step", self._run_first_step
        if self._compares:
            yield "reference", self._run_reference
        yield "restart", self._restart

    def _load_weakened(self) -> None:
        self._weakened = weakened(self._initial)
        self._load(self._weakened)
        if self.training.drops_out:
            self._undropped = self.training.loss_without_dropout(self._batch)
            self._load(self._weakened)  # again, because the forward pass may have changed running statistics

    def _load(self, weights: dict[str, Any]) -> None:
        with self.training.on_device():
            carry_to_keras(weights, self.training.model)

    def _restart(self) -> None:
        self.training.restart(self._initial)
        self._batches.rewind()
        self._initial = {}

    def _run_first_step(self) -> None:
        if not self.training.steps:  # an engine that compiles in the first step has already taken it
            self.training.update(self._batch)
        self._first = self.training.take_loss()
        self.facts |= {"first_loss": self._first, "traces": self.training.traces, **self.training.facts}

    def _run_reference(self) -> None:
        reply = reference.reference(self.trial, self._pixels, self._weakened, self._batch)
        self._weakened = {}
        self._count(reply["flop_training"], reply["flop_forward"])
        self._expected = reply["loss"]

    def check(self) -> None:
        """Check the network's output shape, and compare its first loss with PyTorch's. Raise GateError on failure."""
        trial, shape = self.trial, self.training.model.output_shape
        if shape != (None, trial.classes):
            raise GateError(f"{trial.model} gives outputs of shape {shape[1:]} per image, expected ({trial.classes},)")
        if not self._compares:
            return  # the gate was passed earlier
        self.facts["gate"] = reference.judge(
            self._first,
            expected=self._expected,
            undropped=self._undropped,
            precision=trial.precision,
        )

    def step(self) -> None:
        """Queue one step on the next batch."""
        self.training.update(self._batches.next_batch())

    def wait(self) -> None:
        """Wait until all queued steps are done."""
        self.training.wait()

    def read_loss(self) -> float | None:
        """Return the mean loss since the last call, None if not finite. Also update the fact `traces`."""
        mean = self.training.take_loss()
        self.facts["traces"] = self.training.traces
        return mean if math.isfinite(mean) else None
