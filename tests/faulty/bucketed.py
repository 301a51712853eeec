"""Gradients averaged in buckets beside the same averaged by hand, on real ranks: bucket sizes, types, several steps."""

from __future__ import annotations

import copy

import torch
from torch import nn

from labkit import ranks
from labkit.engines.buckets import Buckets
from labkit.engines.exchange import average_gradients, check_same_everywhere
from labkit.engines.training import plain_sgd
from labkit.errors import GateError
from labkit.trial import Trial
from tests.faulty import Steps

STEPS, RATE = 3, 0.1
ALL_IN_ONE = 2**30


def network(*, spare: bool = False) -> nn.Sequential:
    """Convolutions, batch norm and matrix products; `spare` adds a layer that no image passes."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 40),
        nn.Linear(40, 5),
    ]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    if spare:
        model[1].register_module("spare", nn.Linear(2, 2))
    return model


def loss_of(model: nn.Module, rank: int, number: int) -> torch.Tensor:
    """Another one for each rank and step."""
    generator = torch.Generator().manual_seed(100 * rank + number)
    images = torch.randn(6, 3, 8, 8, generator=generator).contiguous(memory_format=torch.channels_last)
    return nn.functional.cross_entropy(model(images), torch.arange(6) % 5)


class Bucketed(Steps):
    """The gate compares both."""

    def check(self) -> None:
        """Equal for every bucket size, in FP32; rounded where it is sent in FP16; an unused weight is named."""
        team = ranks.team()
        assert team is not None
        numbers = []
        for bucket_bytes in (1, 2000, 2**16, ALL_IN_ONE):
            numbers.append(self._compare(team, bucket_bytes, None, 1e-6))
            self._compare(team, bucket_bytes, torch.float16, 2e-3)
        if numbers != [4, 3, 2, 2]:
            raise GateError(f"the buckets are {numbers}")
        model = network(spare=True)
        buckets = Buckets(model, team)
        buckets.begin()
        loss_of(model, team.rank, 0).backward()
        try:
            buckets.wait()
        except GateError as error:
            if "2 weights got no gradient" not in str(error) or "1.spare.bias" not in str(error):
                raise
        else:
            raise GateError("nobody missed the gradients of an unused layer")

    def _compare(self, team: ranks.Team, bucket_bytes: int, wire: torch.dtype | None, allowed: float) -> int:
        """How many buckets there were."""
        model = network()
        by_hand = copy.deepcopy(model)
        buckets = Buckets(model, team, wire=wire, bucket_bytes=bucket_bytes)
        optimizer = plain_sgd(model.parameters(), RATE)
        for number in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            by_hand.load_state_dict(model.state_dict())
            by_hand.zero_grad()
            loss_of(by_hand, team.rank, number).backward()
            own = [weight.grad.clone() for weight in by_hand.parameters() if weight.grad is not None]
            average_gradients(by_hand, team)
            buckets.begin()
            loss_of(model, team.rank, number).backward()
            buckets.wait()
            for weight, other, mine in zip(model.parameters(), by_hand.parameters(), own, strict=True):
                assert weight.grad is not None and other.grad is not None
                apart, size = float((weight.grad - other.grad).norm()), float(mine.norm())
                if apart > allowed * size or weight.grad.stride() != weight.stride():
                    raise GateError(f"buckets of {bucket_bytes}: a gradient is {apart / size:.2g} of its norm away")
                if wire is not None and weight.dim() > 1 and apart == 0:
                    raise GateError("what is sent in FP16 was not rounded")
                if float((mine - other.grad).norm()) < 0.1 * size:
                    raise GateError("the ranks have the same gradients: averaging them shows nothing")
            optimizer.step()
        check_same_everywhere([weight.detach() for weight in model.parameters()], team)
        return len(buckets.parts)


def build(trial: Trial, data: object) -> Bucketed:
    """The comparison as a trial."""
    return Bucketed(trial)
