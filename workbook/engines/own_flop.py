"""Counts the FLOP of a step of any network: PyTorch's counter, with attention by its two matrix products.

PyTorch's own formulas lack the kernels of CPUs, refuse keys with fewer heads than queries, and count what a backward
pass computes again. They take the weights' gradient of a grouped convolution for that of a dense one. The fast path of
`nn.MultiheadAttention` is one operator that no formula knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from labkit.models.torch_models import flop_of_backward_convolution

KERNELS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")


def attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOP of queries times keys and weights times values, masked or not; a multiply-add is two.

    >>> attention((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    1024
    """
    *batches, queries, width = query
    count = 2 * queries * key[-2] * (width + value[-1])
    for size in batches:
        count *= size
    return count


def attention_backward(_: Any, *shapes: Any, **__: Any) -> int:
    """Return the FLOP of the gradients of queries, keys and values: twice those of the forward pass."""
    return 2 * attention(*shapes[:3])


def _formulas() -> dict[Any, Any]:
    forward: dict[str, Callable[..., int]] = {f"_scaled_dot_product_{name}": attention for name in KERNELS}
    both = forward | {f"{name}_backward": attention_backward for name in forward}
    both |= {"convolution_backward": flop_of_backward_convolution}
    return {getattr(torch.ops.aten, name): count for name, count in both.items() if hasattr(torch.ops.aten, name)}


@contextlib.contextmanager
def counted_flop() -> Iterator[FlopCounterMode]:
    """Yield a counter of the FLOP within the context; `get_total_flops()` returns them."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
