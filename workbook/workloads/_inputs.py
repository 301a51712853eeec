"""Training inputs: images or documents. The differences between both are in this module; the training is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from labkit.data import DataSet
from labkit.data.augment import Augment, Preparation
from labkit.data.ilsvrc2012 import MEAN, STD
from labkit.data.loaders import Batch, ResidentLoader, fits, in_order, make_loader
from labkit.data.order import Shard
from workbook.engines import gate
from workbook.engines.device_loader import AnyLoader, DeviceLoader
from workbook.errors import Unsupported
from workbook.storage import StoredSet
from workbook.storage.readers.reader import FedLoader, Reader
from workbook.trials.inputs import check_data, input_bytes
from workbook.trials.rules import Rule, check
from workbook.trials.trial import Trial
from workbook.workloads._readers import bring_cache, describe, open_readers


class Unpacked:
    """Converter from bits, uint8 (B, words / 8), to float32 (B, words) with 1 where a document has the word."""

    def __init__(self, words: int, device: torch.device | str) -> None:
        self._words, self.device = words, torch.device(device)
        self._places = torch.arange(8, device=device, dtype=torch.uint8)

    def rewind(self) -> None:
        """Do nothing, since nothing is drawn at random."""

    def __call__(self, bits: torch.Tensor) -> torch.Tensor:
        """Return the unpacked rows, float32 (B, words), on the device of `bits`."""
        return (self._on_host if bits.device.type == "cpu" else self._on_device)(bits)

    def _on_host(self, bits: torch.Tensor) -> torch.Tensor:
        has = np.unpackbits(bits.numpy(), axis=1, count=self._words, bitorder="little")
        return torch.from_numpy(has).to(torch.float32)

    def _on_device(self, bits: torch.Tensor) -> torch.Tensor:
        return ((bits[:, :, None] >> self._places) & 1).flatten(1)[:, : self._words].to(torch.float32)


# Fields about pixels, or about networks that take images. With documents, these fields stay at their defaults, so that
# each configuration has a single key.
OF_IMAGES = ("image_px", "head", "memory_format", "augment", "loader")


def inputs_of(trial: Trial, data: DataSet | StoredSet) -> ImageInputs | DocumentInputs | StoredInputs:
    """Return the trial's inputs, with the bytes of a sample in `facts`.

    Raise UserError if the network takes other samples, and Unsupported for fields that do not apply to the samples.
    """
    if isinstance(data, StoredSet):
        check_data(trial.model, words=0)
        return StoredInputs(trial, data)
    check_data(trial.model, words=data.words)
    return DocumentInputs(trial, data) if data.words else ImageInputs(trial, data)


class ImageInputs:
    """Training and validation images, prepared for the trial's network."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        self._trial, self._data = trial, data
        self.train_images, self.val_images, self.description = len(data.train), len(data.val), data.description
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
        trial, split = self._trial, self._data.train
        shared: dict[str, Any] = {"batch": trial.batch_of_process, "seed": trial.seed, "shard": shard}
        augment = Augment(flip=trial.augment, crop=trial.augment)
        takes = trial.device == "cuda" and trial.image_px >= self._data.edge_px  # else `make_loader` says why not
        if trial.loader == "device" and takes and fits(split, self._shared["device"]):
            prepare = Preparation(seed=trial.seed, augment=augment, **self._shared)
            return DeviceLoader(split, prepare=prepare, dtype=dtype, **shared)
        return make_loader(split, augment=augment, **shared, **self._shared)

    def in_order(self, *, batch: int, dtype: torch.dtype) -> Iterator[Batch]:
        """Yield batches of all validation images, once and in order."""
        return in_order(self._data.val, batch=batch, prepare=Preparation(**self._shared), dtype=dtype)


class StoredInputs:
    """Training images that a reader takes from files. There are no validation images."""

    def __init__(self, trial: Trial, stored: StoredSet) -> None:
        check(of_stored(stored), trial)
        self._trial, self.stored = trial, stored
        self.train_images, self.val_images, self.description = stored.images, 0, describe(stored)
        self.facts: dict[str, Any] = {"image_bytes": input_bytes(trial.model, trial.image_px)}

    def loader(self, *, dtype: torch.dtype, shard: Shard) -> FedLoader:  # noqa: ARG002 - captured steps cast
        """Return a loader of endless training batches on the trial's device. Each process reads all images."""
        trial = self._trial

        def open_own() -> Reader:
            (reader,), facts = open_readers(trial, self.stored, numbers=range(shard.rank, shard.rank + 1))
            self.facts |= facts
            return reader

        if not trial.epochs:
            self.facts["resident_share"] = bring_cache(trial, self.stored)
        prepare = Preparation(
            device=torch.device(trial.device),
            mean=MEAN,
            std=STD,
            memory_format=trial.memory_format,  # type: ignore[arg-type]
        )
        self.fed = FedLoader(open_own, prepare=prepare, repeats=gate.STEPS)
        return self.fed

    def in_order(self, *, batch: int, dtype: torch.dtype) -> Iterator[Batch]:  # noqa: ARG002
        """Raise Unsupported, since nobody validates a training from files."""
        raise Unsupported("a set in files has no validation images", "never")


# fmt: off
def of_stored(stored: StoredSet) -> tuple[Rule, ...]:
    """Return the rules of trainings that readers feed from a stored set."""
    return (
        Rule("never", lambda t: t.epochs and stored.images < t.batch_of_step and t.batch_of_step,
            f"a step takes {{value:,}} images, and the set has {stored.images:,}: make a larger set"),
        Rule("never", lambda t: t.classes < stored.classes,
            f"the images have {stored.classes:,} classes, and the network {{classes:,}}"),
    )


OF_DOCUMENTS = (
    Rule("never", lambda t: next((name for name in OF_IMAGES if getattr(t, name) != getattr(Trial, name)), None),
        "{value} applies to networks that take images; {model} takes bags of words"),
    Rule("version", lambda t: "graph" in t.engine,
        "the mode {engine} captures steps that load images; {model} takes bags of words"),
)
# fmt: on


class DocumentInputs:
    """Training and validation documents, as FP32 rows of words."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        self._trial, self._data = trial, data
        self.train_images, self.val_images, self.description = len(data.train), len(data.val), data.description
        check(OF_DOCUMENTS, trial)
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
