"""One network in training under Keras: what its three back ends share. Imports Keras when a training is made.

A step takes bytes from the host and does the rest on the device: it makes them images, runs forward and back, updates,
and adds its loss to a sum that is read once a block. So nothing waits for a device between steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.data.dataset import Images, Levels, Split
from labkit.data.order import make_order
from labkit.errors import UserError
from workbook.engines.keras.networks import build
from workbook.engines.keras.networks.correspondence import carry_to_keras
from workbook.engines.keras.support import POLICIES
from workbook.trials.recipes import LOSS_SCALE
from workbook.trials.trial import Trial

HostBatch: TypeAlias = tuple[Images, NDArray[np.signedinteger[Any]]]


class HostBatches:
    """Endless full batches: uint8 (B, 3, edge, edge) and int32 labels (B,). Raise UserError for a batch under 1."""

    kind = "host"

    def __init__(self, split: Split, *, batch: int, seed: int) -> None:
        if batch < 1:
            raise UserError(f"a batch of {batch} images was asked for; ask for at least 1.")
        self._split, self._batch, self._seed = split, batch, seed
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first batch."""
        self._order = make_order(len(self._split), seed=self._seed, batch=self._batch)

    def next_batch(self) -> HostBatch:
        """Return the next batch in new arrays."""
        chosen = self._order.take(self._batch)
        images = np.take(self._split.images, chosen, axis=0)
        return images, self._split.labels[chosen].astype(np.int32)


class Pixels(NamedTuple):
    """How bytes become images: their edge in pixels, and the mean and standard deviation of their levels."""

    edge_px: int
    mean: Levels
    std: Levels


class KerasTraining(ABC):
    """A model with its optimiser, driven by the trial's engine on the trial's device.

    `traces` counts how often Python ran the function that an engine makes its programs from. It is None for the eager
    engine, whose function Python runs in each step. `steps` counts the steps since the loss was taken. `facts` are the
    back end's, once it is prepared. `drops_out` says whether random values are dropped in training.
    """

    traces: int | None
    facts: dict[str, Any]

    def __init__(self, trial: Trial, pixels: Pixels) -> None:
        import keras

        from workbook.engines.keras.sgd import TorchSGD

        self.trial, self._pixels, self.steps = trial, pixels, 0
        self.traces = None if trial.engine == "eager" else 0
        self.facts = {}
        self._keras = keras
        keras.config.set_dtype_policy(POLICIES[trial.precision])
        network: dict[str, Any] = {"image_px": trial.image_px, "classes": trial.classes, "head": trial.head}
        with self.on_device():
            self.model = build(trial.model, seed=trial.seed, **network)
            self.optimizer: Any = TorchSGD(trial.learning_rate)
            self._scales = trial.precision == "fp16"
            if self._scales:
                self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer, initial_scale=LOSS_SCALE)
            self.optimizer.build(self.model.trainable_variables)
            self._dropouts = [layer for layer in self.model.layers if isinstance(layer, keras.layers.Dropout)]
            self.drops_out = bool(self._dropouts)
            self._mean = keras.ops.convert_to_tensor(np.asarray(pixels.mean, np.float32))
            self._std = keras.ops.convert_to_tensor(np.maximum(np.asarray(pixels.std, np.float32), 1))

    @abstractmethod
    def on_device(self) -> Any:
        """Return the framework's own context, within which new arrays lie on the trial's device."""

    @abstractmethod
    def preparations(self, batch: HostBatch) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield tracing and compiling for batches like this one, separately if the back end separates them."""

    def update(self, batch: HostBatch) -> None:
        """Queue one step."""
        self.steps += 1
        self._update(*batch)

    def _run_first_step(self, batch: HostBatch) -> None:
        self.update(batch)  # engines compile in it
        self.wait()

    @abstractmethod
    def _update(self, images: Any, labels: Any) -> None:
        """Queue the step."""

    def take_loss(self) -> float:
        """Return the mean loss of the steps since the last call, read from the device; NaN if there were none."""
        steps, self.steps = self.steps, 0
        total = self._take_total()
        return total / steps if steps else float("nan")

    @abstractmethod
    def _take_total(self) -> float:
        """Return the sum of the losses, and set it to 0."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all queued work is done."""

    def store(self) -> None:  # noqa: B027 - most back ends keep them there
        """Put the present weights into `model`, if the back end keeps them elsewhere."""

    def restart(self, weights: Mapping[str, Any]) -> None:
        """Go back to these weights and statistics (PyTorch's names), without momentum and losses."""
        self.store()
        with self.on_device():
            carry_to_keras(weights, self.model)
            inner = self.optimizer.inner_optimizer if self._scales else self.optimizer
            for momentum in inner.momenta:
                momentum.assign(np.zeros(momentum.shape, np.float32))
        self.take_loss()

    def loss_without_dropout(self, batch: HostBatch) -> float:
        """Return the loss in training mode with nothing dropped. Running statistics of `model` may change."""
        rates = [layer.rate for layer in self._dropouts]
        for layer in self._dropouts:
            layer.rate = 0.0
        loss = self._forward_loss(*batch)
        for layer, rate in zip(self._dropouts, rates, strict=True):
            layer.rate = rate
        return loss

    @abstractmethod
    def _forward_loss(self, images: Any, labels: Any) -> float:
        """Return the loss of a batch in training mode, without a step."""

    # ---- parts of the step, in operators that all back ends have ----

    def _inputs(self, images: Any) -> Any:
        """Return FP32 (B, image_px, image_px, 3) of bytes (B, 3, edge, edge), as labkit's loaders do for PyTorch."""
        ops = self._keras.ops
        ready = (ops.cast(ops.transpose(images, (0, 2, 3, 1)), "float32") - self._mean) / self._std
        if self.trial.image_px == self._pixels.edge_px:
            return ready
        size = (self.trial.image_px, self.trial.image_px)
        return ops.image.resize(ready, size, interpolation="bilinear", data_format="channels_last")

    def _loss_of(self, images: Any, labels: Any) -> Any:
        """Return the loss of a batch as it comes from the host."""
        return self._cross_entropy(labels, self.model(self._inputs(images), training=True))

    def _cross_entropy(self, labels: Any, logits: Any) -> Any:
        """Return the mean over the batch, of logits in FP32."""
        ops, losses = self._keras.ops, self._keras.losses
        exact = ops.cast(logits, "float32")
        return ops.mean(losses.sparse_categorical_crossentropy(labels, exact, from_logits=True))

    def _scaled(self, loss: Any) -> Any:
        return self.optimizer.scale_loss(loss) if self._scales else loss
