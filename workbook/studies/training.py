"""Rules of the training study: how busy the processor was, and whether the network learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from workbook.results import estimate
from workbook.results.columns import QUANTITY

# The metrics of how busy a processor is, by kind of device: metric -> its name in a figure.
COUNTERS = {
    "cuda": {"utilisation": "utilisation", "sm_activity": "SM activity"},
    "cpu": {"cpu_utilisation": "CPU utilisation"},
}


def with_values(frame: pd.DataFrame, metrics: Mapping[str, str]) -> dict[str, str]:
    """Return the `metrics` (heading -> column) that have values in a table of results; all if none has.

    >>> frame = pd.DataFrame({"sm_activity": [float("nan")], "cpu_utilisation": [0.9]})
    >>> with_values(frame, {"SM activity": "sm_activity", "CPU": "cpu_utilisation"})
    {'CPU': 'cpu_utilisation'}
    """
    return {name: metric for name, metric in metrics.items() if frame[metric].notna().any()} or dict(metrics)


def busy(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the share of time in which the processor worked, by each of its `COUNTERS`, per group of `by`.

    `frame` is a table of results. Columns: `by`, `counter`, and `value`, `low`, `high` in percent.
    """
    kinds = {kind: frame[frame["device"] == kind] for kind in COUNTERS}
    shares = [
        estimate(kinds[kind], metric, by).assign(counter=counter)
        for kind, counters in COUNTERS.items()
        for metric, counter in counters.items()
    ]
    rows = pd.concat(shares, ignore_index=True).drop(columns=QUANTITY)  # of several metrics, and in percent
    return rows.assign(**{end: 100 * rows[end] for end in ("value", "low", "high")})


def losses(blocks: pd.DataFrame, classes: int, by: Sequence[str]) -> pd.DataFrame:
    """Return the loss of timed training per group of `by`: of the `first` and `last` block, and of `guessing`.

    `blocks` is `Results.blocks()`. Losses are means over runs; `images` is how many images a run saw in its timed
    blocks. Guessing among `classes` has the loss ln(classes).
    """
    ordered = blocks.dropna(subset=["loss"]).sort_values("block")
    ordered = ordered.assign(images=ordered["steps"] * ordered["batch"])
    of_run = ordered.groupby([*by, "record"])
    ends = of_run.agg(images=("images", "sum"), first=("loss", "first"), last=("loss", "last"))
    return ends.groupby(list(by)).mean().reset_index().assign(guessing=np.log(classes))


DEVICE_PART, HOST_PART = "a kernel runs", "the device waits for the host"


def device_and_host(trained: pd.DataFrame) -> pd.DataFrame:
    """Return each step as two rows: `part` is `DEVICE_PART` or `HOST_PART`, and `step_s` its seconds.

    Only rows with a trace and a time count. Kernels of several streams may fill more than a step: the host's part is 0.
    """
    traced = trained.dropna(subset=["busy_step_s", "step_s"])
    busy_s = traced[["busy_step_s", "step_s"]].min(axis=1)
    device = traced.assign(part=DEVICE_PART, step_s=busy_s)
    return pd.concat([device, traced.assign(part=HOST_PART, step_s=traced["step_s"] - busy_s)], ignore_index=True)
