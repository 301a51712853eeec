"""Rules of training runs: their progress after each epoch."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.results import estimate
from labkit.results.columns import WHAT_RAN


def progress(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return `Results.epochs()` with the `updates` and the `seconds` of training up to the end of each epoch.

    Validation is not counted. Seconds are means over runs, so that the runs of a configuration share their positions.
    """
    of_run = epochs.groupby("record", sort=False)
    summed = epochs.assign(updates=of_run["steps"].cumsum(), seconds=of_run["train_s"].cumsum())
    same_place = [*(name for name in WHAT_RAN if name in epochs), "epoch"]
    return summed.assign(seconds=summed.groupby(same_place, dropna=False)["seconds"].transform("mean"))


def curve(epochs: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Return a metric after each epoch per group of `by`: mean over seeds with 95 % interval, and mean `seconds`.

    `epochs` is `Results.epochs()`. Raise UserError as `estimate` does.
    """
    ended, keys = progress(epochs), [*by, "epoch"]
    return estimate(ended, metric, keys).merge(ended.groupby(keys, as_index=False)["seconds"].mean(), on=keys)
