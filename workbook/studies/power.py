"""Rules of the power study."""

from __future__ import annotations

import pandas as pd

from workbook.show.frames import phrases


def loads(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the loads, named in the column `load`: trainings at the largest batch, an idle process, a matrix product.

    `frame` is a table of results. The idle process and the matrix product have no execution mode.
    """
    kept = frame[frame["batch"].isna() | (frame["batch"] == frame["batch"].max())]
    trains = kept["workload"] == "train"
    names = phrases(kept, ["model"]).where(trains, phrases(kept, ["workload"]))
    return kept.assign(load=names, mode=kept["mode"].where(trains, ""))


def ranges(drawn: pd.DataFrame, readings: pd.DataFrame) -> pd.DataFrame:
    """Return, per `load` and `mode`, the mean power (`value`) and the lowest and highest reading of all passes.

    These are `low` and `high`, in watts over the timed part. `drawn` is from `loads`, `readings` from `Results`.
    """
    timed = readings[(readings["metric"] == "power_w") & (readings["window"] == "timed")]
    rows = drawn[["record", "load", "mode"]].merge(timed[["record", "mean", "lowest", "highest"]], on="record")
    spread = rows.groupby(["load", "mode"], sort=False)
    return spread.agg(value=("mean", "mean"), low=("lowest", "min"), high=("highest", "max")).reset_index()


def limit(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the limit of the board in watts as a reference for figures (`value`, `label`); no row without a limit."""
    watts = (frame["power_w"] / frame["power_fraction"]).dropna()
    return pd.DataFrame({"value": [watts.median()], "label": ["limit of the board"]}).dropna()


def over_time(drawn: pd.DataFrame, series: pd.DataFrame) -> pd.DataFrame:
    """Return the power of one pass per `load` and `mode` (`time_s`, `value`), from 15 s before the timed blocks.

    `series` is `Results.series()`. Earlier readings are from building and compiling.
    """
    first = drawn[(drawn["pass_number"] == drawn["pass_number"].min()) & (drawn["workload"] == "train")]
    watts = series[(series["metric"] == "power_w") & (series["time_s"] >= -15)]
    return first[["record", "load", "mode"]].merge(watts[["record", "time_s", "value"]], on="record")
