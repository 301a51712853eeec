"""The study of frameworks: its trials, settings compared, fastest modes, starts, and the table of the P100 paper."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pandas as pd

from labkit.models import MODELS
from labkit.models.catalogue import input_sizes
from workbook.claims.papers import PublishedRun, load_papers
from workbook.show.frames import phrases
from workbook.studies import sweeps
from workbook.studies.compiling import caches
from workbook.studies.planner import Planner
from workbook.trials import recipes
from workbook.trials.trial import Trial
from workbook.words import phrase

ALL_MODES = "all modes"
_SETTING = ["model", "image_px", "batch"]
_START = {"cold": "cold", "partly cached": "warm", "cached": "warm"}
_NO_CACHE = "no cache"
_OF_RUN = ["model", "image_px", "batch", "device", "devices"]


def setting_of(trial: Trial) -> str:
    """Return the setting that all frameworks share.

    >>> setting_of(Trial(model="resnet50", batch=256))
    'ResNet-50, 32 px, batch 256'
    """
    return ", ".join(phrase(name, getattr(trial, name)) for name in _SETTING)


def side_by_side(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the timed trainings on one device in each setting that is planned for several frameworks.

    Two more columns are texts: `setting` (network, input, batch) and `way` (execution mode, precision).
    """
    timed = frame[(frame["workload"] == "train") & (frame["epochs"] == 0) & (frame["devices"] == 1)]
    timed = timed[timed.groupby(_SETTING)["framework"].transform("nunique") > 1]
    pairs = zip(timed["mode"], timed["precision"].str.upper(), strict=True)
    ways = [mode if precision in mode else f"{mode}, {precision}" for mode, precision in pairs]
    return timed.assign(setting=phrases(timed, _SETTING), way=pd.Series(ways, timed.index, dtype=object))


