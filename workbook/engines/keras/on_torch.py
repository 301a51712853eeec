"""Keras on PyTorch: a step by autograd, operator by operator or compiled by Inductor.

torch.compile reads Python, and Keras's way of calling layers breaks it into hundreds of pieces, most of which it gives
up on. So the step is traced first, as JAX and TensorFlow trace theirs. Python runs Keras once, make_fx records the
PyTorch operators, forward and back, and torch.compile gets them as one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import torch

from workbook.engines import precision
from workbook.engines.common_rules import of_gpu
from workbook.engines.keras.training import HostBatch, KerasTraining, Pixels
from workbook.engines.regions import counted_regions
from workbook.errors import GateError
from workbook.trials.rules import check
from workbook.trials.trial import Trial


class TrainingOnTorch(KerasTraining):
    """A training by `eager`, or by `compile`: torch.compile of loss, gradients and running statistics.

    The update stays eager. In FP16 Keras asks after each step whether gradients were finite, and waits for the answer.
    """

    def __init__(self, trial: Trial, pixels: Pixels) -> None:
        check(of_gpu("torch", precision.capability), trial)
        precision.set_modes(trial)
        self._device = torch.device("cuda:0" if trial.device == "cuda" else "cpu")
        super().__init__(trial, pixels)
        self._total = torch.zeros((), device=self._device)
        self._step: Any = self._train

    def on_device(self) -> Any:
        """Return Keras's scope of the trial's device, which its PyTorch back end reads."""
        return keras.device("gpu:0" if self._device.type == "cuda" else "cpu")

    def preparations(self, batch: HostBatch) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield tracing, and the first step as `compile`, in which Inductor compiles; nothing for `eager`."""
        if self.trial.engine == "compile":
            yield "trace", lambda: self._trace(*batch)
            yield "compile", lambda: self._compile(batch)

    def _trace(self, images: Any, labels: Any) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        def step(trained: Any, rest: Any, scale: Any, images: Any, labels: Any) -> tuple[Any, ...]:
            """Return the loss, the model's other variables after it, and gradients. Change nothing in place."""
            assert self.traces is not None
            self.traces += 1  # Python runs this when it traces, and never again
            weights = [weight.detach().requires_grad_() for weight in trained]
            logits, new_rest = self.model.stateless_call(weights, rest, self._inputs(images), training=True)
            loss = self._cross_entropy(labels, logits)
            gradients = torch.autograd.grad(loss * scale, weights)
            return loss.detach(), [value.detach() for value in new_rest], list(gradients)

        with self.on_device():
            graph = make_fx(step)(*self._state(), self._put(images), self._put(labels))
        self._graph = torch.compile(graph, dynamic=False, fullgraph=True)
        self._step = self._train_compiled

    def _compile(self, batch: HostBatch) -> None:
        with counted_regions(self.facts):
            self._run_first_step(batch)

    def _state(self) -> tuple[list[Any], list[Any], Any]:
        """Return the weights, the model's other variables, and the scale of the loss."""
        both = (self.model.trainable_variables, self.model.non_trainable_variables)
        trained, rest = ([variable.value.detach() for variable in variables] for variables in both)
        scale = self.optimizer.dynamic_scale.value if self._scales else torch.ones((), device=self._device)
        return trained, rest, scale

    def _put(self, array: Any) -> Any:
        """Return the array on the device. It goes to a GPU from pinned memory, as a copy from other memory waits."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor

    def _update(self, images: Any, labels: Any) -> None:
        with self.on_device():
            loss, gradients = self._step(self._put(images), self._put(labels))
            with torch.no_grad():
                self.optimizer.apply(gradients, self.model.trainable_variables)
                self._total += loss

    def _train(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """Return loss and gradients, computed eagerly."""
        variables = self.model.trainable_variables
        for variable in variables:
            variable.value.grad = None
        loss = self._loss_of(images, labels)
        self._scaled(loss).backward()
        gradients = [variable.value.grad for variable in variables]
        if any(gradient is None for gradient in gradients):
            raise GateError("a weight got no gradient")
        return loss.detach(), gradients

    def _train_compiled(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """Return loss and gradients from the graph, and copy its other results to where Keras keeps them."""
        trained, rest, scale = self._state()
        with torch.no_grad():
            loss, new_rest, gradients = self._graph(trained, rest, scale, images, labels)
            for value, new in zip(rest, new_rest, strict=True):
                if value is not new:
                    value.copy_(new)
        return loss, gradients

    def _take_total(self) -> float:
        total = float(self._total)
        self._total.zero_()
        return total

    def wait(self) -> None:
        """Wait by CUDA's synchronisation; a CPU's work is done when its call returns."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _forward_loss(self, images: Any, labels: Any) -> float:
        with self.on_device(), torch.no_grad():
            return float(self._loss_of(self._put(images), self._put(labels)))
