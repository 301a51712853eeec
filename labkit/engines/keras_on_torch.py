"""Keras on PyTorch: autograd's step, its forward pass eager or compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import keras
import torch

from labkit.data.host_batches import HostBatch
from labkit.engines import precision
from labkit.engines.keras_support import why_not_here
from labkit.engines.keras_training import KerasTraining, Pixels
from labkit.errors import GateError, Unsupported
from labkit.trial import Trial


class TrainingOnTorch(KerasTraining):
    """`eager`, or `compile`: torch.compile of images and weights to the loss.

    `traces` counts graphs that Inductor was given: Keras's layers may take more than one, but no step takes a new one.
    In FP16 Keras itself asks after each step whether the gradients were finite, and waits for the answer.
    """

    def __init__(self, trial: Trial, pixels: Pixels) -> None:
        if reason := why_not_here(trial, torch.cuda.get_device_capability() if torch.cuda.is_available() else None):
            raise Unsupported(reason)
        precision.set_modes(trial.precision)
        self._device = torch.device("cuda:0" if trial.device == "cuda" else "cpu")
        super().__init__(trial, pixels)
        self._total = torch.zeros((), device=self._device)
        self._loss: Callable[..., Any] = self._loss_of
        if trial.engine == "compile":
            self._loss = torch.compile(self._loss_of, dynamic=False, backend=self._counted)

    def on_device(self) -> AbstractContextManager[Any]:
        """Keras's scope, which PyTorch's back end reads."""
        scope: AbstractContextManager[Any] = keras.device("gpu:0" if self._device.type == "cuda" else "cpu")
        return scope

    def _counted(self, graph: Any, examples: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        assert self.traces is not None
        self.traces += 1
        return compile_fx(graph, examples)

    def preparations(self, batch: HostBatch) -> Iterable[tuple[str, Callable[[], None]]]:
        """Tracing and compiling, which the first step does in one."""
        if self.trial.engine == "compile":
            yield "compile", lambda: self._first(batch)

    def _first(self, batch: HostBatch) -> None:
        self.update(batch)
        self.wait()

    def _loss_of(self, images: Any, labels: Any) -> Any:
        return self._cross_entropy(labels, self.model(self._inputs(images), training=True))

    def _put(self, array: Any) -> Any:
        """On the device; to a GPU from pinned memory, since a copy from any other waits."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor

    def _update(self, images: Any, labels: Any) -> None:
        variables = self.model.trainable_variables
        for variable in variables:
            variable.value.grad = None
        with self.on_device():
            loss = self._loss(self._put(images), self._put(labels))
            self._scaled(loss).backward()
            gradients = [variable.value.grad for variable in variables]
            if any(gradient is None for gradient in gradients):
                raise GateError("a weight got no gradient")
            with torch.no_grad():
                self.optimizer.apply(gradients, variables)
                self._total += loss.detach()

    def _take_total(self) -> float:
        total = float(self._total)
        self._total.zero_()
        return total

    def wait(self) -> None:
        """By CUDA's synchronisation; a CPU's work is done when its call returns."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _forward_loss(self, images: Any, labels: Any) -> float:
        with self.on_device(), torch.no_grad():
            return float(self._loss_of(self._put(images), self._put(labels)))
