"""The roofline picture: attainable FLOP/s against operational intensity, from a profile's nominal peaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.models import MODELS
from labkit.profile import Profile
from labkit.results.roofline import model_work

BATCH = 256
SHOWN_MODELS = ("resnet50", "vgg16")


def nominal_roofline(profile: Profile) -> Figure | None:
    """The nominal roofline of a profile by precision, and where two networks stand on it. None without peaks."""
    bandwidth, peaks = profile.peaks.memory_bytes_per_s, profile.peaks.flop_per_s
    if bandwidth is None or not peaks:
        return None
    intensity = np.logspace(-1, 5, 121)
    rows = [
        {
            "precision": name.upper(),
            "peak (TFLOP/s)": peak.value / 1e12,
            "ridge (FLOP/byte)": peak.value / bandwidth.value,
        }
        for name, peak in peaks.items()
    ]
    works = {model: model_work(model, BATCH) for model in SHOWN_MODELS}
    data = pd.DataFrame(rows)

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        by_peak: dict[float, list[str]] = {}
        for name, peak in peaks.items():
            by_peak.setdefault(peak.value, []).append(name.upper())
        for index, value in enumerate(sorted(by_peak, reverse=True)):
            roof = np.minimum(value, intensity * bandwidth.value)
            colour = theme.palette[index % len(theme.palette)]
            axes.loglog(intensity, roof / 1e12, color=colour, lw=1.8, label=" and ".join(by_peak[value]))
        for index, (model, work) in enumerate(works.items()):
            place = work.flop / work.unavoidable_bytes
            axes.axvline(place, color=theme.faint, ls="--", lw=1)
            height = min(peaks["fp32"].value, place * bandwidth.value) if "fp32" in peaks else max(by_peak)
            axes.plot(place, height / 1e12, MARKERS[index], color=theme.ink, label=MODELS[model].title)
        axes.set_xlabel("FLOP per byte of memory traffic")
        axes.set_ylabel("attainable TFLOP/s")
        axes.legend(fontsize=8, ncols=2)
        axes.spines[["top", "right"]].set_visible(False)

    names = " and ".join(MODELS[model].title for model in SHOWN_MODELS)
    return Figure(
        name="nominal-roofline",
        draw=draw,
        again=f"make render HW={profile.name}",
        caption=f"Nominal roofline of {profile.title}, from the peaks and the bandwidth in the table (sources there). "
        f"Marks: training {names} at 32x32, batch {BATCH}, FP32, counting only traffic that no cache saves. Nothing "
        f"here is measured.",
        alt=f"Log-log plot of attainable arithmetic rate against FLOP per byte for {len(peaks)} precisions.",
        data=data,
        size_in=(7.0, 3.6),
    )
