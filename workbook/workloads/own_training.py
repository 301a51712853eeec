"""The training of a network that the user brings, on one batch that stays on the device."""

from __future__ import annotations

from labkit.data import DataSet
from labkit.models import Network
from workbook.trials.trial import Trial
from workbook.workloads._own import OF_OWN, OwnWorkload

RULES = OF_OWN


def build(trial: Trial, data: DataSet | None, network: Network) -> OwnWorkload:
    """Return the training of `network` by a trial. Raise Unsupported for a network that cannot be trained."""
    return OwnWorkload(trial, network, training=True)
