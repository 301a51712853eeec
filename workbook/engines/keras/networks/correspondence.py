"""Names, axes and padding of PyTorch's layers in Keras. The module imports no framework.

A Keras layer has the name of PyTorch's module (`layer_name`), so `conv1.weight` is the `kernel` of the layer `conv1`.
The order of axes differs. Convolutions are (filters, channels, height, width) in PyTorch and (height, width, channels,
filters) in Keras. Matrices are transposed. A matrix after flattened features takes them channels first in PyTorch and
channels last in Keras.

PyTorch pads by a number on both sides. It drops windows that don't fit at the end, or completes them with ceil_mode.
Keras has the values `same` and `valid`. A layer uses such a value where it agrees with PyTorch's rule. Otherwise a
layer of zeros precedes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.errors import LabkitError

if TYPE_CHECKING:
    import keras


Array = npt.NDArray[Any]
# Keras's names and PyTorch's: first for convolutions and matrices, then for batch norm.
_NAMES = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_WITHOUT_PARTNER = "num_batches_tracked"  # PyTorch's count of batches, on which no computation here depends
_OF_DROPOUT = "seed_generator_state"  # the random state of dropout, which Keras keeps among the variables


def layer_name(module: str) -> str:
    """Return `layer1-0-conv1` for `layer1.0.conv1`: with the PyTorch back end, a layer's name may contain no dot."""
    return module.replace(".", "-")


@dataclass(frozen=True)
class Pair:
    """One variable of a Keras model and its PyTorch name. For a matrix after a Flatten layer, `flattened` is the shape
    (height, width, channels) of the flattened features."""

    name: str
    variable: Any
    flattened: tuple[int, ...] | None = None

    @property
    def torch_shape(self) -> tuple[int, ...]:
        """Shape of the variable in PyTorch's order of axes."""
        sizes = tuple(self.variable.shape)
        return (sizes[3], sizes[2], sizes[0], sizes[1]) if len(sizes) == 4 else sizes[::-1]

    def to_keras(self, array: Array) -> Array:
        """Return a PyTorch array in Keras's order of axes."""
        if array.ndim == 4:
            return array.transpose(2, 3, 1, 0)
        if array.ndim == 2 and self.flattened:
            height, width, channels = self.flattened
            parts = array.reshape(-1, channels, height, width)
            return parts.transpose(2, 3, 1, 0).reshape(height * width * channels, -1)
        return array.T

    def to_torch(self, array: Array) -> Array:
        """Return a Keras array in PyTorch's order of axes."""
        if array.ndim == 4:
            return array.transpose(3, 2, 0, 1)
        if array.ndim == 2 and self.flattened:
            parts = array.reshape(*self.flattened, -1)
            return parts.transpose(3, 2, 0, 1).reshape(array.shape[1], -1)
        return array.T


def pairs(model: keras.Model) -> list[Pair]:
    """Return every weight and running statistic of a model with its PyTorch name, in the model's order."""
    matched = []
    for layer in model.layers:
        flattened = _flattened_before(model, layer)
        for variable in layer.variables:
            if variable.name == _OF_DROPOUT:
                continue
            if variable.name not in _NAMES:
                raise LabkitError(f"{layer.name}'s {variable.name} has no name in PyTorch: add it to _NAMES.")
            matrix = variable.name == "kernel" and flattened
            matched.append(
                Pair(f"{layer.name.replace('-', '.')}.{_NAMES[variable.name]}", variable, flattened if matrix else None)
            )
    return matched


def carry_to_keras(state: Mapping[str, Any], model: keras.Model) -> None:
    """Give a Keras model the weights and statistics of a PyTorch `state_dict` (tensors on the CPU, or arrays).

    Raise LabkitError, and change nothing, if the names or shapes of the two models differ.
    """
    by_name = {pair.name: pair for pair in pairs(model)}
    given = {name: np.asarray(value) for name, value in state.items() if not name.endswith(_WITHOUT_PARTNER)}
    _check_names(by_name, given)
    for name, pair in by_name.items():
        if given[name].shape != pair.torch_shape:
            raise LabkitError(f"{name} is {given[name].shape} in PyTorch's model and {pair.torch_shape} in Keras's.")
    for name, pair in by_name.items():
        # A copy, because JAX on a CPU adopts the array's memory and its weights would follow PyTorch's training.
        pair.variable.assign(_own(pair.to_keras(given[name])))


def carry_to_torch(model: keras.Model) -> dict[str, Array]:
    """Return copies of a Keras model's weights and statistics, with PyTorch's names and order of axes."""
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
    """Return (height, width, channels) of the flattened features before a layer, or None if there are none."""
    if not any(variable.name == "kernel" for variable in layer.variables):
        return None
    for candidate in model.layers:
        if type(candidate).__name__ == "Flatten" and candidate.output is layer.input:
            return tuple(candidate.input.shape[1:])
    return None


def _own(array: Array) -> Array:
    return np.array(array, order="C")


def padding_of(edge: int, window: int, stride: int, padding: int, *, ceil: bool = False) -> tuple[int, int]:
    """Return the zeros before and after an edge that PyTorch's windows reach.

    A last window that does not fit is dropped. With `ceil` it is completed, unless it would begin behind the edge.
    """
    steps = (edge + 2 * padding - window) / stride
    count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
    if ceil and (count - 1) * stride >= edge + padding:
        count -= 1
    return padding, max((count - 1) * stride + window - edge - padding, 0)


def same_padding(edge: int, window: int, stride: int) -> tuple[int, int]:
    """Return the zeros that `same` adds before and after an edge in TensorFlow and XLA."""
    total = max((math.ceil(edge / stride) - 1) * stride + window - edge, 0)
    return total // 2, total - total // 2
