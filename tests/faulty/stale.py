"""Stale updates of several ranks, compared with a simulation in one process that knows the inputs of all ranks."""

from __future__ import annotations

import torch
from torch import nn

from tests.faulty import Steps
from workbook import ranks
from workbook.engines.exchange.stale_updates import StaleUpdates
from workbook.engines.training import plain_sgd
from workbook.errors import GateError
from workbook.trials.trial import Trial

ROUNDS, RATE = 4, 0.1


def images_of(rank: int, number: int) -> torch.Tensor:
    """Return the inputs of a rank in a round, of shape (5, 3)."""
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(100 * rank + number))


def network() -> nn.Linear:
    """Return a linear layer with the same weights in every process."""
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def loss_of(weight: torch.Tensor, bias: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return a loss that depends on both the weight and the bias."""
    return nn.functional.linear(images, weight, bias).square().mean()


def simulated(size: int) -> list[torch.Tensor]:
    """Return the shared weights after all rounds. Each rank's gradient uses weights fetched in the round before."""
    shared = list(network().parameters())
    fetched = [[weight.detach().clone() for weight in shared] for _ in range(size)]
    optimizer = plain_sgd(shared, RATE)
    for number in range(ROUNDS):
        gradients = []
        for rank in range(size):
            own = [weight.clone().requires_grad_() for weight in fetched[rank]]
            gradients.append(torch.autograd.grad(loss_of(*own, images_of(rank, number)), own))
        for rank in range(size):
            for weight, gradient in zip(shared, gradients[rank], strict=True):
                weight.grad = gradient
            optimizer.step()
            fetched[rank] = [weight.detach().clone() for weight in shared]
    return [weight.detach() for weight in shared]


class Stale(Steps):
    """A workload whose gate compares the ranks' stale updates with the simulation."""

    def check(self) -> None:
        """Raise GateError unless shared weights equal the simulation's and rank 0's own weights are older."""
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
    """Return the workload of a trial."""
    return Stale(trial)
