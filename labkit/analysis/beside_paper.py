"""Published utilisation and power beside this machine's, polled as the papers polled them."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from labkit.analysis.format import MISSING, number, percent, quantity
from labkit.analysis.observations import Spread, spread
from labkit.analysis.table import Table, Text
from labkit.papers import Paper, PublishedTable
from labkit.profile import Profile, load_profile
from labkit.recipes import is_plain
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial


def utilisation(results: Results, papers: list[Paper], model: str) -> list[Table | Text]:
    """The published utilisation of a model beside this machine's, polled as the paper polled it."""
    found: list[Table | Text] = []
    for paper, table in _tables(papers, "utilisation", model):
        columns: dict[str, list[str]] = {"": list(table.rows)}
        for trial in _loops(results, model):
            here = _extremes(spread(results, trial, "utilisation", "polled"))
            columns[f"here, batch {trial.batch}"] = [percent(here.get(row), 4) for row in table.rows]
        for name, _, values in _published(paper, table):
            columns[name] = [f"{value:.10g} {table.unit}" for value in values.values()]
        caption = (
            f"Utilisation while training {model}: this machine and '{paper.citation.title}' ({table.where}; "
            f"{table.note}), polled about once a second too, here over the timed part only. {_setups(results, paper)}"
        )
        found.append(Table(pd.DataFrame(columns), caption))
    return found or [Text(f"No paper prints the utilisation of {model}.")]


def power(results: Results, papers: list[Paper], model: str) -> list[Table | Text]:
    """The published power of a model beside this machine's, with what the sensors of both may be off by."""
    found: list[Table | Text] = []
    for paper, table in _tables(papers, "power_w", model):
        rows = [*table.rows, "board limit", "mean of the limit", "sensor error", "mean here over it"]
        columns: dict[str, list[str]] = {"": rows}
        here: dict[str, float] = {}
        for trial in _loops(results, model):
            here = _extremes(spread(results, trial, "power_smi_w", "polled"))
            idle = spread(results, trial, "power_w", "unattached")
            here |= {"idle": idle.mean} if idle else {}
            shown = [quantity(here.get(row), "power_w", 4) for row in table.rows]
            columns[f"here, batch {trial.batch}"] = [
                *shown,
                *_limits(results.profile, results.power_limit_w, here.get("mean")),
                MISSING,
            ]
        for name, profile, values in _published(paper, table):
            shown = [f"{value:.10g} {table.unit}" for value in values.values()]
            mean = values.get("mean")
            ratio = _ratio(results.profile, here.get("mean"), profile, mean)
            columns[name] = [*shown, *_limits(profile, profile.power_limit_w, mean), ratio]
        caption = (
            f"Power while training {model}: this machine and '{paper.citation.title}' ({table.where}; {table.note}), "
            f"polled once a second too, here over the timed part only; idle here: no process attached. A ratio "
            f"carries the systematic errors of both sensors; ? is one that no vendor states. {_setups(results, paper)}"
        )
        found.append(Table(pd.DataFrame(columns), caption))
    return found or [Text(f"No paper prints the power of {model}.")]


def _loops(results: Results, model: str) -> list[Trial]:
    """The papers' loop of a model, by ascending batch: the largest is compared."""
    return [trial for trial in results.trials(workload="train", model=model) if is_plain(trial)]


def _tables(papers: list[Paper], metric: str, model: str) -> Iterator[tuple[Paper, PublishedTable]]:
    """The published tables of a metric and model on single devices."""
    for paper in papers:
        for table in paper.tables:
            if (table.metric, table.model, table.workload) == (metric, model, "train"):
                yield paper, table


def _published(paper: Paper, table: PublishedTable) -> Iterator[tuple[str, Profile, dict[str, float]]]:
    """(device as printed, its profile, row -> value as printed) of each column."""
    printed = {device.profile: device.printed.removeprefix("Nvidia ") for device in paper.devices}
    for place, column in enumerate(table.columns):
        values = {row: numbers[place] for row, numbers in table.rows.items()}
        yield printed.get(column, column), load_profile(column), values


def _setups(results: Results, paper: Paper) -> str:
    return f"The paper: {paper.setup.framework} on {paper.setup.data}. Here: {results.describe()}."


def _extremes(polled: Spread | None) -> dict[str, float]:
    return {} if polled is None else {"min": polled.low, "mean": polled.mean, "max": polled.high}


def _limits(profile: Profile, limit: float | None, mean_w: float | None) -> list[str]:
    """The limit of the boards used, the mean as a share of it, and the sensor's systematic error."""
    error = profile.sensor_error.get("power_w")
    share = percent(mean_w / limit, 3) if limit and mean_w is not None else MISSING
    return [
        f"{number(limit)} W" if limit else MISSING,
        share,
        f"± {percent(error.value)}" if error else "± ?",
    ]


def _ratio(here: Profile, here_w: float | None, there: Profile, there_w: float | None) -> str:
    """Mean power here over there, with the systematic error of both sensors as far as it is known."""
    if here_w is None or there_w is None:
        return MISSING
    errors = [profile.sensor_error.get("power_w") for profile in (here, there)]
    known = sum(error.value for error in errors if error)  # systematic errors add up: nothing says that they cancel
    unknown = sum(error is None for error in errors)
    return f"{number(here_w / there_w)}x" + (f" ± {percent(known)}" if known else "") + (" ± ?" if unknown else "")
