"""Rules of training runs: how far they are after each epoch."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.results import estimate
from labkit.results.columns import WHAT_RAN


def progress(epochs: pd.DataFrame) -> pd.DataFrame:
    """`Results.epochs()` with the `updates` and the `seconds` of training up to the end of each epoch.

    Validation is not counted. Seconds are means over runs, so that the runs of a configuration share their places.
    """
    of_run = epochs.groupby("record", sort=False)
    told = epochs.assign(updates=of_run["steps"].cumsum(), seconds=of_run["train_s"].cumsum())
    same_place = [*(name for name in WHAT_RAN if name in epochs), "epoch"]
    return told.assign(seconds=told.groupby(same_place, dropna=False)["seconds"].transform("mean"))


def curve(epochs: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """A metric after each epoch, per group of `by`: its mean over seeds with the 95 % interval, and mean `seconds`.

    `epochs` is `Results.epochs()`. UserError as `estimate` raises it.
    """
    ended, keys = progress(epochs), [*by, "epoch"]
    return estimate(ended, metric, keys).merge(ended.groupby(keys, as_index=False)["seconds"].mean(), on=keys)
