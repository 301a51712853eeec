"""Training inputs: images or documents. The differences between both are in this module; the training is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from labkit.data import DataSet
from labkit.data.augment import Augment, Preparation
from labkit.data.documents import Unpacked
from labkit.data.in_order import in_order
from labkit.data.loader import Batch, ResidentLoader
from labkit.data.loaders import AnyLoader, make_loader
from labkit.data.order import Shard
from labkit.errors import Unsupported
from labkit.models import check_data, input_bytes
from labkit.trial import Trial

# Fields about pixels, or about networks that take images. With documents, these fields stay at their defaults, so that
# each configuration has a single key.
OF_IMAGES = ("image_px", "stem", "head", "memory_format", "augment", "loader")


def inputs_of(trial: Trial, data: DataSet) -> ImageInputs | DocumentInputs:
    """Return the trial's inputs, with the bytes of a sample in `facts`.

    Raise UserError if the network takes other samples, and Unsupported for fields that do not apply to the samples.
    """
    check_data(trial.model, words=data.words)
    return DocumentInputs(trial, data) if data.words else ImageInputs(trial, data)


class ImageInputs:
    """Training and validation images, prepared for the trial's network."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        self._trial, self._data = trial, data
        self._shared: dict[str, Any] = {
            "device": torch.device(trial.device),
            "mean": data.mean,
            "std": data.std,
            "image_px": trial.image_px,
            "memory_format": trial.memory_format,
        }
        self.facts: dict[str, Any] = {"image_bytes": input_bytes(trial.model, trial.image_px)}

    def loader(self, *, dtype: torch.dtype, shard: Shard) -> AnyLoader:
        """Return a loader of endless training batches on the trial's device."""
        trial = self._trial
        return make_loader(
            self._data.train,
            batch=trial.batch_of_process,
            seed=trial.seed,
            augment=Augment(flip=trial.augment, crop=trial.augment),
            dtype=dtype,
            on_device=trial.loader == "device",
            shard=shard,
            **self._shared,
        )

    def in_order(self, *, batch: int, dtype: torch.dtype) -> Iterator[Batch]:
        """Yield batches of all validation images, once and in order."""
        return in_order(self._data.val, batch=batch, prepare=Preparation(**self._shared), dtype=dtype)


class DocumentInputs:
    """Training and validation documents, as FP32 rows of words."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        self._trial, self._data = trial, data
        default = Trial()
        for name in OF_IMAGES:
            if getattr(trial, name) != getattr(default, name):
                raise Unsupported(f"{name} applies to networks that take images; {trial.model} takes bags of words")
        if "graph" in trial.engine:
            raise Unsupported(f"captured steps load images; {trial.model} takes bags of words")
        self._prepare = Unpacked(data.words, trial.device)
        self.facts: dict[str, Any] = {"document_bytes": input_bytes(trial.model, trial.image_px), "words": data.words}

    def loader(self, *, dtype: torch.dtype, shard: Shard) -> AnyLoader:
        """Return a loader of endless training batches on the trial's device."""
        assert dtype == torch.float32, "only captured steps take another type"
        trial = self._trial
        batch = trial.batch_of_process
        return ResidentLoader(self._data.train, batch=batch, prepare=self._prepare, seed=trial.seed, shard=shard)

    def in_order(self, *, batch: int, dtype: torch.dtype) -> Iterator[Batch]:
        """Yield batches of all validation documents, once and in order."""
        assert dtype == torch.float32, "only captured steps take another type"
        return in_order(self._data.val, batch=batch, prepare=self._prepare)
