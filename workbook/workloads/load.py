"""Delivery of images: a step takes a batch from each reader of the trial, and does nothing else with it.

On a GPU, the batch is copied there and normalised, as for training. So the images/s are those that a training can get
at most.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from labkit.data.augment import Preparation
from labkit.data.ilsvrc2012 import MEAN, STD
from workbook.errors import GateError
from workbook.storage import StoredSet
from workbook.storage.readers import RULES as OF_READER
from workbook.storage.readers.reader import Reader
from workbook.trials.rules import Rule
from workbook.trials.trial import Trial
from workbook.workloads import Workload
from workbook.workloads._readers import bring_cache, describe, open_readers

# fmt: off
RULES = (
    Rule("never", lambda t: t.form == "embedded",
        "the load workload reads files: give form='jpeg' and reader='torch_pil', for example"),
    *OF_READER,
)
# fmt: on


def build(trial: Trial, data: StoredSet) -> LoadWorkload:
    """Return the loading workload of a trial. Raise Unsupported if this machine cannot read the files."""
    return LoadWorkload(trial, data)


class LoadWorkload(Workload):
    """The readers of a trial, each with its own workers and a batch per step."""

    stored: StoredSet

    def __init__(self, trial: Trial, stored: StoredSet) -> None:
        self._trial, self.stored, self._waited_s = trial, stored, 0.0
        self.epoch_images = stored.images
        self._prepare = Preparation(device=torch.device(trial.device), mean=MEAN, std=STD)
        self.images_per_step = trial.batch * trial.readers
        self.bytes_per_step = round(stored.file_bytes / stored.images * self.images_per_step)
        self.facts = {"skipped": 0, "threads": torch.get_num_threads(), "data_description": describe(stored)}
        if not trial.epochs:
            self.facts["resident_share"] = self.bring_cache()
        self.readers: list[Reader] = []
        self.restart()

    def waited_s(self) -> float:
        """Return the seconds in which all steps so far waited for their batches."""
        return self._waited_s

    def skipped(self) -> int:
        """Return the images that could not be read since the readers were opened."""
        return sum(reader.skipped for reader in self.readers)

    def bring_cache(self) -> float | None:
        """Bring the page cache into the trial's state. Return the share of the set that it then holds."""
        return bring_cache(self._trial, self.stored)

    def restart(self) -> None:
        """Open the readers anew after `close`, which forgets the batches that were read ahead."""
        self.readers, facts = open_readers(self._trial, self.stored, numbers=range(self._trial.readers))
        self.facts |= facts

    def step(self) -> Any:
        """Take a batch from each reader. Return the last, on the device."""
        for reader in self.readers:
            began = time.perf_counter()
            images, labels = reader.next_batch()
            self._waited_s += time.perf_counter() - began
            if self._trial.device == "cuda":
                images = self._prepare(images.to("cuda", non_blocking=True))
                labels = labels.to("cuda", non_blocking=True)
        self.facts["skipped"] = self.skipped()
        return images, labels

    def check(self) -> None:
        """Check shape, type and labels of the first batch. Raise GateError if they are not as asked for."""
        opened_s = self.facts["readers_start_s"]
        began = time.perf_counter()
        for reader in self.readers:
            images, labels = reader.next_batch()
            self.facts.setdefault("first_batch_s", opened_s + time.perf_counter() - began)
            expected = (self._trial.batch, 3, self._trial.image_px, self._trial.image_px)
            if tuple(images.shape) != expected or images.dtype != torch.uint8:
                raise GateError(f"the reader gave {images.dtype} {tuple(images.shape)}, not {expected} bytes")
            if labels.dtype != torch.int64 or not 0 <= int(labels.min()) <= int(labels.max()) < self.stored.classes:
                raise GateError(f"the reader gave labels that are not 0 to {self.stored.classes - 1}")
            if int(images.max()) == int(images.min()):
                raise GateError("the reader gave images without any content")

    def close(self) -> None:
        """Close the readers."""
        for reader in self.readers:
            reader.close()
        self.readers = []
