"""Training runs that compare batch sizes at equal epochs, equal updates and equal seconds.

Each run is a complete training: its learning rate rises and falls within its own epochs. A larger batch makes fewer
updates per epoch, so it also runs for several times the epochs. Its learning rate is the smallest batch's (`fixed`), or
grows with the batch (`scaled`; Goyal et al. 2017, arXiv:1706.02677).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from workbook.results.columns import RECORDS
from workbook.results.estimates import EQUAL
from workbook.studies.planner import Planner, Sweep
from workbook.studies.values import told
from workbook.trials.trial import Trial
from workbook.words import NOT_MEASURED, label

FIXED, SCALED = "fixed", "scaled"
EPOCHS, UPDATES, SECONDS = "epochs", "updates", "seconds"
_RUN = [*RECORDS, *EQUAL, "pass_number", "planned_passes"]


def trials(lab: Planner, sweep: Sweep, recipe: dict[str, Any]) -> list[Trial]:
    """Return the runs of a sweep: `run_batch` at the fixed and the scaled learning rate.

    Each batch runs for `epochs` times those of `fixed_budgets` and `scaled_budgets` that do not exceed the updates of
    the smallest batch. The smallest batch also runs for twice as many epochs, so that its accuracy has a course too.
    """
    smallest = min(sweep["run_batch"], default=0)
    about = {**recipe, "schedule": "one_cycle", "model": sweep["run_model"], "data": sweep["run_data"]}
    planned: list[Trial] = []
    for batch in sweep["run_batch"]:
        times = batch / smallest
        for budgets, growth in ((sweep["fixed_budgets"], 1.0), (sweep["scaled_budgets"], times)):
            epochs = [sweep["epochs"] * budget for budget in budgets if budget <= max(times, 2)]
            planned += lab.trials(**about, batch=batch, epochs=epochs, learning_rate=sweep["learning_rate"] * growth)
    return list(dict.fromkeys(planned))


def described(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with `rate`, `updates` and `seconds` of training, the smallest batch at both rates.

    `runs` are rows of `Results.frame()` with epochs, and `epochs` is `Results.epochs()`. Validation takes no seconds.
    A rate that is neither fixed nor scaled is called by its number.
    """
    totals = epochs.groupby("record")[["steps", "train_s"]].sum()
    of_run = {"updates": "steps", "seconds": "train_s"}
    ended = runs.assign(**{name: runs["record"].map(totals[sum_]).astype(float) for name, sum_ in of_run.items()})
    smallest = ended["batch"] == ended["batch"].min()
    rate, times = ended["learning_rate"], ended["batch"] / ended["batch"].min()
    fixed = rate[smallest].min()
    names = rate.map("{:g}".format)
    ended["rate"] = names.mask(np.isclose(rate, fixed * times), SCALED).mask(np.isclose(rate, fixed), FIXED)
    smallest &= ended["rate"] == FIXED
    return pd.concat([ended, ended[smallest].assign(rate=SCALED)], ignore_index=True)


def base(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the smallest batch with its fewest epochs, to which the others are compared."""
    smallest = runs[runs["batch"] == runs["batch"].min()]
    return smallest[smallest[EPOCHS] == smallest[EPOCHS].min()]


def equalled(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `top1` of each batch, rate and pass where it equals `base` in epochs, updates and seconds.

    `runs` is a table of `described`; `equal` names what is equal. Between the seconds of two runs of the same batch,
    rate and pass, accuracy is interpolated on the logarithm of the seconds. Beyond the shortest and longest run it is
    missing. Updates are equal within 2 %, because the last batch of an epoch may be partial.
    """
    of_base = base(runs)
    means = of_base[[EPOCHS, UPDATES, SECONDS]].mean()
    parts = [
        runs[runs[EPOCHS] == means[EPOCHS]].assign(equal=EPOCHS),
        runs[(runs[UPDATES] / means[UPDATES] - 1).abs() < 0.02].assign(equal=UPDATES),
    ]
    rows = []
    measured = runs.dropna(subset=["top1", SECONDS])
    for key, group in measured.groupby(["batch", "rate", *_RUN], sort=False, dropna=False):
        group = group.sort_values(SECONDS)
        top1 = np.interp(np.log(means[SECONDS]), np.log(group[SECONDS]), group["top1"], left=np.nan, right=np.nan)
        own = group.loc[group.index.intersection(of_base.index), "top1"]
        rows.append((*key, next(iter(own), top1)))
    columns = ["batch", "rate", *_RUN, "top1"]
    parts.append(pd.DataFrame(rows, columns=columns).assign(equal=SECONDS))
    return pd.concat([part[[*columns, "equal"]] for part in parts], ignore_index=True)


def accuracies(ends: pd.DataFrame, equal: str, rate: str) -> str:
    """Return the accuracy of each batch for a sentence; "not measured" if fewer than two have one.

    `ends` is a table of `estimate` of the rows of `equalled`.

    >>> ends = pd.DataFrame({"equal": "epochs", "rate": "fixed", "batch": [64, 256], "value": [0.53, 0.12],
    ...     "low": [0.52, 0.11], "high": [0.54, 0.13]})
    >>> accuracies(ends, "epochs", "fixed"), accuracies(ends[:1], "epochs", "fixed")
    ('53.0 % at 64, 12.0 % at 256', 'not measured')
    """
    known = ends[(ends["equal"] == equal) & (ends["rate"] == rate)].dropna(subset=["value"])
    texts = [f"{told(known, '%', scale=100, batch=size)} at {label('batch', size)}" for size in sorted(known["batch"])]
    return ", ".join(texts) if len(texts) > 1 else NOT_MEASURED
