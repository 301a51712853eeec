"""Training whose gradients go in our own buckets, whatever drives it: a CPU need not compile for it.

`size` 1 leaves the exchange out.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from labkit.data import DataSet
from labkit.engines.buckets import Buckets
from labkit.trial import Trial
from labkit.workloads import Workload
from labkit.workloads.train import build as build_training


class Nowhere:
    """A way that sends nothing."""

    def send(self, _flat: object, _after: object) -> None:
        """Each rank keeps its own gradients."""

    def wait(self, number: int) -> None:
        """There is nothing to wait for."""

    def forget(self) -> None:
        """Nor to forget."""


class Apart(Buckets):
    """An exchange without one."""

    def __init__(self, *about: Any, **options: Any) -> None:
        super().__init__(*about, **options)
        self._way = Nowhere()  # type: ignore[assignment]


def build(trial: Trial, data: DataSet) -> Workload:
    """The training workload."""
    exchange = Apart if trial.size == 1 else Buckets
    with (
        patch("labkit.engines.training.in_buckets", lambda _trial: True),
        patch("labkit.engines.training.Buckets", exchange),
    ):
        return build_training(trial, data)
