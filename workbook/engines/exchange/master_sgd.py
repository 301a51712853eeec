# mypy: disable-error-code="no-untyped-def"
"""SGD for BF16 weights with FP32 masters: one kernel updates all of them (CUDA, Triton).

Autocast copies every FP32 weight to BF16 in each step and casts each gradient back: for ResNet-50 some 160 launches.
PyTorch's fused optimisers read and write only the FP32 weights. Here convolutions and matrix products hold their
weights in BF16. The optimiser keeps FP32 masters and momenta, and writes masters, momenta and BF16 weights in one pass
over a table of addresses. Batch norm keeps FP32 weights, as under autocast.

The table holds addresses of gradients, so gradients must not move: the step has to be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
import triton
import triton.language as tl
from torch import nn

BLOCK = 2048  # elements that one program updates
_ALL: Mapping[int, tuple[int, int]] = MappingProxyType({})
_FIELDS = 6  # of a row of the table: gradient, weight, master, momentum, elements, whether in half precision


@triton.jit
def _update(table, lr_at, momentum, weight_decay, BLOCK: tl.constexpr, FIELDS: tl.constexpr):  # noqa: N803
    row = table + tl.program_id(0) * FIELDS
    elements = tl.load(row + 4)
    half = tl.load(row + 5)
    lr = tl.load(lr_at)
    master_at = tl.load(row + 2).to(tl.pointer_type(tl.float32))
    momentum_at = tl.load(row + 3).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    inside = at < elements
    master = tl.load(master_at + at, mask=inside)
    velocity = tl.load(momentum_at + at, mask=inside)
    if half != 0:
        gradient = tl.load(tl.load(row).to(tl.pointer_type(tl.bfloat16)) + at, mask=inside).to(tl.float32)
    else:
        gradient = tl.load(tl.load(row).to(tl.pointer_type(tl.float32)) + at, mask=inside)
    velocity = momentum * velocity + (gradient + weight_decay * master)
    master = master - lr * velocity
    tl.store(momentum_at + at, velocity, mask=inside)
    tl.store(master_at + at, master, mask=inside)
    if half != 0:
        tl.store(tl.load(row + 1).to(tl.pointer_type(tl.bfloat16)) + at, master.to(tl.bfloat16), mask=inside)


class MasterSGD:
    """SGD with momentum and weight decay as `torch.optim.SGD` defines them, over FP32 masters of BF16 weights.

    `exact` are the weights before `to_half`, in the model's order. `lr` is a float32 scalar on the device. Capture
    `step()` together with the backward pass, then call `bind()` once: until then `step()` changes nothing. `arrange`
    cuts the update into parts of one kernel each, so that gradients from other devices need not wait for the rest.
    """

    def __init__(
        self,
        model: nn.Module,
        exact: Sequence[torch.Tensor],
        *,
        lr: torch.Tensor,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.weights = list(model.parameters())
        self.masters = list(exact)
        self.momenta = [torch.zeros_like(master) for master in self.masters]
        rows = sum(-(-weight.numel() // BLOCK) for weight in self.weights)
        self._table = torch.zeros((rows, _FIELDS), dtype=torch.int64, device=lr.device)
        self.arrange([range(len(self.weights))])

    def arrange(self, parts: Sequence[Sequence[int]], own: Mapping[int, tuple[int, int]] = _ALL) -> None:
        """Update in these parts from now on, each the indexes of its weights. Raise ValueError if a weight is left out.

        For a weight in `own`, update only the elements (first, end) in memory order: other ranks update the rest.
        """
        if sorted(index for part in parts for index in part) != list(range(len(self.weights))):
            raise ValueError(f"the parts {parts} do not hold each of {len(self.weights)} weights once")
        pairs = zip(self.weights, self.masters, strict=True)
        # An FP32 weight is its own master, also after buckets moved it.
        self.masters = [w.detach() if w.dtype == torch.float32 else full for w, full in pairs]
        self._own = {index: own.get(index, (0, weight.numel())) for index, weight in enumerate(self.weights)}
        self._order = [index for part in parts for index in part]
        rows = [sum(len(self._blocks(index)) for index in part) for part in parts]
        self._spans = [(sum(rows[:number]), sum(rows[: number + 1])) for number in range(len(parts))]

    def _blocks(self, index: int) -> range:
        """Return where the blocks of this rank's part of a weight begin, counted in elements."""
        first, last = self._own[index]
        return range(first, last, BLOCK)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - PyTorch's own signature
        """Forget the gradients; the next backward pass writes them anew."""
        for weight in self.weights:
            weight.grad = None

    def step(self) -> None:
        """Queue the update of all parts."""
        for part in range(len(self._spans)):
            self.step_part(part)

    def step_part(self, part: int) -> None:
        """Queue the update of one part."""
        first, last = self._spans[part]
        if first == last:
            return  # other ranks update all of it
        rows = self._table[first:last]
        _update[(last - first,)](
            rows, self.lr, self.momentum, self.weight_decay, BLOCK=BLOCK, FIELDS=_FIELDS, num_warps=8
        )

    def bind(self) -> None:
        """Take the gradients' addresses. Raise ValueError if one is laid out unlike its weight, or a weight moved."""
        rows = []
        for index in self._order:
            weight, master, momenta = self.weights[index], self.masters[index], self.momenta[index]
            gradient = weight.grad
            alike = gradient is not None and gradient.stride() == weight.stride() == master.stride() == momenta.stride()
            if gradient is None or not alike or gradient.dtype != weight.dtype:
                raise ValueError(f"a gradient's layout differs from that of its weight of shape {tuple(weight.shape)}")
            if weight.dtype == torch.float32 and weight.data_ptr() != master.data_ptr():
                raise ValueError(f"a weight of shape {tuple(weight.shape)} was moved after arrange()")
            half = weight.dtype != torch.float32
            for first in self._blocks(index):
                at = [t.data_ptr() + first * t.element_size() for t in (gradient, weight, master, momenta)]
                rows.append([*at, min(BLOCK, self._own[index][1] - first), int(half)])
        self._table[: len(rows)] = torch.tensor(rows, dtype=torch.int64)

    def restart(self, exact: Sequence[torch.Tensor]) -> None:
        """Set the masters to `exact` and the momenta to zero, in place."""
        for master, full in zip(self.masters, exact[: len(self.masters)], strict=True):
            master.copy_(full)
        for momenta in self.momenta:
            momenta.zero_()


def to_half(model: nn.Module) -> None:
    """Convert convolutions and matrix products to BF16, in place; the rest (batch norm) stays in FP32."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.to(torch.bfloat16)
