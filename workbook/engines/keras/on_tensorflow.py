"""Keras on TensorFlow: a step by gradient tape, run eagerly, as a traced function, or as an XLA program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from workbook.engines.common_rules import of_gpu
from workbook.engines.keras.training import HostBatch, KerasTraining, Pixels
from workbook.errors import GateError
from workbook.trials.rules import check
from workbook.trials.trial import Trial


class TrainingOnTensorFlow(KerasTraining):
    """A training by `eager`: operator by operator; `function`: tf.function; `xla`: tf.function with jit_compile.

    TF32 is a mode of the process: on for TF32 trials and off for all others.
    """

    def __init__(self, trial: Trial, pixels: Pixels) -> None:
        check(of_gpu("tensorflow", _capability), trial)
        tf.config.experimental.enable_tensor_float_32_execution(trial.precision == "tf32")
        self._place = "/GPU:0" if trial.device == "cuda" else "/CPU:0"
        super().__init__(trial, pixels)
        with self.on_device():
            self._total = tf.Variable(0.0, dtype=tf.float32, trainable=False)
        self._step: Any = self._train
        if trial.engine != "eager":
            shape = (trial.batch, 3, pixels.edge_px, pixels.edge_px)
            self._step = tf.function(
                self._train,
                input_signature=[tf.TensorSpec(shape, tf.uint8), tf.TensorSpec((trial.batch,), tf.int32)],
                jit_compile=trial.engine == "xla",
                reduce_retracing=False,
            )

    def on_device(self) -> Any:
        """Return TensorFlow's scope of the trial's device."""
        return tf.device(self._place)

    def preparations(self, batch: HostBatch) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield tracing. XLA compiles in the first step, so for XLA also yield that step as `compile`."""
        if self.trial.engine != "eager":
            yield "trace", self._trace
        if self.trial.engine == "xla":
            yield "compile", lambda: self._run_first_step(batch)

    def _trace(self) -> None:
        with self.on_device():
            self._step.get_concrete_function()

    def _train(self, images: Any, labels: Any) -> None:
        if self.traces is not None:
            self.traces += 1  # Python runs this when it traces, and never again
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss_of(images, labels)
            scaled = self._scaled(loss)
        gradients = tape.gradient(scaled, variables)
        if any(gradient is None for gradient in gradients):
            raise GateError("a weight got no gradient")
        self.optimizer.apply(gradients, variables)
        self._total.assign_add(loss)

    def _update(self, images: Any, labels: Any) -> None:
        with self.on_device():
            self._step(tf.convert_to_tensor(images), tf.convert_to_tensor(labels))

    def _take_total(self) -> float:
        total = float(self._total)
        self._total.assign(0.0)
        return total

    def wait(self) -> None:
        """Wait by TensorFlow's synchronisation of all devices."""
        tf.test.experimental.sync_devices()

    def _forward_loss(self, images: Any, labels: Any) -> float:
        with self.on_device():
            return float(self._loss_of(tf.convert_to_tensor(images), tf.convert_to_tensor(labels)))


def _capability() -> tuple[int, int] | None:
    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0])["compute_capability"] if gpus else None
