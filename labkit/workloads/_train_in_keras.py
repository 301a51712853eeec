"""Training in Keras 3 on one of its back ends: the loop is ours, the images, batches and the order are PyTorch's.

The host gathers each batch's bytes into new arrays; all else is the framework's, on the device (`keras_training`).
The first step is held against PyTorch's on the same weights, and then stands: training goes on from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from labkit.data import DataSet
from labkit.data.host_batches import HostBatches
from labkit.engines import keras_gate, keras_process, keras_reference
from labkit.engines.keras_support import PACKAGES, why_unsupported
from labkit.engines.keras_training import Pixels, count_parameters, make_training
from labkit.errors import GateError, Unsupported
from labkit.models import check_data, input_bytes, known_count
from labkit.models.in_keras.carried import carry_to_keras, carry_to_torch
from labkit.trial import Trial


def build(trial: Trial, data: DataSet | None) -> KerasTrainWorkload:
    """The training workload of a trial; Unsupported for what this back end or device cannot train."""
    if data is None:
        raise GateError("training needs images: the trial's `data` names none")
    if reason := why_unsupported(trial):
        raise Unsupported(reason)
    check_data(trial.model, words=data.words)
    return KerasTrainWorkload(trial, data)


class KerasTrainWorkload:
    """One Keras model on one device."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        keras = keras_process.enter(trial.framework)
        self.trial = trial
        self.images_per_step: int | None = trial.batch_of_step
        self.bytes_per_step: int | None = None
        self._pixels = Pixels(data.edge_px, data.mean, data.std)
        self._batches = HostBatches(data.train, batch=trial.batch_of_device, seed=trial.seed)
        self._batch = self._batches.next_batch()  # the first, on which everything is prepared
        self.training = make_training(trial, self._pixels)
        self.flop_per_step: int | None = None
        self.facts: dict[str, Any] = {
            "parameters": count_parameters(self.training.model),
            "image_bytes": input_bytes(trial.model, trial.image_px),
            "stem": trial.stem if trial.model.startswith("resnet") else None,
            "head": trial.head if trial.model.startswith("vgg") else None,
            "loader": self._batches.kind,
            "data_format": "channels_last",
            "dtype_policy": keras.config.dtype_policy().name,
            "backend": PACKAGES[trial.framework],
            "data_description": data.description,
            "train_images": len(data.train),
        }
        shape: dict[str, Any] = {"image_px": trial.image_px, "stem": trial.stem, "head": trial.head}
        if known := known_count(trial.model, classes=trial.classes, **shape):
            self._count(known.flop_training, known.flop_forward)
        self._expected: float | None = None
        self._undropped: float | None = None

    def _count(self, flop_training: int, flop_forward: int) -> None:
        self.facts |= {"flop_training": flop_training, "flop_forward": flop_forward}
        self.flop_per_step = flop_training * self.trial.batch_of_step

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """PyTorch's loss to compare with, then tracing and compiling, as far as the engine has them apart."""
        if keras_reference.is_there():
            yield "reference", self._run_reference
        yield from self.training.preparations(self._batch)

    def _run_reference(self) -> None:
        training, weights = self.training, carry_to_torch(self.training.model)
        found = keras_reference.reference(self.trial, self._pixels, weights, self._batch)
        self._count(found["flop_training"], found["flop_forward"])
        self._expected = found["loss"]
        if training.drops_out:
            self._undropped = training.loss_without_dropout(self._batch)
            with training.on_device():
                carry_to_keras(weights, training.model)  # its running statistics have followed

    def check(self) -> None:
        """The first step: a network of the right shape, and PyTorch's loss."""
        training, trial = self.training, self.trial
        if training.model.output_shape != (None, trial.classes):
            raise GateError(f"{trial.model} gives outputs of shape {training.model.output_shape[1:]} an image")
        if not training.steps:
            training.update(self._batch)
        first = training.take_loss()
        self.facts["gate"] = keras_gate.judge(
            first,
            expected=self._expected,
            undropped=self._undropped,
            precision=trial.precision,
            classes=trial.classes,
        )
        self.facts |= {"first_loss": first, "traces": training.traces, **training.facts}

    def step(self) -> None:
        """Queue one step on the next batch."""
        self.training.update(self._batches.next_batch())

    def wait(self) -> None:
        """Return when the steps that were queued are done."""
        self.training.wait()

    def read_loss(self) -> float | None:
        """Mean loss since the last call, None when it was not finite. Once a block: a step traced anew is told here."""
        mean = self.training.take_loss()
        self.facts["traces"] = self.training.traces
        return mean if math.isfinite(mean) else None
