"""Published utilisation and power beside this machine's, polled as the papers polled them."""

from __future__ import annotations

import math

import pandas as pd

from labkit.analysis.format import number, percent, quantity
from labkit.analysis.observations import Spread, spread
from labkit.analysis.results import Results
from labkit.analysis.table import Table, Text
from labkit.papers import Paper, PublishedTable
from labkit.profile import Profile, load_profile


def utilisation(results: Results, papers: list[Paper], model: str) -> list[Table | Text]:
    """The published utilisation of a model beside this machine's, polled as the paper polled it."""
    found: list[Table | Text] = []
    for paper in papers:
        printed = {device.profile: device.printed for device in paper.devices}
        for table in paper.tables:
            if table.study != results.study.id or table.metric != "utilisation" or table.model != model:
                continue
            frame = pd.DataFrame(
                {"": list(table.rows)}
                | {
                    printed.get(column, column): [f"{value:.4g} {table.unit}" for value in values]
                    for column, values in zip(table.columns, zip(*table.rows.values(), strict=True), strict=True)
                }
            )
            for trial in results.trials(workload="train", model=model):
                polled = spread(results, trial, "utilisation", "polled")
                here = {"min": polled.low, "mean": polled.mean, "max": polled.high} if polled else {}
                frame[f"here, batch {trial.batch}"] = [percent(here.get(row), 4) for row in table.rows]
            found.append(
                Table(
                    frame,
                    f"Utilisation while training {model}: '{paper.citation.title}' ({table.where}; {table.note}) and "
                    f"this machine, polled in the same way. The paper: {paper.setup.framework} on {paper.setup.data}. "
                    f"Here: {results.describe()}.",
                )
            )
    return found


def power(results: Results, papers: list[Paper], model: str) -> list[Table | Text]:
    """The published power of a model beside this machine's, polled once a second as the paper polled it."""
    found: list[Table | Text] = []
    for paper in papers:
        for table in paper.tables:
            if table.metric == "power_w" and table.model == model and table.workload == "train":
                found.append(_power_beside(results, paper, table, model))
    return found or [Text(f"No paper prints the power of {model}.")]


def _power_beside(results: Results, paper: Paper, table: PublishedTable, model: str) -> Table:
    printed = {device.profile: device.printed for device in paper.devices}
    columns: dict[str, list[str]] = {"": [*table.rows, "board limit", "mean of the limit", "sensor's systematic error"]}
    for column, values in zip(table.columns, zip(*table.rows.values(), strict=True), strict=True):
        profile = load_profile(column)
        mean = dict(zip(table.rows, values, strict=True)).get("mean")
        columns[printed.get(column, column)] = [f"{value:.4g} W" for value in values] + _limit_rows(profile, mean)
    for trial in results.trials(workload="train", model=model):
        polled = spread(results, trial, "power_smi_w", "polled")
        idle = spread(results, trial, "power_w", "unattached")
        here = _here(polled, idle)
        shown = [quantity(here.get(row), "power_w", 4) for row in table.rows]
        columns[f"here, batch {trial.batch}"] = shown + _limit_rows(results.profile, here.get("mean"))
    return Table(
        pd.DataFrame(columns),
        f"Power while training {model}: '{paper.citation.title}' ({table.where}; {table.note}) and this machine, "
        f"polled once a second in the same way over the timed part; idle here: no process attached. The paper trained "
        f"with {paper.setup.framework} on {paper.setup.data}. Devices differ by their sensors' systematic error too. "
        f"Here: {results.describe()}.",
    )


def _here(polled: Spread | None, idle: Spread | None) -> dict[str, float]:
    found = {"min": polled.low, "mean": polled.mean, "max": polled.high} if polled else {}
    return found | ({"idle": idle.mean} if idle else {})


def _limit_rows(profile: Profile, mean_w: float | None) -> list[str]:
    limit, error = profile.device.board_power_w, profile.sensor_error.get("power_w")
    share = percent(mean_w / limit.value, 3) if limit and mean_w is not None and not math.isnan(mean_w) else "–"
    return [f"{number(limit.value)} W" if limit else "–", share, f"± {percent(error.value)}" if error else "not stated"]
