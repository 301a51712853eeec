"""What a trial does: pure steps, no clocks. A workload is a module with `build(trial, data) -> Workload`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, Protocol

from labkit.data import DataSet
from labkit.errors import unknown
from labkit.trial import Trial


class Workload(Protocol):
    """One trial, ready to be stepped. Counts are per step; None where a step has no such work."""

    images_per_step: int | None
    flop_per_step: int | None
    bytes_per_step: int | None
    facts: dict[str, Any]
    # Mean loss of the steps since the last call (None when it was not finite), for a workload that has a loss.
    read_loss: Callable[[], float | None] | None

    def check(self) -> None:
        """The correctness gate, before any timing; GateError when a result is wrong. Runs the first step."""
        ...

    def step(self) -> object:
        """One step, queued on the device; does not wait for it."""
        ...


def build_workload(trial: Trial, data: DataSet | None) -> Workload:
    """Build the workload a trial names: a module of this room, or any importable one when the name has a dot."""
    build: Callable[[Trial, DataSet | None], Workload]
    if "." in trial.workload:
        build = importlib.import_module(trial.workload).build
    elif trial.workload in (names := [module.name for module in pkgutil.iter_modules(__path__)]):
        build = importlib.import_module(f"{__name__}.{trial.workload}").build
    else:
        raise unknown("workload", trial.workload, names)
    return build(trial, data)
