"""Pictures against the mini-batch: both utilisations, the counters beside them, and the time of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, log_axis, no_result, panels, points, sizes_axis, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number, percent
from labkit.analysis.speed import NOTHING
from labkit.analysis.studies.gan.seen import named, of, plain, series_of
from labkit.analysis.studies.gan.utilisations import ACTIVITIES, launches_a_step, meanings
from labkit.analysis.studies.profile.limits import STANDS_STILL
from labkit.analysis.table import Text
from labkit.registry import METRICS
from labkit.results.from_trace import trace_of
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

FULL = 103.0  # percent: the end of an axis of shares
LINES = {"eager": "-", "graph": "--"}


def utilisation(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """The paper's first picture: time in which the device computes against the mini-batch, beside its own counter."""
    return _against_batch(
        results,
        trials,
        ("compute_utilisation", "sm_activity"),
        name="gan-utilisation",
        caption="Share of the time in which the device computes, against the mini-batch.",
        alt="the share of the time in which the device computes",
    )


def arithmetic(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """The paper's second picture: FP32 utilisation against the mini-batch, beside the pipes' own counters."""
    return _against_batch(
        results,
        trials,
        ("fp32_utilisation", "fp32_activity", "tensor_activity"),
        name="gan-arithmetic",
        caption="How much of its arithmetic the device does, against the mini-batch.",
        alt="FP32 utilisation and the activity of pipes",
    )


def step_time(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Time of an iteration against the mini-batch, and what the smallest one waits for."""
    return _against_batch(
        results,
        trials,
        ("step_s",),
        name="gan-step",
        caption=f"Time of an iteration against the mini-batch.{_bound_by_launches(results, trials)}",
        alt="the time of an iteration",
        log=True,
    )


def _bound_by_launches(results: Results, trials: Sequence[Trial]) -> str:
    """Said where the smallest plain mini-batch waits for launches as long as 09's rule asks; a CPU launches nothing."""
    waiting = [(trial, found) for trial in plain(trials) if (found := of(results, trial, "launch_gap_share"))]
    if not waiting or results.profile.device.kind == "cpu":
        return ""
    trial, share = min(waiting, key=lambda pair: pair[0].batch)
    if share.point < STANDS_STILL:
        return ""
    return f" At {named(trial, trials)}, the host bounds it: {_by_the_host(results, trial, share.point)}."


def _by_the_host(results: Results, trial: Trial, waiting: float) -> str:
    """The time of an iteration, what its kernels run for, and what of the host's time CUDA's calls take in a trace."""
    said = f"the device waits for launches for {percent(waiting)} of the time"
    traces = [trace for record in results.ok(trial) if (trace := trace_of(record))]
    step, busy = of(results, trial, "step_s"), of(results, trial, "busy_step_s")
    launches = launches_a_step(results, trial)
    calls_s = sum(one.seconds for trace in traces for one in trace.calls.values())
    if not step or not busy or not launches:
        return said
    elapsed_s = sum(trace.elapsed_s for trace in traces)
    return (
        f"{said}. It takes {number(step.point * 1e3)} ms for {launches:,.0f} launches of kernels that run for "
        f"{number(busy.point * 1e3)} ms. Under the profiler all calls of CUDA take "
        f"{percent(calls_s / elapsed_s)} of the host's time, and PyTorch and Python the rest"
    )


def _against_batch(
    results: Results,
    trials: Sequence[Trial],
    metrics: Sequence[str],
    *,
    name: str,
    caption: str,
    alt: str,
    log: bool = False,
) -> Figure | Text:
    """A panel a metric that some trial has, a line a way to train."""
    if not trials:
        return NOTHING
    data = _data(results, trials, metrics)
    shown = [metric for metric in metrics if data.loc[data["metric"] == metric, "value"].notna().any()]
    if not shown:
        labels = listing([METRICS[metric].label for metric in metrics])
        return Text(f"No trial says anything of this, so there is no picture: {labels}.")
    idle = [metric for metric in shown if metric == "tensor_activity" and _all_zero(data, metric)]
    shown = [metric for metric in shown if metric not in idle]
    data = data[data["metric"].isin(shown)]
    kinds = list(dict.fromkeys(data["training"]))
    top = _top(data)

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(shown), min(len(shown), 3), sharex=True)
        for axes, metric in zip(grid, shown, strict=True):
            about = METRICS[metric]
            for place, kind in enumerate(kinds):
                one = data[(data["metric"] == metric) & (data["training"] == kind)].sort_values("batch")
                colour, marker = theme.palette[place % len(theme.palette)], MARKERS[place % len(MARKERS)]
                scaled = one.assign(**{end: one[end].astype(float) * about.scale for end in ("value", "low", "high")})
                several = one["value"].notna().sum() > 2  # two points are no course
                line = LINES[str(one["engine"].iloc[0])] if several else "none"
                points(axes, list(one["batch"]), scaled, colour=colour, marker=marker, line=line, label=kind)
                no_result(axes, list(one["batch"][one["failed"].notna()]), colour)
            sizes_axis(axes, list(data["batch"]), "mini-batch")
            axes.set_ylabel(f"{about.unit}{' (log scale)' if log else ''}")
            axes.set_title(about.label, fontsize=8.5, color=theme.ink)
            tidy(axes, theme, grid="y")
            if log:
                log_axis(axes, "y")
            else:
                axes.set_ylim(0, top if about.unit == "%" else None)
        legend_above(figure, grid, ncols=4, order=kinds)

    lost = engines.failures_sentence(results, trials)
    on_cpu = results.profile.device.kind == "cpu"  # the table says once that it has no such counters
    said = [metric for metric in metrics if metric not in idle and not (on_cpu and metric in ACTIVITIES)]
    told = f" {words}" if (words := meanings(results, trials, said)) else ""
    told += " Tensor pipes did nothing in any trial." if idle else ""
    printed = data.rename(columns={"value": "value (SI)"}).drop(columns=["engine"])
    return Figure(
        name=name,
        draw=draw,
        again=results.again,
        caption=f"{caption}{told}{lost} {engines.conditions(results, list(trials))}. Bars: 95 % interval.",
        alt=f"Line plots of {alt} against the mini-batch, a line each for {listing(kinds)}. "
        f"{_extremes(data, shown[0])}",
        data=printed.drop(columns=["failed"] if printed["failed"].isna().all() else []),
        size_in=(8.0, 3.6),
    )


def _data(results: Results, trials: Sequence[Trial], metrics: Sequence[str]) -> pd.DataFrame:
    rows = [
        {
            "metric": metric,
            "training": series_of(trial, trials),
            "engine": trial.engine,
            "batch": trial.batch,
            **engines.ends(of(results, trial, metric)),
            "failed": engines.failure(results, trial),
        }
        for metric in metrics
        for trial in trials
    ]
    return pd.DataFrame(rows)


def _all_zero(data: pd.DataFrame, metric: str) -> bool:
    return bool((data.loc[data["metric"] == metric, "value"].dropna().astype(float) == 0).all())


def _top(data: pd.DataFrame) -> float:
    """The upper end of every panel in percent: 100, or what is beyond it."""
    ends = data[["value", "high"]].astype(float).max(axis=None)
    return max(FULL, 1.03 * float(ends) * 100)


def _extremes(data: pd.DataFrame, metric: str) -> str:
    about, known = METRICS[metric], data[(data["metric"] == metric) & data["value"].notna()]
    low, high = (known.loc[known["value"].astype(float).agg(which)] for which in ("idxmin", "idxmax"))
    said = [
        f"{number(row['value'] * about.scale)} {about.unit} ({row['training']}, mini-batch {row['batch']:,})"
        for row in (low, high)
    ]
    return f"From {said[0]} to {said[1]}." if said[0] != said[1] else f"All: {said[0]}."
