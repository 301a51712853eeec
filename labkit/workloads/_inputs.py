"""What a network is trained on: images or documents. What differs between the two stands here; training is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch

from labkit.data import DataSet
from labkit.data.augment import Augment
from labkit.data.documents import DocumentLoader, documents_in_order
from labkit.data.in_order import batches_in_order
from labkit.data.loader import Batch
from labkit.data.loaders import AnyLoader, make_loader
from labkit.data.order import Shard
from labkit.errors import Unsupported
from labkit.models import check_data, input_bytes
from labkit.trial import Trial

# Fields that say something of pixels or of networks that take them; of others they stand at their defaults, so that one
# configuration has one key.
OF_IMAGES = ("image_px", "stem", "head", "memory_format", "augment", "loader")


class Inputs(Protocol):
    """The samples of a trial, as its network takes them."""

    facts: dict[str, Any]

    def loader(self, *, dtype: torch.dtype, shard: Shard) -> AnyLoader:
        """What hands out training batches without end, on the trial's device."""
        ...

    def in_order(self, *, batch: int, dtype: torch.dtype) -> Iterator[Batch]:
        """The validation samples once."""
        ...


def inputs_of(trial: Trial, data: DataSet) -> Inputs:
    """The trial's samples; UserError where its network takes other ones, Unsupported for what has no meaning with them.

    Bytes a sample and how many there are stand in `facts`, where pages expect those of images.
    """
    check_data(trial.model, words=data.words)
    return _Documents(trial, data) if data.words else _Images(trial, data)


class _Images:
    def __init__(self, trial: Trial, data: DataSet) -> None:
        self._trial, self._data = trial, data
        self.facts: dict[str, Any] = {"image_bytes": input_bytes(trial.model, trial.image_px)}

    def loader(self, *, dtype: torch.dtype, shard: Shard) -> AnyLoader:
        trial, data = self._trial, self._data
        return make_loader(
            data.train,
            batch=trial.batch_of_process,
            device=trial.device,
            mean=data.mean,
            std=data.std,
            seed=trial.seed,
            augment=Augment(flip=trial.augment, crop=trial.augment),
            image_px=trial.image_px,
            memory_format=trial.memory_format,  # type: ignore[arg-type]
            dtype=dtype,
            on_device=trial.loader == "device",
            shard=shard,
        )

    def in_order(self, *, batch: int, dtype: torch.dtype) -> Iterator[Batch]:
        trial, data = self._trial, self._data
        return batches_in_order(
            data.val,
            batch=batch,
            device=trial.device,
            mean=data.mean,
            std=data.std,
            image_px=trial.image_px,
            memory_format=trial.memory_format,  # type: ignore[arg-type]
            dtype=dtype,
        )


class _Documents:
    def __init__(self, trial: Trial, data: DataSet) -> None:
        self._trial, self._data = trial, data
        plain = Trial()
        for name in OF_IMAGES:
            if getattr(trial, name) != getattr(plain, name):
                raise Unsupported(f"{name} is of networks that take images; {trial.model} takes bags of words")
        if "graph" in trial.engine:
            raise Unsupported(f"captured steps load images; {trial.model} takes bags of words")
        self.facts: dict[str, Any] = {"document_bytes": input_bytes(trial.model, trial.image_px), "words": data.words}

    def loader(self, *, dtype: torch.dtype, shard: Shard) -> AnyLoader:
        assert dtype == torch.float32, "only captured steps take another type"
        trial, data = self._trial, self._data
        return DocumentLoader(
            data.train,
            words=data.words,
            batch=trial.batch_of_process,
            device=trial.device,
            seed=trial.seed,
            shard=shard,
        )

    def in_order(self, *, batch: int, dtype: torch.dtype) -> Iterator[Batch]:
        assert dtype == torch.float32, "only captured steps take another type"
        return documents_in_order(self._data.val, words=self._data.words, batch=batch, device=self._trial.device)
