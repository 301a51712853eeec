"""The trials of the inference study, from the sizes of its sweep: one function per question.

Other studies call `queried` with this study's sweep, to know for which of their configurations it asks latencies.
"""

from __future__ import annotations

from typing import Any

from workbook.studies.planner import Planner, Sweep
from workbook.trials import recipes
from workbook.trials.trial import Trial


def queried(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return all predictions of the study. Each answers `queries` one by one after the timed part."""
    return swept(lab, sweep) + compiled(lab, sweep) + copied(lab, sweep)


def swept(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return one network over batches in each of `engines`, and further networks at the ends of the sweep."""
    modes = recipes.predicting(lab.profile.device.kind)
    trials: list[Trial] = []
    for name in sweep["engines"]:
        trials += lab.trials(model=sweep["swept"], batch=sweep["batch"], **_asked(sweep), **modes[name])
    for name in sweep["models_engines"]:
        trials += lab.trials(model=sweep["models"], batch=sweep["models_batch"], **_asked(sweep), **modes[name])
    return trials


def compiled(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return networks in ordinary PyTorch, compiled by Inductor, and with the fused kernels of this device."""
    modes = recipes.predicting(lab.profile.device.kind)
    about = {"model": sweep["compiled"], "batch": sweep["compiled_batch"], **_asked(sweep)}
    trials: list[Trial] = []
    for recipe in recipes.ordinary(lab.profile.device.kind, "infer"):
        trials += lab.trials(**about, **recipe)
    for kind in ("compiled", "fused"):
        about = {"model": sweep[kind], "batch": sweep[f"{kind}_batch"], **_asked(sweep)}
        trials += lab.trials(**about, **modes[sweep[f"{kind}_engine"]])
    return trials


def copied(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return predictions of images in the host's memory, in the baseline and in the last of `engines`."""
    modes = recipes.predicting(lab.profile.device.kind)
    about = {"model": sweep["copied"], "batch": sweep["copied_batch"], "copies": "included", **_asked(sweep)}
    trials: list[Trial] = []
    for name in dict.fromkeys(["plain", *sweep["engines"][-1:]]):
        trials += lab.trials(**about, **modes[name])
    return trials


def _asked(sweep: Sweep) -> dict[str, Any]:
    return {"workload": "infer", "queries": sweep["queries"]}
