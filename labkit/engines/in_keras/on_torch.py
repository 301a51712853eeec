"""Keras on PyTorch: autograd's step, operator by operator or compiled by Inductor.

torch.compile reads Python, and Keras's way of calling layers breaks it into hundreds of pieces, most of which it gives
up on. So the step is traced first, as JAX and TensorFlow trace theirs: Python runs Keras once, make_fx writes down what
PyTorch was asked to do, forward and back, and torch.compile gets that, as one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import torch

from labkit.data.host_batches import HostBatch
from labkit.engines import precision
from labkit.engines.in_keras.support import why_not_here
from labkit.engines.in_keras.training import KerasTraining, Pixels
from labkit.engines.regions import compiler_cache
from labkit.errors import GateError, Unsupported
from labkit.trial import Trial


class TrainingOnTorch(KerasTraining):
    """`eager`, or `compile`: torch.compile of loss, gradients and running statistics; the update stays eager.

    In FP16 Keras itself asks after each step whether the gradients were finite, and waits for the answer.
    """

    def __init__(self, trial: Trial, pixels: Pixels) -> None:
        if reason := why_not_here(trial, torch.cuda.get_device_capability() if torch.cuda.is_available() else None):
            raise Unsupported(reason)
        precision.set_modes(trial.precision)
        self._device = torch.device("cuda:0" if trial.device == "cuda" else "cpu")
        super().__init__(trial, pixels)
        self._total = torch.zeros((), device=self._device)
        self._step: Any = self._train

    def on_device(self) -> Any:
        """Keras's scope, which PyTorch's back end reads."""
        return keras.device("gpu:0" if self._device.type == "cuda" else "cpu")

    def preparations(self, batch: HostBatch) -> Iterable[tuple[str, Callable[[], None]]]:
        """Tracing; Inductor compiles in the first step, which is part of `compile` then."""
        if self.trial.engine == "compile":
            yield "trace", lambda: self._trace(*batch)
            yield "compile", lambda: self._compile(batch)

    def _trace(self, images: Any, labels: Any) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        def pure(trained: Any, rest: Any, scale: Any, images: Any, labels: Any) -> tuple[Any, ...]:
            return self._pure(trained, rest, scale, images, labels)  # make_fx would count a method's self

        with self.on_device():
            graph = make_fx(pure)(*self._state(), self._put(images), self._put(labels))
        self._graph = torch.compile(graph, dynamic=False, fullgraph=True)
        self._step = self._train_compiled

    def _compile(self, batch: HostBatch) -> None:
        before = compiler_cache()
        self._run_first_step(batch)
        self.facts["compiled_regions"] = {name: n - before[name] for name, n in compiler_cache().items()}

    def _state(self) -> tuple[list[Any], list[Any], Any]:
        """Weights, what else the model keeps, and what the loss is scaled by."""
        both = (self.model.trainable_variables, self.model.non_trainable_variables)
        trained, rest = ([variable.value.detach() for variable in variables] for variables in both)
        scale = self.optimizer.dynamic_scale.value if self._scales else torch.ones((), device=self._device)
        return trained, rest, scale

    def _pure(self, trained: list[Any], rest: list[Any], scale: Any, images: Any, labels: Any) -> tuple[Any, ...]:
        """The loss, what the model keeps after it, and gradients: nothing is changed in place."""
        assert self.traces is not None
        self.traces += 1  # Python runs this when it traces, and never again
        weights = [weight.detach().requires_grad_() for weight in trained]
        logits, new_rest = self.model.stateless_call(weights, rest, self._inputs(images), training=True)
        loss = self._cross_entropy(labels, logits)
        gradients = torch.autograd.grad(loss * scale, weights)
        return loss.detach(), [value.detach() for value in new_rest], list(gradients)

    def _put(self, array: Any) -> Any:
        """On the device; to a GPU from pinned memory, since a copy from any other waits."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor

    def _update(self, images: Any, labels: Any) -> None:
        with self.on_device():
            loss, gradients = self._step(self._put(images), self._put(labels))
            with torch.no_grad():
                self.optimizer.apply(gradients, self.model.trainable_variables)
                self._total += loss

    def _train(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """Loss and gradients, eagerly."""
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
        """The same from the graph, whose results are then put where Keras keeps them."""
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
        """By CUDA's synchronisation; a CPU's work is done when its call returns."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _forward_loss(self, images: Any, labels: Any) -> float:
        with self.on_device(), torch.no_grad():
            return float(self._loss_of(self._put(images), self._put(labels)))
