"""The same configurations on several machines of a device file."""

from __future__ import annotations

import pandas as pd

from labkit.errors import UserError
from labkit.results import load
from labkit.results.columns import ASKED_AFTER, WHAT_RAN

HERE, ELSEWHERE = "this page", "other machines"
# The images are the same whoever makes them.
_ALIKE = [name for name in WHAT_RAN if name not in (*ASKED_AFTER, "loader", "data_checksum")]


def same_configurations(frame: pd.DataFrame, profile: str) -> pd.DataFrame:
    """The rows of every study and machine of a device file that ran configurations of `frame`; `machine` says whose.

    The loader may differ: some studies make images on the GPU, others on the host.
    """
    try:
        recorded = load(profile).frame(hosts="all")
    except UserError:  # no study has records yet
        recorded = frame
    same = recorded.merge(frame[_ALIKE].drop_duplicates())
    here = same["host"].isin(frame["host"])
    return same.assign(machine=here.map({True: HERE, False: ELSEWHERE}))


def spread(frame: pd.DataFrame, metric: str, by: list[str]) -> pd.DataFrame:
    """The largest over the smallest mean of the machines, as `value`, per group of `by` with several `machines`."""
    means = frame.groupby([*by, "host"], sort=False)[metric].mean().dropna().groupby(by, sort=False)
    ends = means.agg(value=lambda rates: rates.max() / rates.min(), machines="size").reset_index()
    return ends[ends["machines"] > 1]
