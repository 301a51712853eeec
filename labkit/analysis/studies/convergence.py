"""Training runs: loss and accuracy over epochs and over seconds, a seed a pass; and what they differ by at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, log_axis, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number, with_interval
from labkit.analysis.speed import title, word
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval, difference_interval, linear_interval, share_interval
from labkit.trial import Trial

NO_RUNS = Text("No training run has a result, so there is no picture of the loss.")
NO_ACCURACY = "accuracies on it are no ImageNet accuracies"
WIDE = 300.0  # the largest loss over the smallest, from which lines are told apart on a logarithmic axis only
COLUMNS = ["run", "seed", "epoch", "seconds", "loss", "top1", "top5", "val_loss"]
TOLD = ("model", "batch", "precision", "engine")  # what a run's name is made of, where runs differ in it


def runs(results: Results) -> list[Trial]:
    """The training trials that trained whole epochs."""
    return engines.in_order([trial for trial in results.trials(workload="train") if trial.epochs])


def run_name(trial: Trial, trials: Sequence[Trial]) -> str:
    """What tells a run apart: `batch 64`, `BF16`."""
    told = [name for name in TOLD if any(getattr(one, name) != getattr(trial, name) for one in trials)]
    return ", ".join(title(trial) if name == "model" else word(trial, name) for name in told) or title(trial)


Naming = Callable[[Trial], str]


def epochs(results: Results, trials: Sequence[Trial], naming: Naming | None = None) -> pd.DataFrame:
    """One row an epoch of a run and seed; `seconds` of training up to its end, validation not counted, where they say
    something (`Trial.has_time`).
    """
    rows, called = [], _naming(trials, naming)
    for trial in trials:
        for record in results.ok(trial):
            if record.epochs is None:
                continue
            ended = np.cumsum([epoch.train_s if trial.has_time else np.nan for epoch in record.epochs.epochs])
            for number_, (epoch, seconds) in enumerate(zip(record.epochs.epochs, ended, strict=True), start=1):
                about = {"run": called(trial), "seed": record.epochs.seed, "epoch": number_}
                scores = {"top1": epoch.top1, "top5": epoch.top5, "val_loss": epoch.val_loss}
                rows.append({**about, "seconds": float(seconds), "loss": epoch.train_loss, **scores})
    return pd.DataFrame(rows, columns=COLUMNS)


def _naming(trials: Sequence[Trial], naming: Naming | None) -> Naming:
    """How runs are called: as asked, else by what tells them apart."""
    return naming or (lambda trial: run_name(trial, trials))


def final(results: Results, trial: Trial, metric: str) -> Interval | None:
    """Loss or accuracy after the last epoch, its arithmetic mean with its interval over seeds."""
    found = list(results.values(trial, metric).values())
    if not found:
        return None
    return share_interval(found) if metric in ("top1", "top5") else linear_interval(found)


def not_finite(results: Results, trial: Trial) -> str:
    """How many seeds ended with a loss that is not finite, for a sentence; empty when none did."""
    ended, finite = len(results.ok(trial)), len(results.values(trial, "loss"))
    return f" ({ended - finite} of {ended} seeds ended not finite and are left out)" if finite < ended else ""


def final_difference(results: Results, over: Trial, under: Trial, metric: str) -> Interval | None:
    """The difference of two runs after the last epoch, formed within each pass (the same seed) first."""
    return difference_interval(results.values(over, metric), results.values(under, metric))


def curves(results: Results, trials: Sequence[Trial], naming: Naming | None = None) -> Figure | Text:
    """Training loss and top-1 against epochs and against seconds: a thin line a seed, the mean thicker.

    `naming` says how runs are called where their fields say it badly.
    """
    data = epochs(results, trials, naming)
    if not len(data):
        return NO_RUNS
    names = list(dict.fromkeys(data["run"]))
    columns = 5 if naming is None else 2  # names of one's own are sentences
    timed = [trial for trial in trials if results.ok(trial) and trial.has_time]
    compared = len(timed) > 1 or len(timed) == len(names)  # one line of several compares nothing
    along_what = {"epoch": "epochs", "seconds": "seconds of training"} if compared else {"epoch": "epochs"}

    def draw(figure: Any, theme: Theme) -> None:
        grid = figure.subplots(2, len(along_what), sharex="col", sharey="row", squeeze=False)
        for row, (column, label, scale) in zip(
            grid, (("loss", "training loss", 1.0), ("top1", "top-1 (%)", 100.0)), strict=True
        ):
            for axes, along in zip(row, along_what, strict=True):
                for index, name in enumerate(names):
                    style = {
                        "color": theme.palette[index % len(theme.palette)],
                        "marker": MARKERS[index % len(MARKERS)],
                    }
                    _lines(axes, data[data["run"] == name], along, column, scale, name, style)
                tidy(axes, theme, grid="y")
            row[0].set_ylabel(label)
        if _spread(data["loss"]) > WIDE:
            for axes in grid[0]:
                log_axis(axes, "y")
        for axes, label in zip(grid[1], along_what.values(), strict=True):
            axes.set_xlabel(label)
        grid[1][0].xaxis.get_major_locator().set_params(integer=True)
        legend_above(figure, grid.ravel(), ncols=columns)

    return Figure(
        name="convergence",
        draw=draw,
        again=results.again,
        caption=f"Training runs: a thin line a seed, the mean thicker. After the last epoch, with the 95 % interval "
        f"over seeds: {ends(results, trials, naming)}.{_seconds_are(trials) if compared else ''}"
        f"{_lost(results, trials, naming)} {_rate(trials)} {engines.conditions(results, list(trials))}; {NO_ACCURACY}.",
        alt=f"{'Four' if compared else 'Two'} line plots: training loss and top-1 accuracy, against "
        f"{listing(list(along_what.values()))}, for {listing(names)}.",
        data=data,
        size_in=(8.0, 5.2),
    )


def _seconds_are(trials: Sequence[Trial]) -> str:
    """Of what the seconds are, and which runs have none."""
    untimed = any(not trial.has_time for trial in trials)
    return f" Seconds are of training only{'; those of stale updates say nothing and are left out' * untimed}."


def _spread(losses: pd.Series) -> float:
    """The largest over the smallest of those that are finite; 1 where there is none, or one that is not positive."""
    known = losses.astype(float)
    known = known[np.isfinite(known)]
    return float(known.max() / known.min()) if len(known) and known.min() > 0 else 1.0


def _lines(
    axes: Any, one: pd.DataFrame, along: str, column: str, scale: float, name: str, style: dict[str, Any]
) -> None:
    for _, seed in one.groupby("seed"):
        axes.plot(seed[along], seed[column].astype(float) * scale, color=style["color"], lw=0.8, alpha=0.5)
    # A mean only of epochs that every seed has reached with a finite value.
    scaled = one.assign(value=one[column].astype(float) * scale)
    mean = scaled.groupby(one["epoch"].to_numpy()).agg(
        at=(along, "mean"), value=("value", "mean"), n=("value", "count")
    )
    whole = mean[mean["n"] == one["seed"].nunique()]
    axes.plot(whole["at"], whole["value"], lw=2.2, ms=4.5, label=name, **style)


def ends(results: Results, trials: Sequence[Trial], naming: Naming | None = None) -> str:
    """`batch 64: loss 2.1 [2.0, 2.2], top-1 40 % [39, 41]; …`."""
    said = []
    for trial in trials:
        loss, top1 = final(results, trial, "loss"), final(results, trial, "top1")
        ended = "a loss that is not finite"
        if loss:
            ended = f"loss {with_interval(loss, 'loss')}{not_finite(results, trial)}"
        if top1:
            said.append(f"{_naming(trials, naming)(trial)}: {ended}, top-1 {with_interval(top1, 'top1')}")
    return "; ".join(said)


def _lost(results: Results, trials: Sequence[Trial], naming: Naming | None = None) -> str:
    """The runs without a result and why, for a caption; empty when all have one."""
    called = _naming(trials, naming)
    said = [f"{called(trial)} ({why})" for trial in trials if (why := engines.failure(results, trial))]
    return f" Without a result: {'; '.join(said)}." if said else ""


def _rate(trials: Sequence[Trial]) -> str:
    """The peak learning rates and schedules of the runs."""
    rates = listing(list(dict.fromkeys(number(trial.learning_rate) for trial in trials)))
    schedules = listing(list(dict.fromkeys(trial.schedule.replace("_", "-") for trial in trials)))
    return f"Learning rate {rates} ({schedules}), {title(trials[0])}."


def _loss(results: Results, trial: Trial) -> str | None:
    said = with_interval(final(results, trial, "loss"), "loss")
    return f"{said or ''}{not_finite(results, trial)}".strip() or None


def table(results: Results, trials: Sequence[Trial], than: Trial | None = None) -> Table | Text:
    """What each run ended with and how long it took; with `than`, the differences to that run."""
    known = [trial for trial in trials if results.ok(trial)]
    if not known:
        return Text("Nor is there a table of where the runs ended.")
    rows = []
    for trial in trials:  # a run without a result is a row too
        row = {
            "run": run_name(trial, trials),
            "epochs": trial.epochs,
            "epoch (s)": with_interval(results.interval(trial, "epoch_s"), "epoch_s", unit=False),
            "loss": _loss(results, trial),
            "top-1 (%)": with_interval(final(results, trial, "top1"), "top1", unit=False),
            "top-5 (%)": with_interval(final(results, trial, "top5"), "top5", unit=False),
            "n": len(results.ok(trial)),
            "no result": engines.status_without_result(results, trial),
        }
        if than is not None:
            for metric, name in (("loss", "loss minus"), ("top1", "top-1 minus")):
                found = final_difference(results, trial, than, metric) if trial != than else None
                column = f"{name} {run_name(than, trials)}"
                row[column] = shown_effect(found, metric, "difference") if found else None
        rows.append(row)
    differences = " Differences are formed within a pass, whose runs have the same seed." if than is not None else ""
    frame = pd.DataFrame(rows, dtype=object)
    return Table(
        engines.concise(frame, ("no result",)),
        f"After the last epoch, means over seeds with 95 % intervals; the training loss is the mean of the last "
        f"epoch's steps.{differences} {_rate(known)} {engines.conditions(results, list(known))}; {NO_ACCURACY}.",
    )
