"""Training on several devices in which each does every update: what `data_parallel.py --unshared` compares with."""

from __future__ import annotations

from unittest.mock import patch

from labkit.data import DataSet
from labkit.trial import Trial
from labkit.workloads import Workload
from labkit.workloads.train import build as build_training

LARGER_THAN_ANY_BYTES = 2**60


def build(trial: Trial, data: DataSet) -> Workload:
    """The training workload of a trial whose buckets are all too small to be shared out."""
    with patch("labkit.engines.buckets.SHARED_BYTES", LARGER_THAN_ANY_BYTES):
        return build_training(trial, data)
