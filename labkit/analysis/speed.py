"""Pictures of speed: throughput beside its bounds, and the published order of devices beside their nominal bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from labkit.analysis.draw import error_bars, log_axis, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number, percent
from labkit.analysis.table import Text
from labkit.models import MODELS
from labkit.papers import Paper
from labkit.profile import Profile, load_profile
from labkit.recipes import engine_name
from labkit.registry import FRAMEWORK_TITLES
from labkit.results import roofline
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial
from labkit.trial_label import trial_label

NOTHING = Text("Nothing was measured, so there is no picture.")
DIFFERING = (
    "workload",
    "image_px",
    "device",
    "framework",
    "precision",
    "engine",
    "threads",
    "copies",
    "epochs",
    "constraint",
)  # named where trials differ in them
OF_MODELS = {
    "train": "training",
    "infer": "inference",
    "gan": "adversarial training",
}  # the workloads that run a network
DEVICES = {"cuda": "GPU", "cpu": "CPU"}


def throughput_table(results: Results, trials: list[Trial]) -> pd.DataFrame:
    """One row a trial: images/s with interval, step time, the bounds and the fraction of each that was reached."""
    rows = []
    for trial in trials:
        rate, step = results.interval(trial, "images_per_s"), results.interval(trial, "step_s")
        work = roofline.work_of(results, trial)
        nominal = roofline.bound(work, roofline.nominal_of(results.profile, trial)) if work else None
        measured = roofline.bound(work, roofline.measured(results, trial.device)) if work else None
        point = rate.point if rate else math.nan
        rows.append(
            {
                "model": title(trial),
                "batch": trial.batch,
                "images/s": point,
                "low": rate.low if rate else None,
                "high": rate.high if rate else None,
                "n": rate.n if rate else 0,
                "step (ms)": step.point * 1e3 if step else None,
                "nominal bound": nominal.images_per_s if nominal else None,
                "measured bound": measured.images_per_s if measured else None,
                "limited by": measured.limited_by if measured else nominal.limited_by if nominal else None,
                "of nominal": percent(point / nominal.images_per_s) if rate and nominal else None,
                "of measured": percent(point / measured.images_per_s) if rate and measured else None,
            }
        )
    return pd.DataFrame(rows)


def throughput(results: Results, trials: list[Trial]) -> Figure | Text:
    """Images/s of each trial with its interval, beside what the arithmetic and the memory would allow."""
    if not trials:
        return NOTHING
    data = throughput_table(results, trials)
    labels = [f"{row['model']}\nbatch {row['batch']}" for _, row in data.iterrows()]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        places = range(len(data))
        for column, marker, colour in (
            ("nominal bound", "_", theme.palette[4]),
            ("measured bound", "_", theme.palette[1]),
        ):
            known = data[column].notna()
            if known.any():
                axes.plot(
                    [p for p, k in zip(places, known, strict=True) if k],
                    data[column][known],
                    linestyle="none",
                    marker=marker,
                    markersize=22,
                    markeredgewidth=2,
                    color=colour,
                    label=f"{column.split()[0]} roofline",
                )
        axes.errorbar(
            list(places),
            data["images/s"],
            yerr=error_bars(data, "images/s"),
            fmt=MARKERS[0],
            color=theme.palette[0],
            markersize=7,
            capsize=5,
            label="measured here (95 % interval)",
        )
        for place, value in zip(places, data["images/s"], strict=True):
            if not math.isnan(value):
                axes.annotate(
                    number(value), (place, value), xytext=(9, -3), textcoords="offset points", color=theme.ink, size=8.5
                )
        log_axis(axes, "y")
        axes.set_ylabel("images/s (log scale)")
        axes.set_xticks(list(places), labels)
        axes.set_xlim(-0.5, len(data) - 0.4)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=3)
        tidy(axes, theme, grid="y")

    fastest = data.loc[data["images/s"].idxmax()] if data["images/s"].notna().any() else None
    said = f"{fastest['model']} is fastest with {number(fastest['images/s'])} images/s." if fastest is not None else ""
    return Figure(
        name="throughput",
        draw=draw,
        again=results.again,
        caption=f"Training throughput and the rooflines. {conditions(results, trials)}. Bars: 95 % interval.",
        alt=f"Dot plot of training images per second, log scale, for {len(data)} configurations, each with the bound "
        f"that the roofline sets above it. {said}",
        data=data,
    )


def device_order(results: Results, papers: list[Paper], batch: int) -> Figure | Text:
    """The published order of devices, best first, beside the bound that each one's nominal peaks set.

    images/s were published only as pictures, so no published figure stands here: the bars are bounds, not measurements.
    """
    found = [(paper, order) for paper in papers for order in paper.orders if order.study == results.study.id]
    if not found:
        return Text("No paper published an order of devices for this study.")
    paper, order = found[0]
    rows = _bounds_by_device(paper, [*order.order, results.profile.name], batch)
    here = _measured_rows(results, paper, batch)
    data = pd.DataFrame(rows + here)

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        models = list(dict.fromkeys(data["model"]))
        devices = list(dict.fromkeys(data["device"]))
        for index, model in enumerate(models):
            part = data[data["model"] == model]
            places = [devices.index(device) + (index - (len(models) - 1) / 2) * 0.18 for device in part["device"]]
            colour, marker = theme.palette[index % len(theme.palette)], MARKERS[index % len(MARKERS)]
            hollow = part["kind"] == "nominal bound"
            for place, value, is_bound in zip(places, part["images/s"], hollow, strict=True):
                axes.plot(
                    place, value, marker=marker, color=colour, fillstyle="none" if is_bound else "full", markersize=8
                )
            axes.plot([], [], marker=marker, linestyle="none", color=colour, label=model)
        axes.plot([], [], marker="o", linestyle="none", color=theme.ink, fillstyle="none", label="hollow: bound")
        axes.plot([], [], marker="o", linestyle="none", color=theme.ink, label="filled: measured")
        log_axis(axes, "y")
        axes.set_ylabel("images/s (log scale)")
        axes.set_xticks(range(len(devices)), devices)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.26), ncols=3)
        tidy(axes, theme, grid="y")

    return Figure(
        name="device-order",
        draw=draw,
        again=results.again,
        caption=f"What nominal FP32 peaks allow on the devices of '{paper.citation.title}', in the paper's published "
        f"order of images/s, best first ({order.where}), and what was measured here. Batch {batch} at 32x32; hollow "
        f"marks are bounds from data sheets, not measurements: the paper prints no images/s. Measured: "
        f"{results.describe()}.",
        alt="Dot plot: for each device of the paper the bound on images/s that its nominal peaks set, and this "
        "machine's measured values in filled marks.",
        data=data,
        size_in=(8.0, 4.0),
    )


def _bounds_by_device(paper: Paper, profiles: list[str], batch: int) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(profiles):
        profile = load_profile(name)
        for model in paper.setup.models:
            limit = roofline.bound(roofline.model_work(model, batch), roofline.nominal(profile.peaks, "fp32"))
            if limit:
                rows.append(
                    {
                        "device": _device_name(paper, profile),
                        "model": MODELS[model].title,
                        "images/s": limit.images_per_s,
                        "kind": "nominal bound",
                        "limited by": limit.limited_by,
                    }
                )
    return rows


def _measured_rows(results: Results, paper: Paper, batch: int) -> list[dict[str, Any]]:
    rows = []
    for trial in results.trials(workload="train", batch=batch, precision="fp32", engine="eager"):
        rate = results.interval(trial, "images_per_s")
        if rate and trial.model in paper.setup.models:
            rows.append(
                {
                    "device": _device_name(paper, results.profile),
                    "model": title(trial),
                    "images/s": rate.point,
                    "kind": "measured",
                    "limited by": None,
                }
            )
    return rows


def _device_name(paper: Paper, profile: Profile) -> str:
    """As the paper prints it; a device that is not the paper's by its profile's title."""
    printed = next((device.printed for device in paper.devices if device.profile == profile.name), profile.title)
    return printed.removeprefix("Nvidia ")


def title(trial: Trial) -> str:
    """The model's name as its paper writes it."""
    return MODELS[trial.model].title if trial.model in MODELS else trial.model


