"""A trial's workload in this process, prepared as a worker prepares it."""

from __future__ import annotations

from typing import Any

import torch

from labkit.data import DataSet
from labkit.data.augment import UNCHANGED, Augment, MemoryFormat, Preparation
from labkit.data.dataset import Levels, Split
from workbook.trials.trial import Trial
from workbook.workloads import build_workload


def prepare(workload: Any) -> Any:
    """Prepare a workload for its first step, and return it."""
    for _, preparation in workload.preparations():
        preparation()
    return workload


def prepared(trial: Trial, data: DataSet | None, *, network: str | None = None) -> Any:
    """Return the trial's workload after its preparations and before its first step."""
    return prepare(build_workload(trial, data, network=network))


def checked(trial: Trial, data: DataSet | None, *, network: str | None = None) -> Any:
    """Return the trial's prepared workload after it has passed its gate."""
    workload = prepared(trial, data, network=network)
    workload.check()
    return workload


def predicting(data: DataSet, **fields: Any) -> Any:
    """Return a prepared inference workload on `data`. `fields` are those of its trial."""
    return prepared(Trial(workload="infer", data=data.name, data_checksum=data.checksum, **fields), data)


def loading(
    kind: Any,
    split: Split,
    *,
    device: str = "cpu",
    mean: Levels = (0.0, 0.0, 0.0),
    std: Levels = (1.0, 1.0, 1.0),
    seed: int = 0,
    augment: Augment = UNCHANGED,
    image_px: int | None = None,
    memory_format: MemoryFormat = "contiguous",
    **options: Any,
) -> Any:
    """Return a loader of the class `kind` that prepares images as the arguments say."""
    about: dict[str, Any] = {"image_px": image_px, "memory_format": memory_format}
    prepare = Preparation(device=torch.device(device), mean=mean, std=std, seed=seed, augment=augment, **about)
    return kind(split, prepare=prepare, seed=seed, **options)
