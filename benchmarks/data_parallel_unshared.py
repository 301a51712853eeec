"""Training on several devices, each of which makes every update: the workload of `data_parallel.py --unshared`."""

from __future__ import annotations

from unittest.mock import patch

from labkit.data import DataSet
from workbook.trials.trial import Trial
from workbook.workloads import Workload
from workbook.workloads.train import build as build_training

LARGER_THAN_ANY_BYTES = 2**60


def build(trial: Trial, data: DataSet) -> Workload:
    """Return the training workload of a trial in which no bucket is large enough for a shared update."""
    with patch("workbook.engines.exchange.buckets.SHARED_BYTES", LARGER_THAN_ANY_BYTES):
        return build_training(trial, data)
