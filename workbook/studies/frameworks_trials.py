"""The trial grids of the study of frameworks, from the sizes of its sweep: one function per question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from labkit.models import MODELS
from labkit.models.catalogue import input_sizes
from workbook.claims.papers import PublishedRun, load_papers
from workbook.studies.planner import Planner
from workbook.trials import recipes
from workbook.trials.trial import Trial

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
