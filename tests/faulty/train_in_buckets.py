"""Training whose gradients go in our own buckets, though the plain loop drives it: a CPU need not compile for it.

`size` 1 leaves the exchange out.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

from labkit.data import DataSet
from labkit.engines.buckets import Buckets
from labkit.trial import Trial
from labkit.workloads import Workload
from labkit.workloads.train import build as build_training


class Apart(Buckets):
    """Each rank keeps its own gradients."""

    def arriving(self) -> Iterator[int]:
        """All of them, at once."""
        yield from range(len(self.parts))


def build(trial: Trial, data: DataSet) -> Workload:
    """The training workload."""
    exchange = Apart if trial.size == 1 else Buckets
    with (
        patch("labkit.engines.training.in_buckets", lambda _trial: True),
        patch("labkit.engines.training.Buckets", exchange),
    ):
        return build_training(trial, data)
