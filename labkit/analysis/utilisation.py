"""How much of the chip is used: what nvidia-smi calls utilisation beside what the units really did."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number, percent
from labkit.analysis.observations import label, mean_interval, spread
from labkit.analysis.speed import conditions, name_of, title
from labkit.analysis.table import Table, Text
from labkit.registry import METRICS
from labkit.results.from_telemetry import missing, why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.sensors import BETWEEN_DEVICES
from labkit.trial import Trial

ACTIVITIES = ("sm_activity", "fp32_activity", "tensor_activity", "dram_activity")
SHARES = ("utilisation", *ACTIVITIES)
DRIVERS_WORD = (
    "Utilisation (mean of all readings, line from the lowest to the highest) says that some kernel ran; the other "
    "marks say what the units did."
)
UNITS_DID = "What the units did in the timed part: means of all readings."


def _on_cpu(results: Results, trials: list[Trial]) -> bool:
    """Whether these trials ran on the CPU, which tells other things than a GPU; without any, what the profile is of."""
    return {trial.device for trial in trials} == {"cpu"} if trials else results.profile.device.kind == "cpu"


def headline(results: Results, trials: list[Trial]) -> Text:
    """What nvidia-smi says, and what was really busy, of the trial where the two differ most."""
    if _on_cpu(results, trials):
        return _cpu_headline(results, trials)
    known = [
        (said.mean - busy.mean, trial)
        for trial in trials
        if (said := spread(results, trial, "utilisation")) and (busy := spread(results, trial, "sm_activity"))
    ]
    if not known:
        reason = why_not(results, "sm_activity")
        return Text(f"What the multiprocessors really did can't be said here: {reason}.")
    trial = max(known, key=lambda pair: pair[0])[1]
    parts = [
        f"{label(metric)} {percent(found.mean)}" for metric in ACTIVITIES if (found := spread(results, trial, metric))
    ]
    said = spread(results, trial, "utilisation")
    assert said is not None
    return Text(
        f"Of {title(trial)} at batch {trial.batch} the driver's utilisation, the share of time in which any kernel "
        f"ran, says {percent(said.mean)}. In the same seconds: {listing(parts)}."
    )


def _cpu_headline(results: Results, trials: list[Trial]) -> Text:
    known = [(trial, found) for trial in trials if (found := spread(results, trial, "cpu_utilisation"))]
    if not known:
        return Text(f"How busy the CPU was can't be said: {why_not(results, 'cpu_utilisation')}.")
    least, most = min(known, key=lambda pair: pair[1].mean), max(known, key=lambda pair: pair[1].mean)
    also = f" and {percent(most[1].mean)} with {name_of(most[0])}" if most[0] != least[0] else ""
    return Text(
        f"All cores together were busy {percent(least[1].mean)} of the time with {name_of(least[0])}{also}: the whole "
        f"machine, whatever ran on it."
    )


def shares_table(results: Results, trials: list[Trial]) -> pd.DataFrame:
    """One row a trial: utilisation as polled once a second (min, mean, max) and the units' activities, as fractions."""
    rows = []
    for trial in trials:
        polled = spread(results, trial, "utilisation", "polled")
        row: dict[str, Any] = {
            "model": title(trial),
            "batch": trial.batch,
            "utilisation min": polled.low if polled else None,
            "utilisation mean": polled.mean if polled else None,
            "utilisation max": polled.high if polled else None,
        }
        for metric in (*ACTIVITIES, "occupancy"):
            found = spread(results, trial, metric)
            row[label(metric)] = found.mean if found else None
        rows.append(row)
    return pd.DataFrame(rows)


def shares(results: Results, trials: list[Trial], of: tuple[str, ...] = SHARES) -> Figure | Text:
    """A row a trial: the driver's utilisation with its range, and beside it what the units did."""
    metrics = [metric for metric in of if any(spread(results, trial, metric) is not None for trial in trials)]
    if not metrics:
        return Text(f"{label(of[0])} is not readable here: {why_not(results, of[0])}.")
    data = _drawn(results, trials, metrics)
    labels = [name_of(trial, trials) for trial in trials]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for place, trial in enumerate(trials):
            for index, metric in enumerate(metrics):
                found = spread(results, trial, metric)
                if found is None:
                    continue
                colour = theme.palette[index % len(theme.palette)]
                if metric == "utilisation":
                    axes.plot([found.low * 100, found.high * 100], [place, place], color=colour, lw=2.2, alpha=0.5)
                axes.plot(found.mean * 100, place, MARKERS[index], color=colour, ms=7.5)
        for index, metric in enumerate(metrics):
            colour = theme.palette[index % len(theme.palette)]
            axes.plot([], [], MARKERS[index], color=colour, ls="none", label=label(metric))
        axes.set_yticks(range(len(trials)), labels)
        axes.invert_yaxis()
        axes.set_xlim(-2, 102)
        axes.set_xlabel("share of the timed part (%)")
        axes.grid(axis="x", color=theme.faint, linewidth=0.6)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=3, fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)

    without = _without(results, trials, of)
    return Figure(
        name="utilisation",
        draw=draw,
        again=results.again,
        caption=f"{DRIVERS_WORD if 'utilisation' in metrics else UNITS_DID}{without} {conditions(results, trials)}.",
        alt=f"Dot plot, one row a configuration, of {listing([label(metric) for metric in metrics])} on a scale from 0 "
        f"to 100 percent.",
        data=data,
        size_in=(8.0, 1.4 + 0.36 * len(trials)),
    )


