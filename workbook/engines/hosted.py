"""A training step that Python drives: the eager loop, also with the loss compiled."""

from __future__ import annotations

import torch

from labkit.data.loaders import Batch
from workbook.engines.device_loader import AnyLoader
from workbook.engines.sections import section
from workbook.engines.training import Training
from workbook.storage.readers.fed import FedLoader


class HostedStep:
    """A step that takes the loader's next batch and trains on it."""

    def __init__(self, training: Training, loader: AnyLoader | FedLoader) -> None:
        self.kind = loader.kind
        self._training, self.loader = training, loader
        self.losses: list[torch.Tensor] = []
        self.images, self.labels = torch.empty(0), torch.empty(0, dtype=torch.int64)  # of the last step

    def peek(self) -> Batch:
        """Return the next batch without training on it."""
        return self.loader.next_batch()

    def warm_up(self) -> None:
        """Run one step: an engine that compiles does so now."""
        self()

    def rewind(self) -> None:
        """Go back to the first batch, and forget the losses."""
        self.loader.rewind()
        self.losses = []

    def take_losses(self) -> torch.Tensor:
        """Return the mean loss of the steps since the last call; NaN if there were none."""
        losses, self.losses = self.losses, []
        return torch.stack(losses).float().mean() if losses else torch.tensor(torch.nan)

    def __call__(self) -> None:
        """Queue one step."""
        with section("load"):
            self.images, self.labels = self.loader.next_batch()
        self.losses.append(self._training.update(self.images, self.labels))
