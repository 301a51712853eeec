"""The operations of a fused network on (N, H, W, C): by kernels on a GPU, and by PyTorch for reference."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch.nn import functional

from labkit.engines.fused.arithmetic import Arithmetic
from labkit.engines.fused.graph import Layer
from labkit.engines.fused.ranges import STEPS
from labkit.engines.fused.tiles import Tile, fastest, tiles_for

ROW_BYTES = 64  # a first convolution's window is widened by zeros until its row holds a multiple of so many
_ELEMENTS = 1024  # that a program of the simple kernels makes


class Operation(ABC):
    """A layer. Of bytes both ways give the same integers; where a sum lies on the edge of rounding, one step apart."""

    def __call__(self, *inputs: torch.Tensor, reference: bool = False) -> torch.Tensor:
        """By a kernel, on a GPU; for `reference` by PyTorch's operators, on any device, slowly."""
        return self._by_pytorch(*inputs) if reference else self._by_kernel(*inputs)

    @abstractmethod
    def _by_kernel(self, *inputs: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor: ...


class Convolution(Operation):
    """(N, P, Q, K) of (N, H, W, C), and of a (N, P, Q, K) that is added: bias, addition and ReLU before rounding."""

    def __init__(self, layer: Layer, arithmetic: Arithmetic) -> None:
        self.scales, self.biases = arithmetic.scales, arithmetic.biases
        self.other_scale, self.least, self.out = arithmetic.other_scale, arithmetic.least, arithmetic.out
        self.stride, self.pad, self.is_product = layer.stride, layer.pad, layer.is_product
        self.chosen: dict[int, Tile] = {}  # by the rows of the product, which a batch decides
        self.weight = arithmetic.weight.contiguous(memory_format=torch.channels_last)
        self.arranged = self._arrange()

    def _arrange(self) -> torch.Tensor:
        """The weights as the kernel reads them: (K, R, S, C)."""
        return self.weight.permute(0, 2, 3, 1)

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        images, *added = inputs
        # Sums of products of bytes are integers far below 2**53: exact in double precision.
        wide = torch.float64 if self.weight.dtype == torch.int8 else torch.float32
        sums = functional.conv2d(
            images.permute(0, 3, 1, 2).to(wide), self.weight.to(wide), stride=self.stride, padding=self.pad
        ).permute(0, 2, 3, 1)
        value = sums.float() * self.scales + self.biases
        for other in added:
            value = value + other.float() * self.other_scale
        return rounded(value.clamp(min=self.least), self.out).contiguous()

    def _out_size(self, height: int, width: int) -> tuple[int, int]:
        _, _, r, s = self.weight.shape
        p, q = ((edge + 2 * self.pad - size) // self.stride + 1 for edge, size in ((height, r), (width, s)))
        return p, q

    def _by_kernel(self, *inputs: torch.Tensor) -> torch.Tensor:
        _, height, width, channels = inputs[0].shape
        _, _, r, s = self.weight.shape
        out_size = self._out_size(height, width)
        return self._multiply(inputs, out_size, (r, s), channels=channels, stride=self.stride, pad=self.pad)

    def _multiply(
        self,
        inputs: Sequence[torch.Tensor],
        out_size: tuple[int, int],
        window: tuple[int, int],
        *,
        channels: int,
        stride: int,
        pad: int,
    ) -> torch.Tensor:
        images, *added = inputs
        n, height, width, pitch = images.shape
        (p, q), (r, s) = out_size, window
        rows, filters = n * p * q, len(self.weight)
        out = torch.empty((n, p, q, filters), dtype=self.out, device=images.device)
        of_bytes = images.dtype == torch.int8

        def launch(tile: Tile) -> None:
            from labkit.engines.fused.kernels import convolve

            convolve[(-(-rows // tile.rows) * -(-filters // tile.filters),)](
                *(images, self.arranged, self.scales, self.biases, added[0] if added else images, out),
                *(rows, height, width, channels, p, q, filters, self.other_scale, self.least),
                *(pitch, r, s, stride, pad),
                POINTWISE=r == s == 1,
                PADS=pad > 0,
                WHOLE_BLOCKS=channels % tile.channels == 0,
                ADDS=bool(added),
                OF_BYTES=of_bytes,
                TO_BYTES=self.out == torch.int8,
                BLOCK_M=tile.rows,
                BLOCK_K=tile.filters,
                BLOCK_C=tile.channels,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )

        if rows not in self.chosen:
            self.chosen[rows] = fastest(launch, tiles_for(rows, filters, channels, images.element_size()))
        launch(self.chosen[rows])
        return out


class FirstConvolution(Convolution):
    """The same of the images (N, 3, H, W) themselves, whose squares of pixels become channels.

    Three channels are too few for tensor cores. `step` is what a step of the images' bytes is worth.
    """

    def __init__(self, layer: Layer, arithmetic: Arithmetic, step: float) -> None:
        self.steps_per_one = 1 / step
        super().__init__(layer, arithmetic)

    def _arrange(self) -> torch.Tensor:
        k, c, r, s = self.weight.shape
        fold = self.stride
        self.channels = max(16, 1 << (c * fold * fold - 1).bit_length())
        rows, columns = -(-r // fold), -(-s // fold)
        while columns * self.channels % ROW_BYTES:
            columns += 1
        folded = self.weight.new_zeros((k, rows, columns, self.channels))
        for y, x in itertools.product(range(r), range(s)):
            first = (y % fold * fold + x % fold) * c
            folded[:, y // fold, x // fold, first : first + c] = self.weight[:, :, y, x]
        self.window = (rows, columns)
        return folded.contiguous()

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        images, *added = inputs
        kind = self.weight.dtype
        pixels = rounded(images.float() * self.steps_per_one, kind) if kind == torch.int8 else images.to(kind)
        return super()._by_pytorch(pixels.permute(0, 2, 3, 1), *added)

    def _by_kernel(self, *inputs: torch.Tensor) -> torch.Tensor:
        from labkit.engines.fused.kernels import to_squares

        images, *added = inputs
        n, _, height, width = images.shape
        p, q = self._out_size(height, width)
        rows, columns = p - 1 + self.window[0], q - 1 + self.window[1]
        pixels = torch.empty((n, rows, columns, self.channels), dtype=self.weight.dtype, device=images.device)
        to_squares[(-(-pixels.numel() // _ELEMENTS),)](
            *(images, pixels, self.steps_per_one, pixels.numel(), *images.stride()),
            *(height, width, rows, columns, self.channels, self.stride, self.pad, pixels.dtype == torch.int8),
            BLOCK=_ELEMENTS,
        )
        row = self.window[1] * self.channels  # a row of the window lies in one piece: one place with many channels
        return self._multiply((pixels, *added), (p, q), (self.window[0], 1), channels=row, stride=1, pad=0)


class MaxPool(Operation):
    """The largest value of each window: (N, P, Q, C) of (N, H, W, C)."""

    def __init__(self, layer: Layer) -> None:
        self.window, self.stride, self.pad, self.rounds_up = layer.window, layer.stride, layer.pad, layer.rounds_up

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        planes = inputs[0].permute(0, 3, 1, 2).float()
        pooled = functional.max_pool2d(planes, self.window, self.stride, self.pad, ceil_mode=self.rounds_up)
        return pooled.permute(0, 2, 3, 1).to(inputs[0].dtype).contiguous()

    def _by_kernel(self, *inputs: torch.Tensor) -> torch.Tensor:
        from labkit.engines.fused.kernels import max_pool

        (images,) = inputs
        n, height, width, channels = images.shape
        p, q = self._size(height), self._size(width)
        out = torch.empty((n, p, q, channels), dtype=images.dtype, device=images.device)
        least = -128 if images.dtype == torch.int8 else float("-inf")
        max_pool[(-(-out.numel() // _ELEMENTS),)](
            *(images, out, out.numel(), height, width, channels, p, q, self.window, self.stride, self.pad, least),
            BLOCK=_ELEMENTS,
        )
        return out

    def _size(self, edge: int) -> int:
        room = edge + 2 * self.pad - self.window
        if not self.rounds_up:
            return room // self.stride + 1
        size = -(-room // self.stride) + 1
        return size - 1 if (size - 1) * self.stride >= edge + self.pad else size  # as PyTorch: none begins outside


class Mean(Operation):
    """The mean over all pixels: (N, 1, 1, C) of (N, H, W, C).

    `steps` is what a step of the input is in steps of the output, of bytes; else 1.
    """

    def __init__(self, steps: float) -> None:
        self.steps = steps

    def _scale(self, images: torch.Tensor) -> float:
        return self.steps / float(images.shape[1] * images.shape[2])

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        (images,) = inputs
        total = images.float().sum((1, 2), keepdim=True)  # of bytes exact up to 2**24, which is 131,072 pixels
        return rounded(total * self._scale(images), images.dtype)

    def _by_kernel(self, *inputs: torch.Tensor) -> torch.Tensor:
        from labkit.engines.fused.kernels import mean

        (images,) = inputs
        n, height, width, channels = images.shape
        out = torch.empty((n, 1, 1, channels), dtype=images.dtype, device=images.device)
        block = 256
        mean[(n, -(-channels // block))](
            *(images, out, channels, self._scale(images), height * width, images.dtype == torch.int8), BLOCK=block
        )
        return out


class Resample(Operation):
    """Averages over windows that make an image of another size: (N, edge, edge, C) of (N, H, W, C), of the same worth.

    No kernel of its own: it happens once in a network, on its smallest images.
    """

    def __init__(self, edge: int) -> None:
        self.edge = edge

    def _by_kernel(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._by_pytorch(*inputs)

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        means = functional.adaptive_avg_pool2d(inputs[0].permute(0, 3, 1, 2).float(), self.edge)
        return rounded(means, inputs[0].dtype).permute(0, 2, 3, 1).contiguous()


class Concatenate(Operation):
    """Channels of several values behind each other, (N, H, W, sum of C); of bytes their ranges are the same."""

    def _by_kernel(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._by_pytorch(*inputs)

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat(inputs, dim=3)


def rounded(value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """FP32 as that type; bytes as the kernels round them."""
    return torch.floor(value + 0.5).clamp(-STEPS, STEPS).to(kind) if kind == torch.int8 else value.to(kind)
