"""A Wasserstein GAN for 32x32 images: a generator and a critic shaped like DCGAN's, and the FLOP of its training.

The layers are those of the paper's code (Arjovsky et al. 2017, arXiv:1701.07875; martinarjovsky/WassersteinGAN,
`models/dcgan.py`, with image size 32 and 128 filters). Their widths are those of Gulrajani et al. at this size
(arXiv:1704.00028, appendix F; igul222/improved_wgan_training, `gan_cifar.py`):

    generator   noise 100 -> 4x4x512 -> 8x8x256 -> 16x16x128 -> 32x32x3, batch norm and ReLU between, tanh at the end
    critic      32x32x3 -> 16x16x128 -> 8x8x256 -> 4x4x512 -> 1, leaky ReLU of slope 0.2 between

Convolutions are 4x4 with stride 2, or stride 1 in the first layer of the generator and the last of the critic. The
critic has batch norm after all convolutions except the first and the last, as in the paper's code.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from labkit.models.catalogue import CRITIC_STEPS, ModelFacts

NOISE = 100  # random numbers per generated image (DCGAN, Radford et al. 2015)
WIDTH = 128  # filters at 16x16; each halving of the edge doubles the filters
CHANNELS = 3
SLOPE = 0.2  # slope of leaky ReLU below 0 (DCGAN)
_SPREAD = 0.02  # standard deviation of initial weights around 0, and of batch norm's around 1 (DCGAN)


class WGAN(nn.Module):
    """Generator and critic. Noise is (B, 100, 1, 1), images are (B, 3, 32, 32) in -1..1, scores (B,)."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = generator()
        self.critic = critic()
        self.apply(_initialise)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Return the critic's scores (B,) of images generated from `noise`."""
        scores: torch.Tensor = self.critic(self.generator(noise))
        return scores


def generator() -> nn.Sequential:
    """Return the network that generates images from noise."""
    layers: list[nn.Module] = [nn.ConvTranspose2d(NOISE, 4 * WIDTH, 4, bias=False), *_normalised(4 * WIDTH)]
    for wide in (4 * WIDTH, 2 * WIDTH):
        layers += [nn.ConvTranspose2d(wide, wide // 2, 4, stride=2, padding=1, bias=False), *_normalised(wide // 2)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(WIDTH, CHANNELS, 4, stride=2, padding=1, bias=False), nn.Tanh())


def critic() -> nn.Sequential:
    """Return the network that scores images."""
    layers: list[nn.Module] = [nn.Conv2d(CHANNELS, WIDTH, 4, stride=2, padding=1, bias=False)]
    layers.append(nn.LeakyReLU(SLOPE, True))
    for wide in (WIDTH, 2 * WIDTH):
        layers.append(nn.Conv2d(wide, 2 * wide, 4, stride=2, padding=1, bias=False))
        layers += [nn.BatchNorm2d(2 * wide), nn.LeakyReLU(SLOPE, True)]
    return nn.Sequential(*layers, nn.Conv2d(4 * WIDTH, 1, 4, bias=False), nn.Flatten(0))


def _normalised(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(True)]


def _initialise(module: nn.Module) -> None:
    """Initialise the weights of a layer as DCGAN and the paper's code do."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, _SPREAD)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, _SPREAD)
        nn.init.zeros_(module.bias)


class Iteration(NamedTuple):
    """FLOP of one step of the critic and of the generator's step, per image of a batch."""

    critic_step: int
    generator_step: int

    @property
    def flop(self) -> int:
        """FLOP of the whole iteration, per image of a batch."""
        return CRITIC_STEPS * self.critic_step + self.generator_step


def iteration() -> Iteration:
    """Return the FLOP of an iteration, derived from forward passes (a multiply-add is two; batch norm is not counted).

    A backward pass costs a network two forward passes: one for the gradients of the weights, one for those of the
    inputs. The first layer needs no gradient of its inputs. The critic's step generates images (forward only), and runs
    forward and backward on real and generated images. The generator's step runs through the critic and back, without
    gradients of the critic's weights.
    """
    made, judged = _forward_flop()
    critic_step = sum(made) + 2 * sum(judged) + 2 * (2 * sum(judged) - judged[0])
    return Iteration(critic_step, 3 * sum(made) - made[0] + 2 * sum(judged))


def count_iteration() -> ModelFacts:
    """Return sizes and FLOP of both networks. Training FLOP are per real image, a fifth of an iteration's."""
    with torch.device("meta"):
        network = WGAN()
    made, judged = (sum(weight.nbytes for weight in part.parameters()) for part in (network.generator, network.critic))
    # Memory traffic that no cache can save, in passes over the weights. An optimiser step with one moment takes eight:
    # forward and backward pass read the weights, the backward pass writes gradients, and the update reads weights,
    # gradients and moments and writes weights and moments. Each critic step also reads the generator's weights, and the
    # generator's step reads the critic's weights forward and backward.
    passes = made * (8 + CRITIC_STEPS) + judged * (8 * CRITIC_STEPS + 2)
    return ModelFacts(
        parameters=sum(weight.numel() for weight in network.parameters()),
        parameter_bytes=made + judged,
        flop_forward=sum(map(sum, _forward_flop())),
        flop_training=round(iteration().flop / CRITIC_STEPS),
        weight_traffic_bytes=passes,
    )


def _forward_flop() -> tuple[list[int], list[int]]:
    """Return the forward FLOP per image of each convolution of the generator and of the critic, in order."""
    with torch.device("meta"):
        network, tensor = WGAN(), torch.empty(2, NOISE, 1, 1)
    counts: tuple[list[int], list[int]] = ([], [])
    for part, flop in zip((network.generator, network.critic), counts, strict=True):
        for layer in part:
            with FlopCounterMode(display=False) as counted:
                tensor = layer(tensor)
            if counted.get_total_flops():
                flop.append(counted.get_total_flops() // 2)
    return counts
