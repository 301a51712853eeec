"""Asynchronous training as before averaging became usual: gradients of weights that other ranks changed meanwhile.

Each rank computes gradients with the weights that it last fetched. These gradients are applied in the order of the
ranks, to weights that all ranks share. A rank fetches the weights right after its own gradients are applied. With n
ranks, a gradient is thus n - 1 updates old when it is applied. A parameter server with n equally fast workers has the
same staleness (Zhang et al. 2016, arXiv:1511.05950). A step's time says nothing: every rank applies all updates itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workbook import ranks
from workbook.engines.training import Training, plain_sgd
from workbook.ranks import Team
from workbook.trace.profiler import section
from workbook.trials.trial import Trial


class StaleUpdates:
    """The shared weights and their optimiser, beside a model whose weights are stale when its gradients are applied."""

    def __init__(self, model: nn.Module, team: Team, make_optimizer: Callable[[list[nn.Parameter]], Any]) -> None:
        self._own, self._team = list(model.parameters()), team
        self.shared = [nn.Parameter(weight.detach().clone()) for weight in self._own]
        self.optimizer = make_optimizer(self.shared)

    @torch.no_grad()
    def apply(self) -> None:
        """Apply every rank's gradients in turn; this rank fetches the weights after its own gradients."""
        for rank in range(self._team.size):
            for shared, own in zip(self.shared, self._own, strict=True):
                assert own.grad is not None, "a weight without a gradient"
                shared.grad = own.grad.clone()
                dist.broadcast(shared.grad, src=self._team.first + rank, group=self._team.work)
            self.optimizer.step()
            if rank == self._team.rank:
                fetched = [shared.detach().clone() for shared in self.shared]
        self._load(fetched)

    @contextmanager
    def newest(self) -> Iterator[None]:
        """Put the shared weights, the training's current state, into the model within this context."""
        before = [own.detach().clone() for own in self._own]
        self._load([shared.detach() for shared in self.shared])
        try:
            yield
        finally:
            self._load(before)

    @torch.no_grad()
    def restart(self) -> None:
        """Set the shared weights to the model's weights, and forget the momenta."""
        for shared, own in zip(self.shared, self._own, strict=True):
            shared.copy_(own)
        self.optimizer.state.clear()

    @torch.no_grad()
    def _load(self, values: list[torch.Tensor]) -> None:
        for own, value in zip(self._own, values, strict=True):
            own.copy_(value)


class StaleTraining(Training):
    """A training whose gradients are stale when they are applied. Eager, in FP32, on two ranks or more."""

    def __init__(self, trial: Trial, model: nn.Module, *, restarts: bool) -> None:
        super().__init__(trial, model, captured=False, restarts=restarts, exchange="by hand")
        team = ranks.team()
        assert team is not None, "stale updates need two ranks or more"
        self._stale = StaleUpdates(model, team, lambda weights: plain_sgd(weights, trial.learning_rate))
        self.optimizer = self._stale.optimizer

    def update(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Run one step and return its loss, detached, on the device."""
        with section("optimiser"):
            self.model.zero_grad(set_to_none=True)
        loss = self._loss(images, labels)
        with section("backward"):
            loss.backward()
        with section("optimiser"):
            self._stale.apply()
        return loss.detach()

    def weights(self) -> list[torch.Tensor]:
        """Return the shared weights."""
        return [weight.detach() for weight in self._stale.shared]

    def state(self) -> list[torch.Tensor]:
        """Return the momenta and the shared weights, which are newer than the model's."""
        return [*super().state(), *self.weights()]

    def newest(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the shared weights."""
        return self._stale.newest()

    def restart(self) -> None:
        """Go back to the initial weights, statistics and momenta, in place."""
        super().restart()
        self._stale.restart()
