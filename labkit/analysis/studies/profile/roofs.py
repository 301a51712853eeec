"""The roofline with the trainings on it: arithmetic a byte of memory traffic against the arithmetic rate they reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, log_axis, tidy
from labkit.analysis.figure import Figure, Theme
from labkit.analysis.format import listing, number
from labkit.analysis.speed import title
from labkit.analysis.studies.profile import limits, seen
from labkit.analysis.studies.profile.grids import SMALL_PX
from labkit.analysis.summary import ceilings_sentence
from labkit.analysis.table import Text
from labkit.results import roofline
from labkit.results.from_telemetry import why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

MARKS = {
    limits.LAUNCH: "v",
    limits.PYTHON: "v",
    limits.COPY: "X",
    limits.DRAM: "s",
    limits.COMPUTE: "o",
    limits.NO_UNIT: "^",
    limits.UNDECIDED: "P",
    limits.OPEN: "D",
}
ENDS = (("center", False), ("center", True))  # numbers at a line's smallest and largest batch: where they stand
COUNTED, UNAVOIDABLE = "counted", "what no cache saves"


def picture(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """A mark a training in FP32, a colour a network, a line an input, a shape for what bounds it."""
    rows = [row for trial in trials if trial.precision == "fp32" and (row := _row(results, trial))]
    if not rows:
        return Text("No training has a known amount of work and a result, so none stands on a roofline.")
    ceilings = _ceilings(results)
    if not ceilings:
        return Text("Neither nominal peaks nor measured ceilings are known, so there is no roofline.")
    data = pd.DataFrame(rows)
    low, high = data["FLOP/byte"].min() / 3, data["FLOP/byte"].max() * 3
    for one in ceilings:
        if one.flop_per_s and one.bytes_per_s:
            ridge = one.flop_per_s / one.bytes_per_s
            low, high = min(low, ridge / 3), max(high, ridge * 3)
    settings, models = list(dict.fromkeys(data["network"])), list(dict.fromkeys(data["model"]))
    words = [word for word in MARKS if word in set(data["bound by"])]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        intensity = np.geomspace(low, high, 200)
        for one, line in zip(ceilings, ("-", ":"), strict=False):
            if one.flop_per_s and one.bytes_per_s:
                roof = np.minimum(one.flop_per_s, intensity * one.bytes_per_s) / 1e12
                axes.plot(intensity, roof, line, color=theme.ink, lw=1.3, label=f"{one.source} ceilings")
        for setting in settings:
            mine = data[data["network"] == setting].sort_values("batch")
            model = models.index(mine["model"].iloc[0])
            colour, small = theme.palette[model % len(theme.palette)], bool(mine["px"].iloc[0] == SMALL_PX)
            axes.plot(mine["FLOP/byte"], mine["TFLOP/s"], "--" if small else "-", color=colour, lw=1.1, alpha=0.8)
            # Above the line's larger end, below its smaller: where lines rise they do not cross there.
            for row, (side, above) in zip((mine.iloc[0], mine.iloc[-1]), ENDS, strict=True):
                if above or len(mine) > 1:
                    at = (row["FLOP/byte"], row["TFLOP/s"])
                    how = {"textcoords": "offset points", "ha": side, "va": "bottom" if above else "top", "fontsize": 7}
                    axes.annotate(f"{row['batch']:,}", at, (0, 5 if above else -6), color=colour, **how)
            for _, row in mine.iterrows():
                fill = "full" if row["bytes"] == COUNTED else "none"
                mark = MARKS[row["bound by"]]
                axes.plot(row["FLOP/byte"], row["TFLOP/s"], mark, color=colour, ms=6, fillstyle=fill)
        for index, model in enumerate(models):
            axes.plot([], [], color=theme.palette[index % len(theme.palette)], lw=3, label=model)
        for small, line in ((False, "-"), (True, "--")):
            if sizes := [f"{px} px" for px in sorted(set(data["px"])) if (px == SMALL_PX) == small]:
                axes.plot([], [], line, color=theme.ink, lw=0.9, label=listing(sizes))
        for word in words:
            alike = data[data["bound by"] == word]
            fill = "full" if alike["bytes"].eq(COUNTED).any() else "none"
            axes.plot([], [], MARKS[word], color=theme.ink, ls="none", ms=6, fillstyle=fill, label=_says(word))
        log_axis(axes, "x")
        log_axis(axes, "y")
        axes.set_xlim(low, high)
        axes.set_xlabel("FLOP a byte of memory traffic")
        axes.set_ylabel("TFLOP/s over the whole step")
        tidy(axes, theme, grid="both")
        legend_above(figure, [axes], ncols=4)

    shown = [trial for trial in trials if trial.precision == "fp32"]
    hollow = data["bytes"].eq(UNAVOIDABLE)
    best = data.loc[data["TFLOP/s"].astype(float).idxmax()]
    return Figure(
        name="profile-roofline",
        draw=draw,
        again=results.again,
        caption=f"Arithmetic of direct convolutions over the timed time, against arithmetic a byte; a line joins the "
        f"batches of a network and input, with the smallest and the largest at its ends. "
        f"{_bytes(results, hollow)} A mark far below the roof waits for something that is neither; one that "
        "lies above it has kernels (Winograd's, FFT's) that need less arithmetic than direct convolutions. Its shape "
        f"is what the rule says of it{_untold(words)}. "
        f"{ceilings_sentence(results)} {engines.conditions(results, shown)}.",
        alt=f"Log-log plot of the arithmetic rate against FLOP a byte for {len(data)} trainings under the roofline. "
        f"The highest: {best['network']}, batch {best['batch']:,}, {number(best['TFLOP/s'])} TFLOP/s.",
        data=data.drop(columns=["model", "px"]),
        size_in=(8.0, 4.6),
    )


def _row(results: Results, trial: Trial) -> dict[str, Any] | None:
    """One training on the roofline; None without work or a result."""
    work, step = roofline.work_of(results, trial), results.interval(trial, "step_s")
    limit = limits.limit_of(results, trial)
    if work is None or step is None or limit is None:
        return None
    counted = _counted_bytes(results, trial, step.point)
    return {
        "network": seen.setting(trial),
        "model": title(trial),
        "px": trial.image_px,
        "batch": trial.batch,
        "FLOP/byte": work.flop / (counted or work.unavoidable_bytes),
        "TFLOP/s": work.flop / step.point / 1e12,
        "bytes": COUNTED if counted else UNAVOIDABLE,
        "bound by": limit.word,
        "n": step.n,
    }


def _counted_bytes(results: Results, trial: Trial, step_s: float) -> float | None:
    """Bytes that DRAM moved in a step: its activity of the nominal bandwidth; None where it is not counted."""
    active, bandwidth = seen.metric(results, trial, "dram_activity"), results.profile.peaks.memory_bytes_per_s
    if active is None or bandwidth is None or trial.device != results.profile.device.kind:
        return None
    return active.point * bandwidth.value * step_s or None


def _ceilings(results: Results) -> list[roofline.Ceilings]:
    """Measured first, then nominal; those of which both are known."""
    both = [roofline.measured(results), roofline.nominal(results.profile.peaks, "fp32")]
    return [one for one in both if one.flop_per_s and one.bytes_per_s]


def _says(word: str) -> str:
    alone = {limits.OPEN: "not told", limits.NO_UNIT: "no single unit", limits.UNDECIDED: "undecided"}
    return alone.get(word, f"bound by {word}")


def _untold(words: Sequence[str]) -> str:
    return "; 'not told' may still be memory traffic that nobody counts" if limits.OPEN in words else ""


def _bytes(results: Results, hollow: Any) -> str:
    """Which bytes the intensity is of."""
    said = "Full marks: the bytes that DRAM moved by its counter (its activity times the nominal bandwidth)."
    bound = (
        "the bytes that no cache saves (weights, momenta and images), so there is more traffic and the mark is too far "
        "right; "
        f"DRAM is not counted: {why_not(results, 'dram_activity')}."
    )
    if hollow.all():
        return f"Hollow marks: {bound}"
    return said if not hollow.any() else f"{said} Hollow marks: {bound}"
