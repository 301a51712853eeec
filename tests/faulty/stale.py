"""Stale updates of two ranks beside the same done by one process, which knows what both ranks see."""

from __future__ import annotations

import torch
from torch import nn

from labkit import ranks
from labkit.engines.stale import StaleUpdates
from labkit.engines.training import plain_sgd
from labkit.errors import GateError
from labkit.trial import Trial
from tests.faulty import Steps

ROUNDS, RATE = 4, 0.1


def images_of(rank: int, number: int) -> torch.Tensor:
    """What a rank sees in a round."""
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(100 * rank + number))


def network() -> nn.Linear:
    """The same in every process."""
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def loss_of(weight: torch.Tensor, bias: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Any loss that both weights matter for."""
    return nn.functional.linear(images, weight, bias).square().mean()


def simulated(size: int) -> list[torch.Tensor]:
    """The shared weights after all rounds: each rank's gradient is of the weights that it fetched a round before."""
    shared = list(network().parameters())
    fetched = [[one.detach().clone() for one in shared] for _ in range(size)]
    optimizer = plain_sgd(shared, RATE)
    for number in range(ROUNDS):
        gradients = []
        for rank in range(size):
            own = [one.clone().requires_grad_() for one in fetched[rank]]
            gradients.append(torch.autograd.grad(loss_of(*own, images_of(rank, number)), own))
        for rank in range(size):
            for one, gradient in zip(shared, gradients[rank], strict=True):
                one.grad = gradient
            optimizer.step()
            fetched[rank] = [one.detach().clone() for one in shared]
    return [one.detach() for one in shared]


class Stale(Steps):
    """The gate compares both."""

    def check(self) -> None:
        """Equal, and not what averaged gradients would give."""
        team = ranks.team()
        assert team is not None
        model = network()
        stale = StaleUpdates(model, team, lambda weights: plain_sgd(weights, RATE))
        for number in range(ROUNDS):
            model.zero_grad()
            loss_of(model.weight, model.bias, images_of(team.rank, number)).backward()
            stale.apply()
        expected = simulated(team.size)
        for seen, wanted in zip(stale.shared, expected, strict=True):
            if not torch.allclose(seen, wanted, atol=1e-6):
                raise GateError(f"stale updates gave {seen.tolist()}, expected {wanted.tolist()}")
        with stale.newest():
            if not torch.allclose(model.weight, expected[0], atol=1e-6):
                raise GateError("the newest weights are not those that all share")
        if team.rank == 0 and torch.allclose(model.weight, expected[0], atol=1e-6):
            raise GateError("rank 0's own weights are not older than the shared ones")


def build(trial: Trial, data: object) -> Stale:
    """The comparison as a trial."""
    return Stale(trial)