def takes_words(trial: Trial) -> bool:
    """Whether a trial's network takes bags of words, so that its images/s are documents/s."""
    return trial.model in MODELS and MODELS[trial.model].words > 0


def name_of(trial: Trial, beside: Iterable[Trial] = ()) -> str:
    """A trial in a few words: model and batch, and whatever else differs among `beside`."""
    if trial.workload in OF_MODELS:
        others = [other for other in beside if other.workload in OF_MODELS]
        said = [word(trial, name) for name in DIFFERING if any(word(o, name) != word(trial, name) for o in others)]
        return ", ".join([title(trial), f"{trial.batch:,}", *said])
    return {"idle": "idle, process attached", "matmul": "matrix product"}.get(trial.workload, trial_label(trial))


def word(trial: Trial, field: str) -> str:
    """One field of a trial as captions and labels write it."""
    if field == "workload":
        return OF_MODELS.get(trial.workload, trial.workload)
    if field == "copies":
        return f"copies {trial.copies}"
    if field == "precision":
        return trial.precision.upper()
    if field == "engine":
        return engine_name(trial)
    if field == "image_px":
        return input_words([trial])
    if field == "framework":
        return FRAMEWORK_TITLES.get(trial.framework, trial.framework)
    if field == "device":
        return DEVICES[trial.device]
    if field == "threads":
        return threads_word(trial.threads)
    if field == "batch":
        return f"batch {trial.batch:,}"
    if field == "constraint":
        return trial.constraint.replace("_", " ")
    if field == "epochs":
        return f"{trial.epochs} epoch{'s' if trial.epochs != 1 else ''}" if trial.epochs else "timed"
    return str(getattr(trial, field))


def input_words(trials: Iterable[Trial]) -> str:
    """What networks take, as captions write it: `32 and 224 px`, `10,000 words`."""
    edges: list[str] = []
    bags: list[str] = []
    for trial in trials:
        words = MODELS[trial.model].words if trial.model in MODELS else 0
        (bags if words else edges).append(f"{words:,} words" if words else str(trial.image_px))
    images = [f"{listing(list(dict.fromkeys(edges)))} px"] if edges else []
    return listing([*images, *dict.fromkeys(bags)])


def threads_word(threads: int) -> str:
    """How many threads a trial asks for; 0 leaves it to the library."""
    return f"{threads} thread{'s' if threads != 1 else ''}" if threads else "default threads"


def conditions(results: Results, trials: list[Trial]) -> str:
    """What a caption must name: precision, engine, input, data, device, host, scale, n."""
    if not trials:
        return results.describe()

    def values(name: str) -> str:
        return listing(list(dict.fromkeys(str(getattr(trial, name)) for trial in trials)))

    precisions = listing(list(dict.fromkeys(trial.precision.upper() for trial in trials)))
    return (
        f"{precisions}, {values('engine')}, {values('memory_format').replace('_', ' ')}, "
        f"{input_words(trials)}, batch {values('batch')}, on {values('data')}; {results.describe()}"
    )
