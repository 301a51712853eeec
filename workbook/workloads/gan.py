"""Training of a WGAN. A step is an iteration: five critic steps, each on a fresh batch, then one generator step.

`batch` is the batch of one critic step, so an iteration takes five batches of real images. The generator makes five
batches for the critic, and a sixth for its own step. Images/s count real images. Images are scaled to -1..1, the range
of the generator's last layer (tanh). The critic's estimate of the Wasserstein distance takes the place of the loss of
other trainings.
"""

from __future__ import annotations

import base64
import copy
import io
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from labkit.data import DataSet
from labkit.data.augment import TORCH_FORMATS
from labkit.data.dataset import Split
from labkit.data.order import WHOLE
from labkit.models import count
from labkit.models.catalogue import CRITIC_STEPS
from labkit.models.wgan import CHANNELS, NOISE, WGAN, iteration
from workbook.engines import gan_gate, gan_training, precision
from workbook.engines.device_loader import DeviceLoader
from workbook.engines.gan_training import Adversarial, CapturedIteration, Draws, HostedIteration
from workbook.errors import GateError, Unsupported
from workbook.storage.readers.reader import FedLoader
from workbook.trials.trial import Trial
from workbook.workloads import Workload
from workbook.workloads._facts import facts_of_network
from workbook.workloads._inputs import inputs_of

COLUMNS = 8
GAP_PX = 2  # between images, white
COLOURS = 16  # half a byte per pixel, because images of an untrained generator hardly compress
Make = Callable[[torch.Tensor], torch.Tensor]


class Samples:
    """The first `count` real images of a split, and images generated from fixed noise. Grids are base64 PNG text."""

    def __init__(self, real: Split, count: int, *, seed: int) -> None:
        self._noise = torch.randn(count, NOISE, 1, 1, generator=torch.Generator().manual_seed(seed))
        self._real = np.array(real.images[:count])

    def beginning(self, make: Make) -> dict[str, str]:
        """Return the grids that need no training: of the untrained generator and of real images, by fact name."""
        return {"samples_before_png": self.of(make), "samples_real_png": png(self._real)}

    def of(self, make: Make) -> str:
        """Return the grid of images generated from the noise. `make` returns (N, 3, E, E) in -1..1 on the host."""
        levels = ((make(self._noise) + 1) * 127.5).round().clamp(0, 255)
        return png(levels.to(torch.uint8).numpy())


