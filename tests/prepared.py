"""A trial's workload in this process, made ready as a worker makes it."""

from __future__ import annotations

from typing import Any

from labkit.data import DataSet
from labkit.trial import Trial
from labkit.workloads import Prepared, build_workload


def prepared(trial: Trial, data: DataSet) -> Any:
    """Its preparations are done, its first step is not."""
    workload = build_workload(trial, data)
    assert isinstance(workload, Prepared)
    for _, prepare in workload.preparations():
        prepare()
    return workload


def checked(trial: Trial, data: DataSet) -> Any:
    """It has passed its gate too."""
    workload = prepared(trial, data)
    workload.check()
    return workload


def predicting(data: DataSet, **fields: Any) -> Any:
    """A prepared prediction of this data."""
    return prepared(Trial(workload="infer", data=data.name, data_checksum=data.checksum, **fields), data)
