"""The trial grids of the study of frameworks, from the sizes of its sweep: one function for each question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from labkit import recipes
from labkit.claims.papers import PublishedRun, load_papers
from labkit.models import MODELS
from labkit.models.catalogue import input_sizes
from labkit.studies.lab import Lab
from labkit.trial import Trial

PAPER = "dell_p100"  # whose table 2 is run again


def beside(lab: Lab) -> list[Trial]:
    """Every framework by each of its engines on one device: networks at 32 px, and at the size they were made for."""
    found: list[Trial] = []
    for group in ("small", "large"):
        for kind in ("eager", "compiled"):
            engines = [name for name in lab.sweep[f"{group}_engines"] if recipes.engine_class(name) == kind]
            for precision in lab.sweep[f"{group}_{kind}"]:
                found += _networks(lab, group, engines, precision)
    return found


def tuned(lab: Lab) -> list[Trial]:
    """PyTorch by the workbook's own engines beside them."""
    known = recipes.tuned(lab.profile.device.kind)
    groups = {"small": lab.sweep["tuned_engines"], "large": lab.sweep["tuned_large_engines"]}
    return [
        trial for group, names in groups.items() for name in names for trial in _of_group(lab, group, **known[name])
    ]


def published(lab: Lab) -> list[Trial]:
    """The trainings of the paper's table 2 on as many devices as there are, each framework by its plainest engine."""
    found: list[Trial] = []
    for run in runs():
        if not why_not_run(lab, run):
            about: dict[str, Any] = {"model": run.model, "image_px": run.image_px, "batch": run.batch_of_device}
            found += _plainest(lab, "published_frameworks", ["fp32"], run.devices, **about)
    return list(dict.fromkeys(found))


def scaled(lab: Lab) -> list[Trial]:
    """One network of its own size on every number of devices, where there are several."""
    if len(lab.device_counts) == 1 or lab.profile.device.kind == "cpu":
        return []
    found: list[Trial] = []
    for model in lab.sweep["scaled"]:
        about = {"model": model, "image_px": MODELS[model].native_px, "batch": lab.sweep["scaled_batch"]}
        for devices in lab.device_counts:
            found += _plainest(lab, "frameworks", lab.sweep["scaled_precisions"], devices, **about)
    return found


def metered(lab: Lab, trials: Iterable[Trial]) -> list[Trial]:
    """The trials, each once; those of some networks with long windows, over which energy is measured."""
    windows = lab.sweep["energy_windows"]

    def with_windows(trial: Trial) -> Trial:
        return replace(trial, energy_windows=windows) if trial.model in lab.sweep["metered"] else trial

    return list(dict.fromkeys(map(with_windows, trials)))


@cache
def runs() -> list[PublishedRun]:
    """The trainings of the paper, in its order."""
    return next(one for one in load_papers() if one.id == PAPER).runs


def why_not_run(lab: Lab, run: PublishedRun) -> str:
    """Why a run of the paper has no trial here; an empty text where it has one."""
    valid = input_sizes(run.model)
    if run.image_px not in valid:
        sizes = " or ".join(map(str, valid))
        return f"{MODELS[run.model].title} is built for {sizes} px, not for {run.image_px}"
    if run.device != lab.profile.device.kind:
        return "of GPUs" if run.device == "cuda" else "of a CPU: the study of CPU and GPU has it"
    if run.devices > lab.device_counts[-1]:
        return f"needs {run.devices} GPUs"
    return "" if run.model in lab.sweep["published"] else "not in this preset"


def _plainest(lab: Lab, frameworks: str, precisions: list[str], devices: int, **about: Any) -> list[Trial]:
    """By the first engine of each framework that trains: of JAX that is XLA's."""
    found: list[Trial] = []
    for framework in lab.sweep[frameworks]:
        engine = "xla" if framework == "keras-jax" else "eager"
        for precision in precisions:
            for recipe in recipes.of_framework(framework, [engine], precision, lab.profile.device.kind):
                found += lab.trials(**recipes.on_devices(recipe, devices), **about)
    return found


def _networks(lab: Lab, group: str, engines: list[str], precision: str) -> list[Trial]:
    kind = lab.profile.device.kind
    return [
        trial
        for framework in lab.sweep["frameworks" if group == "small" else "large_frameworks"]
        for recipe in recipes.of_framework(framework, engines, precision, kind)
        for trial in _of_group(lab, group, **recipe)
    ]


def _of_group(lab: Lab, group: str, **recipe: Any) -> list[Trial]:
    about = {"batch": lab.sweep[f"{group}_batch"], **recipe}
    if group == "small":
        return lab.trials(model=lab.sweep["small"], **about)
    models = lab.sweep["large"]
    return [t for model in models for t in lab.trials(model=model, image_px=MODELS[model].native_px, **about)]
