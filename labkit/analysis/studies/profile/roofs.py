"""The roofline with the trainings on it: arithmetic a byte of memory traffic against the arithmetic rate they reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import engines, roofline
from labkit.analysis.draw import legend_above, log_axis, tidy
from labkit.analysis.figure import Figure, Theme
from labkit.analysis.format import number
from labkit.analysis.observations import why_not
from labkit.analysis.results import Results
from labkit.analysis.studies.profile import limits, seen
from labkit.analysis.summary import ceilings_sentence
from labkit.analysis.table import Text
from labkit.trial import Trial

MARKS = {
    limits.LAUNCH: "v",
    limits.PYTHON: "v",
    limits.COPY: "X",
    limits.DRAM: "s",
    limits.COMPUTE: "o",
    limits.LATENCY: "^",
    limits.OPEN: "D",
}
COUNTED, UNAVOIDABLE = "counted", "what no cache saves"


def picture(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """A mark a training in FP32, a colour a network and input, a shape for what bounds it; lines join the batches."""
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
    settings = list(dict.fromkeys(data["network"]))
    words = [word for word in MARKS if word in set(data["bound by"])]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        intensity = np.geomspace(low, high, 200)
        for one, line in zip(ceilings, ("-", ":"), strict=False):
            if one.flop_per_s and one.bytes_per_s:
                roof = np.minimum(one.flop_per_s, intensity * one.bytes_per_s) / 1e12
                axes.plot(intensity, roof, line, color=theme.ink, lw=1.3, label=f"{one.source} ceilings")
        for index, setting in enumerate(settings):
            mine = data[data["network"] == setting].sort_values("batch")
            colour = theme.palette[index % len(theme.palette)]
            axes.plot(mine["FLOP/byte"], mine["TFLOP/s"], color=colour, lw=0.9, alpha=0.6)
            for _, row in mine.iterrows():
                fill = "full" if row["bytes"] == COUNTED else "none"
                mark = MARKS[row["bound by"]]
                axes.plot(row["FLOP/byte"], row["TFLOP/s"], mark, color=colour, ms=6, fillstyle=fill)
            axes.plot([], [], color=colour, lw=3, label=setting)
        for word in words:
            axes.plot([], [], MARKS[word], color=theme.ink, ls="none", ms=6, label=_says(word))
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
        caption=f"Arithmetic of direct convolutions over the timed time, against arithmetic a byte. "
        f"{_bytes(results, hollow)} A mark far below the roof waits for something that is neither, and its shape says "
        f"for what. {ceilings_sentence(results)} {engines.conditions(results, shown)}.",
        alt=f"Log-log plot of the arithmetic rate against FLOP a byte for {len(data)} trainings under the roofline. "
        f"The highest: {best['network']}, batch {best['batch']:,}, {number(best['TFLOP/s'])} TFLOP/s.",
        data=data,
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
    return "not told" if word == limits.OPEN else f"bound by {word}"


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
