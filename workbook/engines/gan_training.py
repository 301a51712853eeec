"""A WGAN in training: the updates of its two networks, one iteration of them, and which trials cannot run here.

The critic's step makes its scores of real images larger than those of generated images, by as much as clipped weights
let it. The difference is its estimate of the Wasserstein distance. The generator's step makes the scores of its images
larger. Numbers and sources are in `workbook.trials.recipes`.

Real and generated images go through the critic one after the other, as in the paper's own code. In one batch, the
critic's batch norm would tell them apart by their mixture.

An iteration is five steps of the critic on a fresh batch each, then the generator's; by Python, or captured as one CUDA
graph. One launch draws noise, loads five batches, makes six updates and adds up the critic's estimates. Noise comes
from its own random generator. It draws the same numbers in a graph as outside, so that the gate can compare the two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from labkit.models.catalogue import CRITIC_STEPS
from labkit.models.wgan import NOISE, WGAN
from workbook.engines.device_loader import PART, AnyLoader, DeviceLoader
from workbook.engines.precision import autocast
from workbook.engines.steps import record
from workbook.engines.support import CAPTURE, PRECISION, is_gan
from workbook.engines.training import values_of
from workbook.trace.profiler import section
from workbook.trials.recipes import ADVERSARIAL, CLIP
from workbook.trials.rules import Rule
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


ENGINES = ("eager", "graph")

# fmt: off
RULES = (
    Rule("never", lambda t: not is_gan(t),
        "the gan workload trains a GAN (wgan), and {model} is none"),
    Rule("version", lambda t: t.engine not in ENGINES,
        f"a WGAN is trained in the modes {' and '.join(ENGINES)}, not by {{engine}}"),
    Rule("version", lambda t: t.optimizer != ADVERSARIAL["optimizer"],
        f"a WGAN is updated by {ADVERSARIAL['optimizer']}, not by '{{optimizer}}'"),
    Rule("version", lambda t: t.precision == "fp16",
        "FP16 needs loss scaling, which is not built for two losses with a common network: use BF16"),
    Rule("never", lambda t: t.batch == 1,
        "batch norm cannot train on a single value a channel, and the generator begins with one pixel of noise"),
    *PRECISION,
    *CAPTURE,
    Rule("version", lambda t: t.engine == "graph" and t.batch > LARGEST_CAPTURED,
        f"a captured iteration takes batches of {LARGEST_CAPTURED:,} images at most"),
)
# fmt: on
