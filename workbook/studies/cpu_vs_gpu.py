"""Rules of the comparison of CPU and GPU: the baseline and the fastest configuration of each, threads."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from workbook.show.frames import phrases, sorted_rows
from workbook.studies import sweeps
from workbook.studies.sweeps import OPTIMISED
from workbook.trials.trial import OF_NETWORKS
from workbook.words import STRICT

_ALIKE = ["workload", "image_px", "batch"]  # equal on CPU and GPU, besides the network


def networks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of networks in the order of a page (training first, simplest mode first), with two more columns.

    `setting` is equal on CPU and GPU: "training, 224 px, batch 32". `configuration` is the execution mode with
    precision and, if set, threads or several GPUs: "OpenVINO, BF16", "strict FP32, 8 threads".
    """
    rows = frame[frame["workload"].isin(OF_NETWORKS)].sort_values("workload", ascending=False, kind="stable")
    rows = sorted_rows(rows.sort_values("device", kind="stable"), ["mode", "precision", "threads", "devices"])
    unusual = rows.assign(threads=rows["threads"].replace(0, None), devices=rows["devices"].replace(1, None))
    unusual["precision"] = rows["precision"].mask(rows["mode"] == STRICT)  # its name has it
    named = phrases(unusual, ["mode", "precision", "threads", "devices"])
    return rows.assign(setting=phrases(rows, _ALIKE), configuration=named)


def sides(rows: pd.DataFrame) -> pd.DataFrame:
    """Return strict FP32 and the fastest configuration of each processor; `side` is `STRICT` or "optimised".

    Trainings on several GPUs are left out: a side is one processor. `rows` is from `networks`. The fastest is chosen
    among all configurations that ran in a setting, including strict FP32. If all but that failed, it is a
    failed one; if no other was planned, there is none.
    """
    by = ["model", "setting", "device"]
    rows = rows[rows["devices"] == 1]
    is_baseline = (rows["mode"] == STRICT) & (rows["threads"] == 0)
    baseline, others = rows[is_baseline], rows[~is_baseline]
    beaten = baseline.merge(others.dropna(subset=["images_per_s"])[by].drop_duplicates())
    fastest = sweeps.fastest(pd.concat([others, beaten]), by, ["configuration"])
    return pd.concat([baseline.assign(side=STRICT), fastest.assign(side=OPTIMISED)], ignore_index=True)


def linear(rates: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return linear scaling from the fewest threads of each group of `by`: columns `by`, `threads`, `value` (images/s).

    `rates` has these columns, as `estimate` returns them.

    >>> rates = pd.DataFrame({"workload": "train", "threads": [1, 2, 4], "value": [10.0, 19.0, 30.0]})
    >>> linear(rates, ["workload"])["value"].tolist()
    [10.0, 20.0, 40.0]
    """
    columns = [*by, "threads", "value"]
    fewest = rates.sort_values("threads").drop_duplicates(by)[columns]
    pairs = rates[columns].merge(fewest, on=list(by), suffixes=("", "_fewest"))
    return pairs.assign(value=pairs["value_fewest"] * pairs["threads"] / pairs["threads_fewest"])[columns]
