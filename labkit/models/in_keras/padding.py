"""How many zeros PyTorch's rule of padding really adds, and how many Keras's word `same` does. Needs no framework.

PyTorch pads by a number on both sides; windows that don't fit at the end are left away (or, with ceil_mode, completed).
Keras has the words `same` and `valid`. Where one of them means what PyTorch's rule comes to, a layer says the word;
otherwise a layer of zeros stands before it.
"""

from __future__ import annotations

import math


def padding_of(edge: int, window: int, stride: int, padding: int, *, ceil: bool = False) -> tuple[int, int]:
    """Zeros before and after an edge that PyTorch's windows reach; a last window that does not fit is left away.

    With `ceil` it is completed, unless it would begin behind the edge.
    """
    steps = (edge + 2 * padding - window) / stride
    count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
    if ceil and (count - 1) * stride >= edge + padding:
        count -= 1
    return padding, max((count - 1) * stride + window - edge - padding, 0)


def same_padding(edge: int, window: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an edge that `same` adds in TensorFlow and in XLA."""
    total = max((math.ceil(edge / stride) - 1) * stride + window - edge, 0)
    return total // 2, total - total // 2
