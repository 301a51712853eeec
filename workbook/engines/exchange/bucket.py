"""One flat tensor for the gradients of some weights, and a second one for the weights if ranks share their update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from workbook.ranks import Team

ALIGNED = 128  # elements: gradients in a bucket begin at multiples of it, so that kernels can load whole vectors


class Bucket:
    """A flat tensor, and the gradients of some weights as views of it.

    With a team, the weights are views of a second flat tensor, and both tensors are cut into a share for each rank.
    """

    def __init__(self, weights: Sequence[nn.Parameter], wire: torch.dtype | None, team: Team | None) -> None:
        self._begins, end = {}, 0
        for weight in weights:
            self._begins[weight] = end
            end += _rounded_up(weight.numel(), ALIGNED)
        ranks, rank = (team.size, team.rank) if team else (1, 0)
        self._share = _rounded_up(end, ALIGNED * ranks) // ranks
        self._first = rank * self._share
        self.flat = torch.zeros(self._share * ranks, dtype=wire or weights[0].dtype, device=weights[0].device)
        self.views = {weight: self._view(self.flat, weight) for weight in weights}
        self.weights = self._moved() if team else None
        # `missing`: weights whose gradient has not come. `in_use`: weights that the backward pass may still read.
        self.missing, self.in_use, self.is_sent = set[nn.Parameter](), set[nn.Parameter](), False

    def _view(self, flat: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(weight.shape, weight.stride(), self._begins[weight])

    @torch.no_grad()
    def _moved(self) -> torch.Tensor:
        """Move the weights into a new flat tensor, laid out like their gradients, and return that tensor."""
        flat = torch.zeros_like(self.flat)
        for weight in self.views:
            view = self._view(flat, weight)
            view.copy_(weight)
            weight.data = view
        return flat

    @property
    def is_shared(self) -> bool:
        """Whether each rank updates only its share of these weights."""
        return self.weights is not None

    def own_of(self, weight: torch.Tensor) -> tuple[int, int]:
        """Return the range (first, end) of the weight's elements, in memory order, that is in this rank's share."""
        first = self._first - self._begins[weight]
        return min(max(first, 0), weight.numel()), min(max(first + self._share, 0), weight.numel())

    def own(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of `flat`, the bucket's gradients or weights."""
        return flat[self._first : self._first + self._share]

    def gather(self) -> None:
        """Copy gradients that lie elsewhere into the bucket. Those of the bucket's type become views of it."""
        elsewhere = [
            (weight, weight.grad, view)
            for weight, view in self.views.items()
            if weight.grad is not None and not same_place(weight.grad, view)
        ]
        if not elsewhere:
            return
        torch._foreach_copy_([view for *_, view in elsewhere], [gradient for _, gradient, _ in elsewhere])
        for weight, gradient, view in elsewhere:
            if gradient.dtype == view.dtype:
                weight.grad = view.detach()

    def scatter(self) -> None:
        """Copy the bucket's values back to the gradients if they were sent in another type."""
        rounded = [(weight.grad, view) for weight, view in self.views.items() if view.dtype != weight.dtype]
        if rounded:
            torch._foreach_copy_([gradient for gradient, _ in rounded], [view for _, view in rounded])


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements, which lie without gaps, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))


def same_place(gradient: torch.Tensor | None, view: torch.Tensor) -> bool:
    """Return whether a gradient has the address and the type of `view`."""
    return gradient is not None and gradient.data_ptr() == view.data_ptr() and gradient.dtype == view.dtype
