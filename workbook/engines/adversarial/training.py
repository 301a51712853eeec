"""A WGAN's critic and generator, which are trained against each other, and their updates.

The critic's step makes its scores of real images larger than those of generated images, by as much as clipped weights
let it. The difference is its estimate of the Wasserstein distance. The generator's step makes the scores of its images
larger. Numbers and sources are in `workbook.trials.recipes`.

Real and generated images go through the critic one after the other, as in the paper's own code. In one batch, the
critic's batch norm would tell them apart by their mixture.
"""

from __future__ import annotations

import torch

from labkit.models.wgan import WGAN
from workbook.engines.precision import autocast
from workbook.engines.sections import section
from workbook.engines.training import values_of
from workbook.trials.recipes import CLIP
from workbook.trials.trial import Trial


class Adversarial:
    """A WGAN and its two optimisers. `network` has FP32 weights and is changed in place.

    `restarts` says whether `restart()` will be called: the initial values are then kept on the host.
    """

    def __init__(self, trial: Trial, network: WGAN, *, captured: bool, restarts: bool) -> None:
        self.trial, self.network = trial, network
        self.generator, self.critic = network.generator, network.critic
        self._critics = list(self.critic.parameters())
        self._captured = captured
        self._initial = [value.detach().to("cpu", copy=True) for value in values_of(network)] if restarts else None
        self.optimizers = [  # in a captured step, the optimiser's counters must lie on the device
            torch.optim.RMSprop(part.parameters(), lr=trial.learning_rate, capturable=captured)
            for part in (self.critic, self.generator)
        ]

    def critic_step(self, images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Update the critic once. Return its estimate of the Wasserstein distance before the update, detached.

        The estimate has shape (). `images` (B, 3, 32, 32) are real, from -1 to 1. The generator makes B images from
        `noise` (B, 100, 1, 1).
        """
        optimizer, _ = self.optimizers
        self.critic.requires_grad_(True)
        with section("optimiser"):
            optimizer.zero_grad(set_to_none=True)
        with section("forward"):
            made = self.make(noise)
            with autocast(self.trial):
                estimate = self.critic(images).float().mean() - self.critic(made).float().mean()
        loss = -estimate
        with section("backward"):
            loss.backward(inputs=self._critics)  # type: ignore[no-untyped-call, unused-ignore]
        with section("optimiser"):
            optimizer.step()
            self.clip()
        return estimate.detach()

    @torch.no_grad()
    def clip(self) -> None:
        """Clip the critic's weights to the bound."""
        for weight in self._critics:
            weight.clamp_(-CLIP, CLIP)

    @torch.no_grad()
    def make(self, noise: torch.Tensor) -> torch.Tensor:
        """Return images generated from `noise`, without gradients."""
        with autocast(self.trial):
            return self.generator(noise)

    def generator_step(self, noise: torch.Tensor) -> None:
        """Run one generator step. Gradients of the critic's weights are not computed."""
        _, optimizer = self.optimizers
        self.critic.requires_grad_(False)
        with section("optimiser"):
            optimizer.zero_grad(set_to_none=True)
        with section("forward"), autocast(self.trial):
            loss = -self.network(noise).float().mean()
        with section("backward"):
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        with section("optimiser"):
            optimizer.step()

    def forget_gradients(self) -> None:
        """Forget the gradients, before a capture: the graph makes new ones in its own memory."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def weights(self) -> list[torch.Tensor]:
        """Return the weights of both networks, in the order of their parameters."""
        return [weight.detach() for weight in self.network.parameters()]

    def statistics(self) -> list[torch.Tensor]:
        """Return running means and variances, in the order of their layers."""
        return [buffer for buffer in self.network.buffers() if buffer.is_floating_point()]

    def moments(self) -> dict[str, list[torch.Tensor]]:
        """Return the mean squares of gradients that each network's optimiser keeps, in the order of weights."""
        return {
            part: [state["square_avg"] for state in optimizer.state.values()]
            for part, optimizer in zip(("critic", "generator"), self.optimizers, strict=True)
        }

    def out_of_bounds(self) -> str | None:
        """Return which critic weight exceeds the clipping bound; None if none does."""
        for name, weight in self.critic.named_parameters():
            most = float(weight.detach().abs().max())
            if not most <= CLIP * (1 + 1e-6):  # clipped in FP32: the bound is rounded
                return f"{name} of the critic reaches {most:g}, beyond {CLIP:g}"
        return None

    @torch.no_grad()
    def restart(self) -> None:
        """Go back to the initial weights, statistics and moments, in place."""
        assert self._initial is not None, "made without restarts"
        for value, initial in zip(values_of(self.network), self._initial, strict=True):
            value.copy_(initial)
        for state in (state for optimizer in self.optimizers for state in optimizer.state.values()):
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()  # counters and moments begin at zero
        if not self._captured:
            self.network.zero_grad(set_to_none=True)

    def forget_beginning(self) -> None:
        """Free the memory of the initial values. `restart()` cannot be called after that."""
        self._initial = None
