"""PyTorch's layers in Keras, with the same padding, pooling, statistics and initialisation (imports Keras)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from workbook.engines.keras.networks.correspondence import layer_name, padding_of, same_padding

Tensor = Any
Size = int | tuple[int, int]  # size of both edges, or (height, width)
Initializer = Callable[..., Tensor]

FORMAT: dict[str, Any] = {"data_format": "channels_last"}


class BatchNorm(keras.layers.BatchNormalization):
    """Keras's batch norm with PyTorch's running variance, which divides by n - 1. Keras's own divides by n.

    Both frameworks normalise images with the variance that divides by n. In the last layers of a network on 32x32
    images, n is the batch size, and the two running variances differ by several per cent.
    """

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor = None) -> Tensor:
        """Return normalised inputs. In training, use the batch's statistics and update the running ones."""
        if not (training and self.trainable):
            return super().call(inputs, training=False, mask=mask)
        exact = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        axes = [axis for axis in range(len(inputs.shape)) if axis != self.axis % len(inputs.shape)]
        mean, variance = ops.moments(exact, axes=axes)
        count = math.prod(ops.shape(inputs)[axis] for axis in axes)
        if not isinstance(count, int):  # an int stays an int, because PyTorch would wait for its copy to a GPU
            count = ops.cast(count, exact.dtype)
        new = 1.0 - self.momentum
        self.moving_mean.assign(self.moving_mean * self.momentum + mean * new)
        self.moving_variance.assign(self.moving_variance * self.momentum + variance * (count / (count - 1.0) * new))
        result = ops.batch_normalization(
            exact, mean, variance, axis=self.axis, offset=self.beta, scale=self.gamma, epsilon=self.epsilon
        )
        return ops.cast(result, self.compute_dtype)


