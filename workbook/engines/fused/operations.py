"""The operations of a fused network on (N, H, W, C): by kernels on a GPU, and by PyTorch for reference."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch.nn import functional

from workbook.engines.fused.arithmetic import MOST, STEPS, Arithmetic
from workbook.engines.fused.graph import Layer
from workbook.engines.fused.tiles import ENOUGH_PROGRAMS, Tile, fastest, tiles_for

ROW_BYTES = 64  # zeros widen a first convolution's window until its row holds a multiple of this
_ELEMENTS = 1024  # that one program of the simple kernels makes
Result: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class Operation(ABC):
    """A layer, by two ways. In bytes both give equal integers, or one step apart for a sum at the edge of rounding."""

    def __call__(self, *inputs: torch.Tensor, reference: bool = False) -> Result:
        """Return the result by a kernel, on a GPU; with `reference` by PyTorch's operators, on any device, slowly."""
        return self._by_pytorch(*inputs) if reference else self._by_kernel(*inputs)

    def _by_kernel(self, *inputs: torch.Tensor) -> Result:
        return self._by_pytorch(*inputs)  # an operation that a network has only once needs no kernel

    @abstractmethod
    def _by_pytorch(self, *inputs: torch.Tensor) -> Result: ...


class Convolution(Operation):
    """A convolution of (N, H, W, C) to (N, P, Q, K), with bias, addition of (N, P, Q, K) and ReLU before rounding.

    If the arithmetic widens, it returns the result in bytes, and the same result in FP16.
    """

    def __init__(self, layer: Layer, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.stride, self.pad, self.is_product = layer.stride, layer.pad, layer.is_product
        self.chosen: dict[int, Tile] = {}  # by the rows of the product, which depend on the batch size
        self.weight = arithmetic.weight.contiguous(memory_format=torch.channels_last)
        self.arranged = self._arrange()
        # Counters of tiles that several programs share; every launch leaves zeros.
        self._arrived = torch.zeros(ENOUGH_PROGRAMS, dtype=torch.int32, device=self.weight.device)

    def _arrange(self) -> torch.Tensor:
        """Return the weights as the kernel reads them: (K, R, S, C)."""
        return self.weight.permute(0, 2, 3, 1)

    def _by_pytorch(self, *inputs: torch.Tensor) -> Result:
        images, *added = inputs
        # Sums of products of bytes are integers far below 2**53: exact in double precision.
        wide = torch.float64 if self.weight.dtype == torch.int8 else torch.float32
        sums = functional.conv2d(
            images.permute(0, 3, 1, 2).to(wide), self.weight.to(wide), stride=self.stride, padding=self.pad
        ).permute(0, 2, 3, 1)
        numbers = self.arithmetic
        value = sums.float() * numbers.scales + numbers.biases
        for other in added:
            value = value + other.float() * numbers.other_scale
        result = rounded(value.clamp(numbers.least, numbers.most), numbers.out).contiguous()
        if not numbers.widens:
            return result
        exact = value.clamp(min=numbers.least) * numbers.step
        return result, exact.clamp(max=MOST[torch.float16]).half().contiguous()

    def _out_size(self, height: int, width: int) -> tuple[int, int]:
        _, _, r, s = self.weight.shape
        p, q = ((edge + 2 * self.pad - size) // self.stride + 1 for edge, size in ((height, r), (width, s)))
        return p, q

    def _by_kernel(self, *inputs: torch.Tensor) -> Result:
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
    ) -> Result:
        images, *added = inputs
        n, height, width, pitch = images.shape
        (p, q), (r, s) = out_size, window
        rows, filters = n * p * q, len(self.weight)
        numbers = self.arithmetic
        out = torch.empty((n, p, q, filters), dtype=numbers.out, device=images.device)
        wide = torch.empty_like(out, dtype=torch.float16) if numbers.widens else out
        of_bytes = images.dtype == torch.int8

        def launch(tile: Tile) -> None:
            from workbook.engines.fused.kernels import convolve

            tiles = -(-rows // tile.rows) * -(-filters // tile.filters)
            partial, arrived = out, self._arrived
            if tile.splits > 1:
                sums = torch.int32 if of_bytes else torch.float32
                size = tiles * tile.splits * tile.rows * tile.filters
                partial = torch.empty(size, dtype=sums, device=images.device)
            convolve[(tiles, tile.splits)](
                *(images, self.arranged, numbers.scales, numbers.biases, added[0] if added else images, out, wide),
                *(partial, arrived),
                *(rows, height, width, channels, p, q, filters),
                *(numbers.other_scale, numbers.least, numbers.most, numbers.step, pitch, r, s, stride, pad),
                POINTWISE=r == s == 1,
                PADS=pad > 0,
                WHOLE_BLOCKS=channels % tile.channels == 0,
                ADDS=bool(added),
                OF_BYTES=of_bytes,
                TO_BYTES=numbers.out == torch.int8,
                WIDENS=numbers.widens,
                BLOCK_M=tile.rows,
                BLOCK_K=tile.filters,
                BLOCK_C=tile.channels,
                SPLITS=tile.splits,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )

        if rows not in self.chosen:
            tried = tiles_for(rows, filters, channels, r * s, images.element_size())
            shape = (rows, filters, channels, r, s, stride, height, width, pad > 0, bool(added))
            about = (images.dtype, numbers.out, numbers.widens, images.device)
            self.chosen[rows] = fastest(launch, tried, of=(*shape, *about))
        launch(self.chosen[rows])
        return (out, wide) if numbers.widens else out


class FirstConvolution(Convolution):
    """The convolution of the images (N, 3, H, W), in half precision: squares of pixels become channels.

    Three channels are too few for tensor cores.
    """

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

    def _by_pytorch(self, *inputs: torch.Tensor) -> Result:
        images, *added = inputs
        return super()._by_pytorch(images.to(self.weight.dtype).permute(0, 2, 3, 1), *added)

    def _by_kernel(self, *inputs: torch.Tensor) -> Result:
        from workbook.engines.fused.kernels import to_squares

        images, *added = inputs
        n, _, height, width = images.shape
        p, q = self._out_size(height, width)
        rows, columns = p - 1 + self.window[0], q - 1 + self.window[1]
        pixels = torch.empty((n, rows, columns, self.channels), dtype=self.weight.dtype, device=images.device)
        to_squares[(-(-pixels.numel() // _ELEMENTS),)](
            *(images, pixels, pixels.numel(), *images.stride()),
            *(height, width, rows, columns, self.channels, self.stride, self.pad),
            BLOCK=_ELEMENTS,
        )
        row = self.window[1] * self.channels  # a row of the window is contiguous: one place with many channels
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
        from workbook.engines.fused.kernels import max_pool

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
        return size - 1 if (size - 1) * self.stride >= edge + self.pad else size  # as in PyTorch, none begins outside


class Mean(Operation):
    """The mean over all pixels: (N, 1, 1, C) of (N, H, W, C), rounded to `out`.

    `steps` is the worth of one unit of the input, in steps of the output.
    """

    def __init__(self, steps: float, out: torch.dtype) -> None:
        self.steps, self.out = steps, out

    def _scale(self, images: torch.Tensor) -> float:
        return self.steps / float(images.shape[1] * images.shape[2])

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        total = inputs[0].float().sum((1, 2), keepdim=True)  # bytes are exact up to 2**24, which is 131,072 pixels
        return rounded(total * self._scale(inputs[0]), self.out)

    def _by_kernel(self, *inputs: torch.Tensor) -> torch.Tensor:
        from workbook.engines.fused.kernels import mean

        (images,) = inputs
        n, height, width, channels = images.shape
        out = torch.empty((n, 1, 1, channels), dtype=self.out, device=images.device)
        block = 256
        mean[(n, -(-channels // block))](
            *(images, out, channels, self._scale(images), height * width),
            *(images.dtype == torch.int8, self.out == torch.int8),
            BLOCK=block,
        )
        return out


class Resample(Operation):
    """Averages over windows, to resize an image: (N, edge, edge, C) of (N, H, W, C). Steps keep their worth."""

    def __init__(self, edge: int) -> None:
        self.edge = edge

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        means = functional.adaptive_avg_pool2d(inputs[0].permute(0, 3, 1, 2).float(), self.edge)
        return rounded(means, inputs[0].dtype).permute(0, 2, 3, 1).contiguous()


class Concatenate(Operation):
    """Concatenation of several values' channels to (N, H, W, sum of C); in bytes, the values have the same range."""

    def _by_pytorch(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat(inputs, dim=3)


def rounded(value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Return FP32 values in the type `kind`; bytes are rounded as the kernels round them."""
    return torch.floor(value + 0.5).clamp(-STEPS, STEPS).to(kind) if kind == torch.int8 else value.to(kind)