def png(images: NDArray[np.uint8]) -> str:
    """Return images (N, 3, E, E) as one grid of 8 columns and 16 adapted colours, in base64 PNG text."""
    from PIL import Image  # imported here, because most trials draw nothing

    count, channels, height, width = images.shape
    rows, columns = -(-count // COLUMNS), min(count, COLUMNS)
    grid = np.full((rows * (height + GAP_PX) - GAP_PX, columns * (width + GAP_PX) - GAP_PX, channels), 255, np.uint8)
    for place, image in enumerate(images):
        top, left = place // COLUMNS * (height + GAP_PX), place % COLUMNS * (width + GAP_PX)
        grid[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(grid).quantize(COLOURS).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


@contextmanager
def without_new_statistics(network: nn.Module) -> Iterator[None]:
    """Restore the network's running statistics when the block ends."""
    kept = [buffer.clone() for buffer in network.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(network.buffers(), kept, strict=True):
            buffer.copy_(value)


RULES = gan_training.RULES
MIDDLE = (127.5, 127.5, 127.5)  # mean and std that scale levels 0..255 to -1..1


def build(trial: Trial, data: DataSet) -> GanWorkload:
    """Return the WGAN workload of a trial. Raise Unsupported for data that it cannot take."""
    return GanWorkload(trial, data)


class GanWorkload(Workload):
    """A WGAN with its optimisers, images and noise on one device, driven by the trial's engine."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        self.trial = trial
        cost = count(trial.model, image_px=trial.image_px)
        precision.set_modes(trial)
        torch.manual_seed(trial.seed)
        with torch.device(trial.device):
            network = WGAN()
        network = network.to(memory_format=TORCH_FORMATS[trial.memory_format])
        self._inputs = inputs_of(trial, replace(data, mean=MIDDLE, std=MIDDLE))
        self._samples: Samples | None = None
        if trial.samples:  # drawn here, before training changes the network
            self._samples = Samples(data.train, trial.samples, seed=trial.seed)
            self._drawn_before = self._samples.beginning(lambda noise: self._make(network, noise))
        captured = trial.engine == "graph"
        self._reference: Adversarial | None = None
        if captured:
            as_eager = replace(trial, engine="eager")
            self._reference = Adversarial(as_eager, copy.deepcopy(network), captured=False, restarts=False)
        self.training = Adversarial(trial, network, captured=captured, restarts=captured)
        self.run = self._drive()
        work = iteration()
        self.images_per_step = CRITIC_STEPS * trial.batch
        self.flop_per_step = work.flop * trial.batch
        self.facts = {
            **facts_of_network(trial, cost, data.description),
            **self._inputs.facts,
            "weight_traffic_bytes_per_step": cost.weight_traffic_bytes,
            "images_per_step": self.images_per_step,
            "flop_training": cost.flop_training,  # per real image
            "loader": self.run.kind,
            "train_images": len(data.train),
        }

    def _drive(self) -> HostedIteration | CapturedIteration:
        trial, draws = self.trial, Draws(self.trial)
        loader = self._inputs.loader(dtype=torch.float32, shard=WHOLE)
        assert not isinstance(loader, FedLoader), "readers of files do not feed this workload"
        if trial.engine == "eager":
            return HostedIteration(self.training, loader, draws)
        if not isinstance(loader, DeviceLoader):
            raise Unsupported("a captured iteration needs its images on the device, and they do not fit there")
        return CapturedIteration(self.training, loader, draws)

    def leave_out_gate(self) -> None:
        """Drop the reference iterations."""
        self._reference = None

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield the eager reference iterations and the capture. Engine `eager` has no preparations."""
        self._compares = self._reference is not None
        if isinstance(self.run, CapturedIteration):
            if self._compares:
                yield "reference", self._run_reference
            yield "capture", self._capture

    def _run_reference(self) -> None:
        reference, run = self._reference, self.run
        assert reference is not None and isinstance(run, CapturedIteration)
        self._expected = gan_gate.trace(reference, lambda: run.eagerly(reference), self._what_was_read)
        self._reference = None
        run.rewind()

    def _what_was_read(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.run.images, self.run.draws.noise

    def _capture(self) -> None:
        assert isinstance(self.run, CapturedIteration)
        self.run.capture()
        self.facts |= {
            "memory_bytes": self.run.memory_bytes,
            "memory_method": "peak of PyTorch's CUDA allocator while the iteration was captured",
        }
        self._forget_iterations()

    def _forget_iterations(self) -> None:
        self.training.restart()
        self.run.rewind()

    def step(self) -> None:
        """Queue one iteration."""
        self.run()

    def check(self) -> None:
        """Check that an eager iteration trains both networks, or that a captured one equals it, and weight clipping."""
        if isinstance(self.run, CapturedIteration):
            self._check_captured(self.run)
        else:
            self._check_first_iteration()

    def _check_captured(self, run: CapturedIteration) -> None:
        def one_iteration() -> torch.Tensor:
            run()
            return run.estimates

        if self._compares:
            captured = gan_gate.trace(self.training, one_iteration, self._what_was_read)
            self.facts["gate"] = gan_gate.compare(self._expected, captured, self.trial.precision)
            del self._expected
        else:
            one_iteration()
        self._check_clipped()
        self._forget_iterations()
        self.training.forget_beginning()

    def _check_first_iteration(self) -> None:
        """Check one iteration: shapes of images and scores, a finite estimate, a gradient for every weight."""
        trial, network = self.trial, self.training.network
        shapes: dict[str, set[tuple[int, ...]]] = {"generator": set(), "critic": set()}
        hooks = [
            part.register_forward_hook(lambda _m, _i, output, name=name: shapes[name].add(tuple(output.shape)))
            for name, part in (("generator", network.generator), ("critic", network.critic))
        ]
        self.step()
        estimate = self.read_loss()
        for hook in hooks:
            hook.remove()
        expected = {"generator": (trial.batch, CHANNELS, trial.image_px, trial.image_px), "critic": (trial.batch,)}
        for name, seen in shapes.items():
            if seen != {expected[name]}:
                raise GateError(f"the {name} gave outputs of shape {sorted(seen)}, expected {expected[name]}")
        if estimate is None:
            raise GateError("the first iteration's estimate of the distance is not finite")
        without = [name for name, weight in network.named_parameters() if weight.grad is None]
        if without:
            raise GateError(f"{len(without)} weights got no gradient, {without[0]} first")
        self._check_clipped()
        self.facts["first_loss"] = estimate

    def _check_clipped(self) -> None:
        if beyond := self.training.out_of_bounds():
            raise GateError(beyond)

    def read_loss(self) -> float | None:
        """Return the critic's mean estimate of the distance since the last call, None if not finite."""
        mean = float(self.run.take_estimates())
        return mean if math.isfinite(mean) else None

    def draw_samples(self) -> dict[str, Any]:
        """Return base64 PNG grids: images generated from fixed noise before and after training, and real images."""
        assert self._samples is not None, "the configuration asks for no samples"
        after = self._samples.of(lambda noise: self._make(self.training.network, noise))
        return {**self._drawn_before, "samples_png": after}

    def _make(self, network: WGAN, noise: torch.Tensor) -> torch.Tensor:
        """Return generated images on the host, with batch statistics as in training. The network does not change."""
        with torch.no_grad(), without_new_statistics(network.generator), precision.autocast(self.trial):
            return network.generator(noise.to(self.trial.device)).float().cpu()
