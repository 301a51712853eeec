"""Count the zeros that PyTorch's padding rule adds, and those that Keras's `same` adds (needs no framework).

PyTorch pads by a number on both sides. It drops windows that don't fit at the end, or completes them with ceil_mode.
Keras has the values `same` and `valid`. A layer uses such a value where it agrees with PyTorch's rule. Otherwise a
layer of zeros precedes it.
"""

from __future__ import annotations

import math


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