class Layers:
    """Methods that apply layers to tensors, with the names of PyTorch's modules and PyTorch's meaning of sizes.

    `spread` is the standard deviation of normally distributed initial weights. It serves networks for which torchvision
    truncates a normal distribution at 2, which is 20 standard deviations or more. Without `spread`, initial weights
    follow PyTorch's layers. NumPy draws them from `seed`, so every back end has the same numbers. JAX would compile a
    draw per shape, half a minute for a GoogLeNet on one core.
    """

    def __init__(self, seed: int, *, spread: float | None) -> None:
        self._random = np.random.default_rng(seed)
        self._spread = spread

    def edges(self, tensor: Tensor) -> tuple[int, int]:
        """Return height and width of a tensor."""
        _, height, width, _ = tensor.shape
        return height, width

    def convolution(
        self,
        tensor: Tensor,
        name: str,
        filters: int,
        window: Size,
        *,
        stride: int = 1,
        padding: Size = 0,
        bias: bool = False,
    ) -> Tensor:
        """Apply a convolution. Without `spread`, weights start as in ResNet and VGG (He, fan out), biases at 0."""
        tensor, word = self._padded(tensor, window, stride, padding)
        fan_out = filters * math.prod(_both(window))
        layer = keras.layers.Conv2D(
            filters,
            window,
            strides=stride,
            padding=word,
            use_bias=bias,
            kernel_initializer=self._normal(self._spread or math.sqrt(2 / fan_out)),
            name=layer_name(name),
            **FORMAT,
        )
        return layer(tensor)

    def norm(self, tensor: Tensor, name: str, *, eps: float = 1e-5) -> Tensor:
        """Apply batch norm with PyTorch's momentum of 0.1, which is 0.9 in Keras's definition."""
        return BatchNorm(axis=-1, momentum=0.9, epsilon=eps, name=layer_name(name))(tensor)

    def block(self, tensor: Tensor, name: str, filters: int, window: Size, **sizes: Any) -> Tensor:
        """Apply torchvision's BasicConv2d of GoogLeNet and Inception-v3: convolution, batch norm, ReLU."""
        tensor = self.convolution(tensor, f"{name}.conv", filters, window, **sizes)
        return self.relu(self.norm(tensor, f"{name}.bn", eps=1e-3))

    def relu(self, tensor: Tensor) -> Tensor:
        """Apply ReLU."""
        return keras.layers.Activation("relu")(tensor)

    def add(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the sum of tensors."""
        return keras.layers.Add()(tensors)

    def concatenate(self, tensors: Sequence[Tensor]) -> Tensor:
        """Concatenate tensors along the channels."""
        return keras.layers.Concatenate(axis=-1)(tensors)

    def max_pool(self, tensor: Tensor, window: int, *, stride: int, padding: int = 0, ceil: bool = False) -> Tensor:
        """Return the maximum of each window. `tensor` must come from ReLU, so that zero padding changes no maximum."""
        tensor, word = self._padded(tensor, window, stride, padding, ceil=ceil)
        return keras.layers.MaxPooling2D(window, strides=stride, padding=word, **FORMAT)(tensor)

    def average_pool(self, tensor: Tensor, window: int, *, stride: int, padding: int = 0) -> Tensor:
        """Return the mean of each window, including the padding's zeros. Keras's `same` would exclude them."""
        if padding:
            tensor = keras.layers.ZeroPadding2D(padding, **FORMAT)(tensor)
        return keras.layers.AveragePooling2D(window, strides=stride, padding="valid", **FORMAT)(tensor)

    def replicate(self, tensor: Tensor, edge: int) -> Tensor:
        """Repeat 1x1 features `edge` x `edge` times, as PyTorch's adaptive average of a 1x1 input does."""
        return keras.layers.UpSampling2D(edge, interpolation="nearest", **FORMAT)(tensor)

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean over height and width, (N, channels)."""
        return keras.layers.GlobalAveragePooling2D(**FORMAT)(tensor)

    def flatten(self, tensor: Tensor) -> Tensor:
        """Return (N, height * width * channels), in this order. PyTorch flattens channels first."""
        return keras.layers.Flatten(**FORMAT)(tensor)

    def dense(
        self, tensor: Tensor, name: str, units: int, *, spread: float | None = None, zero_bias: bool = False
    ) -> Tensor:
        """Apply a matrix product and a bias, which start as in PyTorch's Linear: uniform within 1 / sqrt(inputs).

        With a `spread`, of the call or else of the network, the weights are normal with this standard deviation.
        """
        spread = spread or self._spread
        uniform = self._uniform(1 / math.sqrt(tensor.shape[-1]))
        layer = keras.layers.Dense(
            units,
            kernel_initializer=self._normal(spread) if spread else uniform,
            bias_initializer="zeros" if zero_bias else uniform,
            name=layer_name(name),
        )
        return layer(tensor)

    def dropout(self, tensor: Tensor, rate: float) -> Tensor:
        """Apply dropout. In training, a share `rate` of the values becomes 0 and the rest is divided by 1 - `rate`."""
        return keras.layers.Dropout(rate)(tensor)

    def _normal(self, deviation: float) -> Initializer:
        def draw(shape: tuple[int, ...], dtype: Any = None) -> Tensor:
            return ops.convert_to_tensor(self._random.standard_normal(shape, np.float32) * np.float32(deviation), dtype)

        return draw

    def _uniform(self, bound: float) -> Initializer:
        def draw(shape: tuple[int, ...], dtype: Any = None) -> Tensor:
            return ops.convert_to_tensor((self._random.random(shape, np.float32) * 2 - 1) * np.float32(bound), dtype)

        return draw

    def _padded(
        self, tensor: Tensor, window: Size, stride: int, padding: Size, *, ceil: bool = False
    ) -> tuple[Tensor, str]:
        """Return the tensor and the next layer's `padding`. Pad with zeros if Keras's `same` and `valid` do not fit."""
        edges = self.edges(tensor)
        ways = list(zip(edges, _both(window), _both(padding), strict=True))
        height, width = (padding_of(edge, size, stride, pad, ceil=ceil) for edge, size, pad in ways)
        if (height, width) == ((0, 0), (0, 0)):
            return tensor, "valid"
        if (height, width) == tuple(same_padding(edge, size, stride) for edge, size, _ in ways):
            return tensor, "same"
        return keras.layers.ZeroPadding2D((height, width), **FORMAT)(tensor), "valid"


def _both(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)
