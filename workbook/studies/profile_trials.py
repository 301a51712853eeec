"""The trials of the profile study, from the sizes of its sweep: one function per question.

Other studies call `traced` with this study's sweep, to know which of their configurations it traces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from labkit.models import MODELS
from workbook.studies import free_speed
from workbook.studies.planner import Planner, Sweep
from workbook.trials import recipes
from workbook.trials.trial import Trial

SMALL_PX = 32


def traced(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the timed trainings of the study, each once, with the sweep's number of steps traced afterwards."""
    trials = plain(lab, sweep) + tuned(lab, sweep) + rated(lab, sweep) + shared(lab, sweep)
    return [replace(trial, traced_iterations=sweep["traced_iterations"]) for trial in dict.fromkeys(trials)]


def plain(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the baseline over batches: networks at their native size, and at 32 px.

    Its loader copies the numbers of each batch's samples to the device; other loaders would show no copy in the trace.
    """
    trials = _at_own_size(lab, sweep["large"], batch=sweep["large_batch"])
    trials += _at_own_size(lab, sweep["larger"], batch=sweep["larger_batch"])
    trials += lab.trials(model=sweep["small"], image_px=SMALL_PX, batch=sweep["small_batch"])
    return trials + lab.trials(model=sweep["bound"], image_px=SMALL_PX, batch=sweep["bound_batch"])


def tuned(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the same networks in optimised modes, which remove the gaps between kernels."""
    modes = recipes.tuned(lab.profile.device.kind)
    trials: list[Trial] = []
    for name in sweep["tuned_engines"]:
        trials += _at_own_size(lab, sweep["tuned"], batch=sweep["tuned_batch"], **modes[name])
        small = {"image_px": SMALL_PX, "batch": sweep["tuned_small_batch"]}
        trials += lab.trials(model=sweep["tuned_small"], **small, **modes[name])
    compiled = {"batch": sweep["compiled_batch"], **modes[sweep["compiled_engine"]]}
    return trials + _at_own_size(lab, sweep["compiled"], **compiled)


def rated(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the baseline at other learning rates: a claim says that they make no difference to the speed."""
    rates = {"learning_rate": sweep["learning_rates"], "batch": sweep["rated_batch"]}
    return _at_own_size(lab, sweep["rated"], **rates)


def shared(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return DataParallel on all GPUs, if there are several: one process copies the weights and splits each batch.

    Larger scales include fewer GPUs too. A batch that the GPUs cannot share evenly is left out.
    """
    counts = [n for n in lab.device_counts if n > 1] if lab.profile.device.kind == "cuda" else []
    trials: list[Trial] = []
    for devices in counts if sweep["shared_by_fewer"] else counts[-1:]:
        batches = [batch for batch in sweep["shared_batch"] if batch % devices == 0]
        way = {"devices": devices, "parallel": "one_process", "scaling": "strong"}
        trials += _at_own_size(lab, sweep["shared"], batch=batches, **way)
    return trials


def sampled(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return trials that differ only in how many of their steps are traced: a claim compares few steps with many."""
    about = {"image_px": SMALL_PX, "batch": sweep["sampled_batch"], "steps_before": sweep["steps_before"]}
    return lab.trials(model=sweep["sampled"], **about, traced_iterations=sweep["sampled_iterations"])


def free(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the baseline of one network, and each single change to it that leaves the model as it is.

    They are trained at 32 px and at a larger size, where the host has less influence. Without a change for a size
    there is no baseline either.
    """
    small = {"image_px": SMALL_PX, "batch": sweep["free_batch"]}
    large = {"image_px": sweep["free_large_px"], "batch": sweep["free_large_batch"]}
    trials: list[Trial] = []
    for size, names in ((small, sweep["free_changes"]), (large, sweep["free_large_changes"])):
        loops = [recipes.PLAIN, *map(free_speed.one_change, names)] if names else []
        trials += [trial for loop in loops for trial in lab.trials(model=sweep["free_model"], **size, **loop)]
    return trials


def _at_own_size(lab: Planner, models: Iterable[str], **about: Any) -> list[Trial]:
    return [trial for name in models for trial in lab.trials(model=name, image_px=MODELS[name].native_px, **about)]
