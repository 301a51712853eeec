"""Ranks that train beside each other: nobody averages their gradients."""

from __future__ import annotations

from labkit.data import DataSet
from labkit.engines import training
from labkit.trial import Trial
from labkit.workloads import Workload
from labkit.workloads.train import build as build_training


def build(trial: Trial, data: DataSet) -> Workload:
    """The training workload without its exchange of gradients."""
    training.overlapped = lambda model, _team, _precision: model  # type: ignore[attr-defined]
    return build_training(trial, data)
