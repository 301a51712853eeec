"""One iteration of a WGAN: five steps of the critic on a fresh batch each, then the generator's; by Python or captured.

A captured iteration is one CUDA graph. One launch draws noise, loads five batches, makes six updates and adds up the
critic's estimates. Noise comes from its own random generator. It draws the same numbers in a graph as outside, so that
the gate can compare the two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from labkit.models.catalogue import CRITIC_STEPS
from labkit.models.wgan import NOISE
from workbook.engines.adversarial.training import Adversarial
from workbook.engines.captured import record
from workbook.engines.device_loader import PART, AnyLoader, DeviceLoader
from workbook.engines.sections import section
from workbook.trials.trial import Trial

# An iteration asks for all its batches at once, so the loader's ring of sample numbers must hold them.
LARGEST_CAPTURED = PART // CRITIC_STEPS


class Draws:
    """The random numbers of an iteration, at fixed addresses: `noise` (6, B, 100, 1, 1) is normal."""

    def __init__(self, trial: Trial) -> None:
        device = torch.device(trial.device)
        self._seed = trial.seed
        self.generator = torch.Generator(device)
        self.noise = torch.empty(CRITIC_STEPS + 1, trial.batch, NOISE, 1, 1, device=device)
        self.rewind()

    def fill(self) -> None:
        """Queue the drawing of the next iteration's numbers."""
        self.noise.normal_(generator=self.generator)

    def rewind(self) -> None:
        """Seed the generator again, so that the same numbers follow."""
        self.generator.manual_seed(self._seed)


def iterate(training: Adversarial, draws: Draws, next_images: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Queue one iteration and return the critic's estimates (5,) before its steps. `next_images(n)` returns batch n."""
    draws.fill()
    estimates = [training.critic_step(next_images(number), draws.noise[number]) for number in range(CRITIC_STEPS)]
    training.generator_step(draws.noise[CRITIC_STEPS])
    return torch.stack(estimates)


class HostedIteration:
    """An iteration driven by Python, on the loader's next batches."""

    def __init__(self, training: Adversarial, loader: AnyLoader, draws: Draws) -> None:
        self.kind = loader.kind
        self._training, self.loader, self.draws = training, loader, draws
        self._estimates: list[torch.Tensor] = []
        self.images = torch.empty(0)  # of the critic's last step

    def _next_images(self, _number: int) -> torch.Tensor:
        with section("load"):
            self.images, _ = self.loader.next_batch()
        return self.images

    def __call__(self) -> None:
        """Queue one iteration."""
        self._estimates.append(iterate(self._training, self.draws, self._next_images))

    def rewind(self) -> None:
        """Restart loader and noise generator from their seeds, and discard the critic's estimates."""
        self.loader.rewind()
        self.draws.rewind()
        self._estimates = []

    def take_estimates(self) -> torch.Tensor:
        """Return the mean estimate of the iterations since the last call; NaN if there were none."""
        estimates, self._estimates = self._estimates, []
        return torch.stack(estimates).mean() if estimates else torch.tensor(torch.nan)


class CapturedIteration:
    """An iteration in one launch, after `capture()`. The device makes the critic's batches one after the other."""

    def __init__(self, training: Adversarial, loader: DeviceLoader, draws: Draws) -> None:
        self._training, self._loader, self.draws, self.kind = training, loader, draws, loader.kind
        self.memory_bytes = 0
        self.estimates = torch.zeros(CRITIC_STEPS, device=loader.images.device)  # of the last iteration
        self._sum, self._iterations = torch.zeros((), device=loader.images.device), 0
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def images(self) -> torch.Tensor:
        """Images of the critic's last step; the next step may overwrite them."""
        return self._loader.images

    def eagerly(self, training: Adversarial) -> torch.Tensor:
        """Run an iteration of another training on this one's next batches and noise, and return its estimates."""
        return iterate(training, self.draws, lambda _: self._loader.next_batch()[0])

    def _feed(self) -> None:
        for _ in range(CRITIC_STEPS):
            self._loader.feed()

    def _load(self, _number: int) -> torch.Tensor:
        self._loader.load()
        return self._loader.images

    def _body(self) -> None:
        self.estimates.copy_(iterate(self._training, self.draws, self._load))
        self._sum += self.estimates.mean()

    def capture(self) -> None:
        """Record the iteration. Its warm-up changes weights: restart the training and rewind afterwards."""
        drawing = [self.draws.generator, *self._loader.generators()]
        parts, forget = (self._feed, self._body), self._training.forget_gradients
        self._graph, self.memory_bytes = record(*parts, before=forget, generators=drawing)

    def __call__(self) -> None:
        """Launch one iteration."""
        assert self._graph is not None, "call capture() first"
        self._feed()
        self._graph.replay()
        self._iterations += 1

    def rewind(self) -> None:
        """Restart loader and noise generator from their seeds, and discard the critic's estimates."""
        self._loader.rewind()
        self.draws.rewind()
        self.take_estimates()

    def take_estimates(self) -> torch.Tensor:
        """Return the mean estimate, on the device, of the iterations since the last call; NaN if there were none."""
        mean = self._sum / (self._iterations or torch.nan)
        self._sum.zero_()
        self._iterations = 0
        return mean
