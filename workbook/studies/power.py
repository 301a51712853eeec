"""Rules of the power study."""

from __future__ import annotations

import math

import pandas as pd

from workbook.show.frames import phrases
from workbook.studies.planner import Planner, Sweep
from workbook.trials import recipes
from workbook.trials.trial import SUSTAINED_WINDOWS, Trial
from workbook.words import NAN

_MINUTE = ["model", "image_px", "precision"]
NO_MASTERS = {"optimizer": "sgd_fused"}  # only BF16 weights have FP32 masters
EDGE_S = 15  # the first and the last seconds of a sustained training


def sustained(lab: Planner) -> list[Trial]:
    """Return optimised trainings of a minute, most likely at the power limit; none on a device without one.

    The precisions are `sustained` of the sweep, the networks and their images are `large` of the training study.
    """
    sweep: Sweep = lab.profile.sweep("04_power", lab.scale)
    large: Sweep = lab.profile.sweep("01_training", lab.scale)
    if lab.profile.device.board_power_w is None:
        return []
    about = {"workload": "train", "model": large["large"], "image_px": large["large_px"], "batch": large["large_batch"]}
    about |= {**recipes.COMPILED, "energy_windows": SUSTAINED_WINDOWS}
    modes = [{"precision": name} | ({} if name == "bf16" else NO_MASTERS) for name in sweep["sustained"]]
    return [trial for mode in modes for trial in lab.trials(**about | mode)]


def last_over_first(minute: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """Return images/s of the last 15 s over that of the first 15 s (`value`), of each sustained training.

    `minute` has rows of `Results.frame()`, `blocks` is `Results.blocks()`.
    """
    timed = blocks.assign(seconds=blocks["step_s"] * blocks["steps"])
    ends_s = (timed["start_s"] + timed["seconds"]).groupby(timed["record"]).transform("max")
    sums = [
        timed[edge].groupby("record")[["steps", "seconds"]].sum()
        for edge in (timed["start_s"] >= ends_s - EDGE_S, timed["start_s"] < EDGE_S)
    ]
    last, first = (sum_of["steps"] / sum_of["seconds"] for sum_of in sums)
    shares = minute.assign(value=(last / first).reindex(minute["record"]).to_numpy()).groupby(_MINUTE, as_index=False)
    return shares["value"].mean().assign(low=NAN, high=NAN)


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
    watts = frame["power_w"] / frame["power_fraction"]
    watts = watts[watts.between(0, math.inf, inclusive="neither")]  # a reading of 0 W gives no limit
    return pd.DataFrame({"value": [watts.median()], "label": ["limit of the board"]}).dropna()


def over_time(drawn: pd.DataFrame, series: pd.DataFrame) -> pd.DataFrame:
    """Return the power of one pass per `load` and `mode` (`time_s`, `value`), from 15 s before the timed blocks.

    `series` is `Results.series()`. Earlier readings are from building and compiling.
    """
    first = drawn[(drawn["pass_number"] == drawn["pass_number"].min()) & (drawn["workload"] == "train")]
    watts = series[(series["metric"] == "power_w") & (series["time_s"] >= -15)]
    return first[["record", "load", "mode"]].merge(watts[["record", "time_s", "value"]], on="record")