def fastest(timed: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of each framework's fastest configuration (largest geometric mean over runs) in each setting.

    `timed` is from `side_by_side`. A framework without a result keeps one configuration, which has no `way`.
    """
    rows = sweeps.fastest(timed, ["setting", "framework"], ["key_hash"])
    return rows.assign(way=rows["way"].where(rows["status"] == "ok"))


def absent_once(timed: pd.DataFrame) -> pd.DataFrame:
    """Return the rows for a figure: a framework without any result in a setting has one mode, `all modes`.

    Reasons are cut to their first clause; `trust.failures` has them in full.
    """
    ran = (timed["status"] == "ok").groupby([timed["setting"], timed["framework"]]).transform("any")
    return timed.assign(mode=timed["mode"].where(ran, ALL_MODES), reason=timed["reason"].map(_first_clause))


def starts(timed: pd.DataFrame, regions: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that reached a first step; `start` says how much of the compiled step was on the disk.

    `start` is "cold" (nothing), "warm" (some or all), or "no cache" if nothing is compiled, or every time anew.
    `regions` is `Results.facts("compiled_regions")`.
    """
    first = timed["time_to_first_step_s"].fillna(timed["cached_time_to_first_step_s"])
    timed = timed.assign(time_to_first_step_s=first)
    rows = timed.dropna(subset=["time_to_first_step_s"]).merge(caches(regions), on="record", how="left")
    rows["start"] = rows["compiler_cache"].map(_START).fillna(_NO_CACHE)
    return rows.sort_values("start", kind="stable")


def table_2(lab: Planner, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trainings of the P100 paper's table 2 with the rows that repeat each in FP32 by the simplest engines.

    `training` (the paper's framework and network), `devices` (GPUs; 0 for a CPU), `total_batch` and `printed` (the
    speed-up over one GPU) are the paper's. `run_s` is the time that its samples take at the images/s measured here. A
    training without measured rows has its reason.
    """
    asked = [
        {
            "training": f"{run.framework} {MODELS[run.model].title}",
            **dict(zip(_OF_RUN, (run.model, run.image_px, run.batch_of_device, run.device, run.devices), strict=True)),
            "total_batch": run.batch * run.nodes,
            "images_of_run": run.samples,
            "epochs_of_run": run.epochs,
            "printed": f"{run.speed_up}x" if run.speed_up else "",
            "why": why_not_run(lab, run),
        }
        for run in runs()
    ]
    plainest = frame["framework"].map({"keras-jax": "xla"}).fillna("eager")
    repeated = frame[(frame["workload"] == "train") & (frame["epochs"] == 0) & (frame["engine"] == plainest)]
    repeated = repeated[(repeated["precision"] == "fp32") & (repeated["optimizer"] == "sgd")]
    types = {"image_px": int, "batch": int, "devices": int}
    rows = pd.DataFrame(asked).merge(repeated.astype(types), on=_OF_RUN, how="left")
    run_s = (rows["images_of_run"] / rows["images_per_s"]).fillna(rows["epochs_of_run"] * rows["epoch_s"])
    return rows.assign(
        run_s=run_s,
        reason=rows["reason"].fillna(rows["why"]),
        framework=rows["framework"].fillna(""),
        devices=rows["devices"].where(rows["device"] == "cuda", 0),
    )


def _first_clause(reason: str) -> str:
    """Return `jax is not installed` for `Keras on JAX can't run here: jax is not installed. `make setup-jax` …`.

    The day of the attempt stays, for example ` (tried on 2026-11-27)`.
    """
    why, when, day = reason.partition(" (tried on ")
    return re.split(r"[.:] ", why.rpartition(" can't run here: ")[2])[0] + when + day


# ---- the trials, from the sizes of the sweep -------------------------------------------------------------------------

PAPER = "dell_p100"  # the paper whose table 2 is repeated


def beside(lab: Planner) -> list[Trial]:
    """Return every framework with each of its engines on one device: networks at 32 px, and at their native size."""
    trials: list[Trial] = []
    for group, frameworks in (("small", "frameworks"), ("large", "large_frameworks")):
        for kind in ("eager", "compiled"):
            engines = [name for name in lab.sweep[f"{group}_engines"] if (name == "eager") == (kind == "eager")]
            for precision, framework in product(lab.sweep[f"{group}_{kind}"], lab.sweep[frameworks]):
                for recipe in recipes.of_framework(framework, engines, precision):
                    trials += _of_group(lab, group, **recipe)
    return trials


def tuned(lab: Planner) -> list[Trial]:
    """Return PyTorch with the workbook's own engines, for comparison."""
    recipe_of = recipes.tuned(lab.profile.device.kind)
    groups = {"small": lab.sweep["tuned_engines"], "large": lab.sweep["tuned_large_engines"]}
    return [
        trial for group, names in groups.items() for name in names for trial in _of_group(lab, group, **recipe_of[name])
    ]


def published(lab: Planner) -> list[Trial]:
    """Return the trainings of the paper's table 2 that fit the devices here, each framework by its simplest engine."""
    trials: list[Trial] = []
    for run in runs():
        if not why_not_run(lab, run):
            about: dict[str, Any] = {"model": run.model, "image_px": run.image_px, "batch": run.batch_of_device}
            trials += _plainest(lab, "published_frameworks", ["fp32"], run.devices, **about)
    return list(dict.fromkeys(trials))


def scaled(lab: Planner) -> list[Trial]:
    """Return the `scaled` networks at native size on every number of GPUs; [] with one GPU or on a CPU."""
    if len(lab.device_counts) == 1 or lab.profile.device.kind == "cpu":
        return []
    trials: list[Trial] = []
    for model in lab.sweep["scaled"]:
        about = {"model": model, "image_px": MODELS[model].native_px, "batch": lab.sweep["scaled_batch"]}
        for devices in lab.device_counts:
            trials += _plainest(lab, "frameworks", lab.sweep["scaled_precisions"], devices, **about)
    return trials


def metered(lab: Planner, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials, each once; those of the `metered` networks have long windows for measuring energy."""
    windows, networks = lab.sweep["energy_windows"], lab.sweep["metered"]
    with_windows = (replace(t, energy_windows=windows) if t.model in networks else t for t in trials)
    return list(dict.fromkeys(with_windows))


@cache
def runs() -> list[PublishedRun]:
    """Return the trainings of the paper, in its order."""
    return next(paper for paper in load_papers() if paper.id == PAPER).runs


def why_not_run(lab: Planner, run: PublishedRun) -> str:
    """Return why a run of the paper has no trial here; an empty text if it has one."""
    valid = input_sizes(run.model)
    if run.image_px not in valid:
        sizes = " or ".join(map(str, valid))
        return f"{MODELS[run.model].title} is built for {sizes} px, not for {run.image_px}"
    if run.device != lab.profile.device.kind:
        return "trains on GPUs" if run.device == "cuda" else "trains on a CPU: see the study of CPU and GPU"
    if run.devices > lab.device_counts[-1]:
        return f"needs {run.devices} GPUs"
    return "" if run.model in lab.sweep["published"] else "not in this preset"


def _plainest(lab: Planner, frameworks: str, precisions: list[str], devices: int, **about: Any) -> list[Trial]:
    """Return trials of each framework with its simplest engine that trains: XLA for JAX, else eager."""
    trials: list[Trial] = []
    for framework in lab.sweep[frameworks]:
        engine = "xla" if framework == "keras-jax" else "eager"
        for precision in precisions:
            for recipe in recipes.of_framework(framework, [engine], precision):
                trials += lab.trials(**recipes.on_devices(recipe, devices), **about)
    return trials


def _of_group(lab: Planner, group: str, **recipe: Any) -> list[Trial]:
    about = {"batch": lab.sweep[f"{group}_batch"], **recipe}
    if group == "small":
        return lab.trials(model=lab.sweep["small"], **about)
    models = lab.sweep["large"]
    return [t for model in models for t in lab.trials(model=model, image_px=MODELS[model].native_px, **about)]
