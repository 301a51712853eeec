"""Training in which the second rank alone finds its steps beyond the gate's tolerances, and no rank's are wrong."""

from __future__ import annotations

from labkit import ranks
from labkit.data import DataSet
from labkit.engines.precision import TOLERANCES
from labkit.trial import Trial
from labkit.workloads import Workload
from labkit.workloads.train import build as build_training


def build(trial: Trial, data: DataSet) -> Workload:
    """The training workload; its gate stands in a process of its own, which ends with the pass."""
    team = ranks.team()
    if team is not None and not team.leads:
        TOLERANCES[trial.precision] = TOLERANCES[trial.precision]._replace(change=-1.0)
    return build_training(trial, data)
