"""A WGAN's critic and generator, which are trained against each other, and their updates.

The critic's step makes its scores of real images larger than those of generated images, by as much as its constraint
lets it. The difference is its estimate of the Wasserstein distance. The generator's step makes the scores of its images
larger. Both constraints, with their numbers and sources, are in `labkit.recipes`.

Real and generated images go through the critic one after the other, as in the paper's own code. In one batch, the
critic's batch norm would tell them apart by their mixture.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from labkit.engines.precision import autocast
from labkit.engines.sections import section
from labkit.engines.training import values_of
from labkit.models.wgan import WGAN
from labkit.recipes import ADAM_BETAS, CLIP, PENALTY
from labkit.trial import Trial


class Adversarial:
    """A WGAN and its two optimisers. `network` has FP32 weights and is changed in place.

    `restarts` says whether `restart()` will be called: the initial values are then kept on the host.
    """

    def __init__(self, trial: Trial, network: WGAN, *, captured: bool, restarts: bool) -> None:
        self.trial, self.network = trial, network
        self.generator, self.critic = network.generator, network.critic
        self._critics = list(self.critic.parameters())
        self._penalised, self._captured = trial.constraint == "gradient_penalty", captured
        self._initial = [value.detach().to("cpu", copy=True) for value in values_of(network)] if restarts else None
        self.optimizers = [self._make_optimizer(part.parameters()) for part in (self.critic, self.generator)]

    def _make_optimizer(self, weights: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return PyTorch's own optimiser, with its defaults. In a captured step its counters must lie on the device."""
        rate = self.trial.learning_rate
        if self._penalised:
            return torch.optim.Adam(weights, lr=rate, betas=ADAM_BETAS, capturable=self._captured)
        return torch.optim.RMSprop(weights, lr=rate, capturable=self._captured)

    def critic_step(self, images: torch.Tensor, noise: torch.Tensor, mixing: torch.Tensor | None) -> torch.Tensor:
        """Update the critic once. Return its estimate of the Wasserstein distance before the update, detached.

        The estimate has shape (). `images` (B, 3, 32, 32) are real, from -1 to 1. The generator makes B images from
        `noise` (B, 100, 1, 1). The gradient penalty is computed at a mixture of each real image and a generated one;
        `mixing` (B, 1, 1, 1) is the share of the real image, from 0 to 1. Clipping has no penalty and ignores `mixing`.
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
        if self._penalised:
            assert mixing is not None
            with section("forward"):  # the critic's scores, and their gradients for the images
                steepness = self._steepness(torch.lerp(made.float(), images, mixing))
            with section("loss"):
                loss = loss + PENALTY * steepness
        with section("backward"):
            loss.backward(inputs=self._critics)  # type: ignore[no-untyped-call, unused-ignore]
        with section("optimiser"):
            optimizer.step()
            self.clip()
        return estimate.detach()

    def _steepness(self, mixed: torch.Tensor) -> torch.Tensor:
        """Return the mean squared distance from 1 of the norm of each image's slope."""
        mixed.requires_grad_(True)
        with autocast(self.trial):
            scores = self.critic(mixed)
        (slopes,) = torch.autograd.grad(scores.float().sum(), mixed, create_graph=True)
        return (slopes.flatten(1).norm(dim=1) - 1).square().mean()

    @torch.no_grad()
    def clip(self) -> None:
        """Clip the critic's weights to the bound, if the constraint is clipping."""
        if not self._penalised:
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
        name = "exp_avg_sq" if self._penalised else "square_avg"
        return {
            part: [state[name] for state in optimizer.state.values()]
            for part, optimizer in zip(("critic", "generator"), self.optimizers, strict=True)
        }

    def out_of_bounds(self) -> str | None:
        """Return which critic weight exceeds the clipping bound; None if none does, or weights are not clipped."""
        for name, weight in self.critic.named_parameters():
            most = float(weight.detach().abs().max())
            if not self._penalised and not most <= CLIP * (1 + 1e-6):  # clipped in FP32: the bound is rounded
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
                    value.zero_()  # counters and moments begin at zero, in both optimisers
        if not self._captured:
            self.network.zero_grad(set_to_none=True)

    def forget_beginning(self) -> None:
        """Free the memory of the initial values. `restart()` cannot be called after that."""
        self._initial = None
