"""How much of an eager loop's variation the launch rate beside its blocks explains.

Bursts of tiny operations between the timed blocks measure how fast the host launches kernels at that moment. If
launches alone limited a loop, its throughput would vary in proportion to their rate.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.results.from_result import NO_BURSTS

LEAST = 3  # points, and hosts between hosts: fewer decide nothing
TINY = 1e-18  # sum of squares of logs that is rounding alone
TOO_FEW = "fewer than three runs or machines"
_CONFIGURATION = ["profile", "scale", "protocol", "study", "key_hash"]
# Rate -> the same rate over its mean of the configuration.
RELATIVE = {"images_per_s": "relative_images_per_s", "launch_rate_beside": "relative_launch_rate"}


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `frame` with a launch rate beside the blocks, and both rates relative to their means.

    `frame` is `Results.frame(hosts="all")`. `relative_images_per_s` and `relative_launch_rate` are the rates over the
    configuration's geometric mean, in which every host has equal weight. A configuration with a single row is left out.
    Without rows, `attrs["reason"]` says why.
    """
    rows = frame.dropna(subset=list(RELATIVE)).reset_index(drop=True)
    relative = {}
    for rate, name in RELATIVE.items():
        logs = np.log(rows[rate]).to_frame("log").join(rows[[*_CONFIGURATION, "host"]])
        of_hosts = logs.groupby([*_CONFIGURATION, "host"], sort=False)["log"].mean()
        means = of_hosts.groupby(_CONFIGURATION, sort=False).mean().rename("mean")
        relative[name] = np.exp(logs["log"] - logs.join(means, on=_CONFIGURATION)["mean"])
    found = rows.assign(**relative)[rows.groupby(_CONFIGURATION)["host"].transform("size") > 1]
    found.attrs = dict(frame.attrs) | ({"reason": NO_BURSTS if rows.empty else TOO_FEW} if found.empty else {})
    return found


def explained(points: pd.DataFrame) -> pd.DataFrame:
    """Return the share of the variance of log throughput that the log launch rate explains, as `value`.

    The row "within" compares the runs of a configuration on a host, the row "between" its means on several hosts. Each
    is the R² of a line through values centred on their group, and `slope` is the line's: 1 if both rates are
    proportional. `points` and `hosts` are the numbers behind them. With fewer than three points, or between fewer than
    three hosts, both are NaN with a `reason`.
    """
    logs = np.log(points[list(RELATIVE.values())]).join(points[[*_CONFIGURATION, "host"]])
    of_host = [*_CONFIGURATION, "host"]
    means = logs.groupby(of_host, sort=False).mean().reset_index()
    within, between = _line(logs, of_host, 1), _line(means, _CONFIGURATION, LEAST)
    rows = [{"level": "within", **within}, {"level": "between", **between}]
    found = pd.DataFrame(rows).assign(low=float("nan"), high=float("nan"))  # the columns of an estimate
    return found.assign(reason=points.attrs["reason"]) if points.empty and "reason" in points.attrs else found


def _line(logs: pd.DataFrame, groups: list[str], least_hosts: int) -> dict[str, float | int | str]:
    """Return the R² and the slope of a line through the logs centred in each of `groups` with several rows."""
    several = logs[logs.groupby(groups)["host"].transform("size") > 1] if len(logs) else logs
    numbers: dict[str, float | int | str] = {"points": len(several), "hosts": several["host"].nunique()}
    nothing = {"value": float("nan"), "slope": float("nan"), **numbers}
    if len(several) < LEAST or several["host"].nunique() < least_hosts:
        return {**nothing, "reason": TOO_FEW}
    columns = list(RELATIVE.values())
    centred = several[columns] - several.groupby(groups)[columns].transform("mean")
    y, x = (centred[name].to_numpy() for name in columns)
    if min(x @ x, y @ y) < TINY:
        return {**nothing, "reason": "the rates do not vary"}
    return {"value": float((x @ y) ** 2 / (x @ x) / (y @ y)), "slope": float(x @ y / (x @ x)), **numbers, "reason": ""}