def shares_summary(results: Results, trials: list[Trial]) -> Table | Text:
    """The same as a table, with the memory used; on a CPU what the host tells."""
    if _on_cpu(results, trials):
        return host_table(results, trials)
    data = shares_table(results, trials)
    if not len(data):
        return Text("Nothing was measured, so nothing can be said of utilisation.")
    ends = zip(*(data[f"utilisation {end}"] for end in ("min", "mean", "max")), strict=True)
    frame = pd.DataFrame(
        {"model": data["model"], "batch": data["batch"], "min / mean / max": [_three(e) for e in ends]}
    )
    for metric in ACTIVITIES:
        short = label(metric).removesuffix(" activity").replace("Tensor-core", "Tensor")
        frame[short] = [percent(None if pd.isna(value) else value, 3) for value in data[label(metric)]]
    memory = METRICS["memory_bytes"]
    used = [spread(results, trial, "memory_bytes") for trial in trials]
    frame["memory (GiB)"] = [found.high * memory.scale if found else None for found in used]
    return Table(
        frame,
        "Lowest, mean and highest utilisation that polling nvidia-smi once a second shows, as the papers did, in "
        "percent; then the mean activity of the units over the timed part. Memory: the most in use on the board, with "
        f"what the context and the framework's reserve take.{_without(results, trials)} {conditions(results, trials)}.",
    )


def _drawn(results: Results, trials: list[Trial], metrics: list[str]) -> pd.DataFrame:
    """The numbers of the figure, in percent: the range of the utilisation, and the mean of every share."""
    rows = []
    for trial in trials:
        row: dict[str, Any] = {"trial": name_of(trial, trials)}
        for metric in metrics:
            found = spread(results, trial, metric)
            if metric == "utilisation":
                row |= {
                    "utilisation, lowest": found and found.low * 100,
                    "utilisation, highest": found and found.high * 100,
                }
            row[f"{label(metric)}, mean"] = found and found.mean * 100
        rows.append(row)
    return pd.DataFrame(rows)


def _without(results: Results, trials: list[Trial], of: tuple[str, ...] = SHARES) -> str:
    """The shares that no trial has, and why."""
    absent = [metric for metric in of if all(spread(results, trial, metric) is None for trial in trials)]
    said = "; ".join(f"{label(metric)} ({why_not(results, metric)})" for metric in absent)
    return f" Not readable here: {said}." if said else ""


def _three(values: tuple[float | None, ...]) -> str | None:
    """`48 / 79 / 92`, in percent."""
    known = [value for value in values if value is not None and not pd.isna(value)]
    return " / ".join(number(value * 100) for value in known) if len(known) == len(values) else None


def host_table(results: Results, trials: list[Trial]) -> Table | Text:
    """What the host itself did: processors, clock, temperature, memory."""
    rows = []
    for trial in trials:
        busy, cores = spread(results, trial, "cpu_utilisation"), mean_interval(results, trial, "cpu_cores_used")
        clock, warm = spread(results, trial, "cpu_clock_hz"), spread(results, trial, "cpu_temperature_c")
        rows.append(
            {
                "trial": name_of(trial, trials),
                "CPU busy min": percent(busy.low if busy else None, 3),
                "CPU busy mean": percent(busy.mean if busy else None, 3),
                "CPU busy max": percent(busy.high if busy else None, 3),
                "cores of the process": cores.point if cores else None,
                "clock (MHz)": clock.mean / 1e6 if clock else None,
                "temperature (°C)": warm.mean if warm else None,
            }
        )
    if not rows:
        return Text("Nothing was measured, so nothing can be said of the host.")
    frame = pd.DataFrame(rows).dropna(axis=1, how="all")
    return Table(
        frame,
        "The host's processors during the timed part: all cores together (also what others ran on this machine), and "
        f"how many cores the measured process itself kept busy. {not_readable(results)} {results.describe()}.",
    )


def not_readable(results: Results) -> str:
    """What this machine cannot tell, with the reasons, as a sentence; between devices only where there are several."""
    by_reason: dict[str, list[str]] = {}
    for (source, metric), reason in sorted(missing(results).items()):
        if metric in BETWEEN_DEVICES and results.boards_used == 1:
            continue
        what = {"*": "everything", "energy_j": "energy counter"}.get(metric, label(metric))
        by_reason.setdefault(reason, []).append(f"{what} ({source})")
    if not by_reason:
        return ""
    return "Not readable here: " + "; ".join(f"{listing(what)}: {reason}" for reason, what in by_reason.items()) + "."


def cores_sentence(results: Results, trials: list[Trial]) -> Text:
    """How many cores of the host the process that fed the device kept busy."""
    known = [(trial, found) for trial in trials if (found := mean_interval(results, trial, "cpu_cores_used"))]
    if not known or _on_cpu(results, trials):
        return Text("")
    least, most = min(known, key=lambda pair: pair[1].point), max(known, key=lambda pair: pair[1].point)
    return Text(
        f"The process that fed the device kept {number(least[1].point)} ({name_of(least[0])}) to "
        f"{number(most[1].point)} cores of the host busy ({name_of(most[0])}), waiting for the device included."
    )
