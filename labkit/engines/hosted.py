"""A training step that Python drives: the eager loop, also with the loss compiled."""

from __future__ import annotations

import torch

from labkit.data.loader import Batch
from labkit.data.loaders import AnyLoader
from labkit.engines.sections import section
from labkit.engines.training import Training


class HostedStep:
    """Takes the loader's next batch and trains on it."""

    def __init__(self, training: Training, loader: AnyLoader) -> None:
        self.kind = loader.kind
        self._training, self.loader = training, loader
        self.losses: list[torch.Tensor] = []
        self.images, self.labels = torch.empty(0), torch.empty(0, dtype=torch.int64)  # of the last step

    def peek(self) -> Batch:
        """The next batch, without training on it."""
        return self.loader.next_batch()

    def warm_up(self) -> None:
        """One step: what an engine compiles, it compiles now."""
        self()

    def rewind(self) -> None:
        """Back to the first batch."""
        self.loader.rewind()
        self.losses = []

    def take_losses(self) -> torch.Tensor:
        """Mean loss of the steps since the last call; not a number when there were none."""
        losses, self.losses = self.losses, []
        return torch.stack(losses).float().mean() if losses else torch.tensor(torch.nan)

    def __call__(self) -> None:
        """Queue one step."""
        with section("load"):
            self.images, self.labels = self.loader.next_batch()
        self.losses.append(self._training.update(self.images, self.labels))
