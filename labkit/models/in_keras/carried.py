"""Weights, statistics and gradients from PyTorch to Keras and back, by name; neither framework is needed for it.

A Keras layer has the name of PyTorch's module (`layer_name`), so `conv1.weight` is the `kernel` of the layer `conv1`.
What differs is the order of axes: convolutions are (filters, channels, height, width) in PyTorch and (height, width,
channels, filters) in Keras, matrices are transposed, and a matrix behind flattened features takes them channels first
or channels last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.errors import LabkitError

if TYPE_CHECKING:
    import keras

Array = npt.NDArray[Any]
# What Keras calls it, and what PyTorch does: of convolutions and matrices, then of batch norm.
_NAMES = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_WITHOUT_PARTNER = "num_batches_tracked"  # PyTorch counts its batches; nothing that is computed here depends on it
_OF_DROPOUT = "seed_generator_state"  # Keras keeps a dropout's random state among the variables


def layer_name(module: str) -> str:
    """The layer's name, `layer1-0-conv1` of `layer1.0.conv1`: under PyTorch's back end it may hold no point."""
    return module.replace(".", "-")


@dataclass(frozen=True)
class Pair:
    """One variable of a Keras model and PyTorch's name of it. `flattened` is (height, width, channels) of the features
    that a matrix takes flat, where there is more of them than channels."""

    name: str
    variable: Any
    flattened: tuple[int, ...] | None = None

    @property
    def torch_shape(self) -> tuple[int, ...]:
        """The variable's shape in PyTorch's order of axes."""
        sizes = tuple(self.variable.shape)
        return (sizes[3], sizes[2], sizes[0], sizes[1]) if len(sizes) == 4 else sizes[::-1]

    def to_keras(self, array: Array) -> Array:
        """PyTorch's array with Keras's order of axes."""
        if array.ndim == 4:
            return array.transpose(2, 3, 1, 0)
        if array.ndim == 2 and self.flattened:
            height, width, channels = self.flattened
            parts = array.reshape(-1, channels, height, width)
            return parts.transpose(2, 3, 1, 0).reshape(height * width * channels, -1)
        return array.T

    def to_torch(self, array: Array) -> Array:
        """Keras's array with PyTorch's order of axes."""
        if array.ndim == 4:
            return array.transpose(3, 2, 0, 1)
        if array.ndim == 2 and self.flattened:
            parts = array.reshape(*self.flattened, -1)
            return parts.transpose(3, 2, 0, 1).reshape(array.shape[1], -1)
        return array.T


def pairs(model: keras.Model) -> list[Pair]:
    """Every weight and running statistic of a model, with PyTorch's name, in the model's order."""
    found = []
    for layer in model.layers:
        flattened = _flattened_before(model, layer)
        for variable in layer.variables:
            if variable.name == _OF_DROPOUT:
                continue
            if variable.name not in _NAMES:
                raise LabkitError(f"{layer.name}'s {variable.name} has no name in PyTorch: add it to carried.py.")
            matrix = variable.name == "kernel" and flattened
            found.append(
                Pair(f"{layer.name.replace('-', '.')}.{_NAMES[variable.name]}", variable, flattened if matrix else None)
            )
    return found


def carry_to_keras(state: Mapping[str, Any], model: keras.Model) -> None:
    """Give a Keras model the weights and statistics of a PyTorch `state_dict` (tensors on the CPU, or arrays).

    LabkitError, and nothing is changed, where a name on one side has no partner on the other, or another shape.
    """
    found = {pair.name: pair for pair in pairs(model)}
    given = {name: np.asarray(value) for name, value in state.items() if not name.endswith(_WITHOUT_PARTNER)}
    _check_names(found, given)
    for name, pair in found.items():
        if given[name].shape != pair.torch_shape:
            raise LabkitError(f"{name} is {given[name].shape} in PyTorch's model and {pair.torch_shape} in Keras's.")
    for name, pair in found.items():
        # In memory of its own: JAX on a CPU takes an array over where it lies, and would follow PyTorch's training.
        pair.variable.assign(_own(pair.to_keras(given[name])))


def carry_to_torch(model: keras.Model) -> dict[str, Array]:
    """A Keras model's weights and statistics with PyTorch's names and order of axes, in memory of their own."""
    from keras import ops

    return {pair.name: _own(pair.to_torch(ops.convert_to_numpy(pair.variable))) for pair in pairs(model)}


def _check_names(ours: Iterable[str], given: Iterable[str]) -> None:
    for having, wanting, where in ((set(ours), set(given), "Keras"), (set(given), set(ours), "PyTorch")):
        alone = sorted(having - wanting)
        if alone:
            others = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
            names = ", ".join(alone[:5])
            raise LabkitError(f"only {where}'s model has {names}{others}: the two are not the same network.")


def _flattened_before(model: keras.Model, layer: Any) -> tuple[int, ...] | None:
    """(height, width, channels) of the features that reach a layer flat; None of anything else."""
    if not any(variable.name == "kernel" for variable in layer.variables):
        return None
    for other in model.layers:
        if type(other).__name__ == "Flatten" and other.output is layer.input:
            return tuple(other.input.shape[1:])
    return None


def _own(array: Array) -> Array:
    return np.array(array, order="C")
