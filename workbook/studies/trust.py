"""Checks on the numbers of a study: failures, missing metrics, throttled blocks, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from labkit.timing.step import doubts
from workbook.results import Results
from workbook.results.columns import WHAT_RAN
from workbook.show.frames import phrases
from workbook.studies.values import span_of, text_of
from workbook.trials.trial import configuration, without_data
from workbook.words import heading, label


def failures(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the configurations that failed in some pass: the columns that vary, `passes`, `status`, `reason`."""
    failed = frame[frame["status"] != "ok"]
    varying = [name for name in WHAT_RAN if frame[name].nunique(dropna=False) > 1]
    grouped = failed.groupby([*varying, "status", "reason"], sort=False, dropna=False)["pass_number"]
    return grouped.agg(passes=lambda numbers: ", ".join(map(str, sorted(numbers)))).reset_index()


def missing(reasons: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Return the metrics without a value in configurations that ran: `metric`, `processor`, `reason`, `configurations`.

    `reasons` is `Results.reasons()`, with a text per metric. `configurations` is their number.

    >>> rows = pd.DataFrame({"status": "ok", "device": "cpu", "key_hash": ["a", "b"], "power_w": ["", "no sensor"]})
    >>> missing(rows, ["power_w"]).values.tolist()
    [['board power, W', 'CPU', 'no sensor', 1]]
    """
    ran = reasons.loc[reasons["status"] == "ok", ["device", "key_hash", *metrics]]
    long = ran.melt(["device", "key_hash"], var_name="metric", value_name="reason")
    long = long[long["reason"] != ""]
    long = long.assign(metric=long["metric"].map(heading), device=long["device"].map(partial(label, "device")))
    grouped = long.groupby(["metric", "device", "reason"], sort=False)["key_hash"]
    return grouped.nunique().rename("configurations").reset_index().rename(columns={"device": "processor"})


def throttled(results: Results) -> pd.DataFrame:
    """Return each configuration's timed blocks that ran throttled or below clock.

    The columns are `why`, `blocks`, `of`, `share`, and `sm_clock_mhz`, the mean over the timed part of all runs.
    """
    flags, blocks = results.flags(), results.blocks()
    keys = [name for name in flags.columns if name in WHAT_RAN]
    counted = blocks.groupby(keys, sort=False, dropna=False).size().rename("of").reset_index()
    flagged = flags.drop_duplicates(["record", "block", "why"]).groupby([*keys, "why"], sort=False, dropna=False)
    types = dict.fromkeys(keys, object)  # a column without values in all flagged blocks has another type
    share = flagged.size().rename("blocks").reset_index().astype(types).merge(counted.astype(types), on=keys)
    frame = results.frame().assign(sm_clock_mhz=lambda rows: rows["sm_clock_hz"] / 1e6)
    clock = frame.groupby(keys, sort=False, dropna=False)["sm_clock_mhz"].mean().reset_index().astype(types)
    return share.assign(share=share["blocks"] / share["of"]).merge(clock, on=keys, how="left")


def power_capped(results: Results, rows: pd.DataFrame, by: Sequence[str]) -> str:
    """Return a sentence: the share of timed blocks that the power limit slowed, per group of `by`; empty if none was.

    `rows` are of `Results.frame`, with further columns if `by` asks for them. Groups without timed blocks are left out.
    """
    flags = results.flags()
    capped = flags[flags["why"] == "throttled: power cap"].drop_duplicates(["record", "block"])
    counts = pd.concat(
        [of.groupby("record").size() for of in (results.blocks(), capped)], axis=1, keys=["of", "slowed"]
    )
    counts = counts.reindex(rows["record"]).groupby(phrases(rows, by).to_numpy(), sort=False).sum()
    shares = {name: text_of(100 * slowed / of, "%") for name, of, slowed in counts.itertuples() if slowed}
    others = counts.index[counts["of"].gt(0) & counts["slowed"].eq(0)]
    if shares and len(others):
        shares[others[0] if len(others) == 1 else "others"] = "0 %"
    between, after = ("; ", ": ") if any("," in name for name in shares) else (", ", " ")
    told = between.join(f"{name}{after}{share}" for name, share in shares.items())
    return f" The power limit slowed these shares of timed blocks: {told}." if shares else ""


def summary(results: Results) -> pd.DataFrame:
    """Return the checks of a study in one table: `check`, `result`. A check that the records lack is left out."""
    frame, blocks, flags, checks = results.frame(), results.blocks(), results.flags(), results.checks()
    rows = {}
    if len(frame):
        rows["Runs with a result"] = f"{(frame['status'] == 'ok').sum()} of {len(frame)}"
        beside = sum(records.beside_others for records in results.selected)
        rows["Runs while others used the machine"] = f"{beside} of {len(frame)}"
        timed = [record.blocks for records in results.selected for record in records.records if record.blocks]
        if timed:
            uneven = sum(map(bool, map(doubts, timed)))
            rows["Runs with an unsteady warm-up or uneven blocks"] = f"{uneven} of {len(timed)}"
        rows["Runs per configuration"] = span_of(frame.groupby("key_hash").size())
    planned = {without_data(trial) for trial in results.asked}
    if planned:
        recorded = {configuration(trial) for records in results.selected for trial in records.by_trial}
        rows["Planned configurations without records"] = (
            f"{sum(configuration(trial) not in recorded for trial in planned)} of {len(planned)}"
        )
    if len(checks):
        worst = (checks["difference"] / checks["tolerance"]).max()
        rows["Correctness checks, largest difference"] = f"{worst:.0%} of what is tolerated"
    if len(blocks):
        seconds = blocks["step_s"] * blocks["steps"]
        timed_s = seconds.groupby(blocks["record"]).sum(min_count=1).dropna()
        flagged = len(flags.drop_duplicates(["record", "block"]))
        if len(timed_s):
            rows["Timed part of a run"] = span_of(timed_s, "s", 2)
        rows["Timed blocks throttled or below clock"] = f"{flagged:,} of {len(blocks):,}"
    return pd.DataFrame(rows.items(), columns=["check", "result"])
