"""The trials of the profile study, from the sizes of its sweep: a function per question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from labkit import recipes
from labkit.models import MODELS
from labkit.recipes import is_plain
from labkit.studies.lab import Lab
from labkit.trial import Trial

SMALL_PX = 32


def plain(lab: Lab) -> list[Trial]:
    """The papers' loop over the batch: at the size that networks were made for, and at 32 px.

    Of all loaders the one that copies each batch's sample numbers to the device: without any copy there would be
    nothing to say of copies.
    """
    found = _at_own_size(lab, lab.sweep["large"], batch=lab.sweep["large_batch"])
    found += _at_own_size(lab, lab.sweep["larger"], batch=lab.sweep["larger_batch"])
    found += lab.trials(model=lab.sweep["small"], image_px=SMALL_PX, batch=lab.sweep["small_batch"])
    return found + lab.trials(model=lab.sweep["bound"], image_px=SMALL_PX, batch=lab.sweep["bound_batch"])


def tuned(lab: Lab) -> list[Trial]:
    """The same networks by tuned recipes: what removes the gaps between kernels."""
    sweep, known = lab.sweep, recipes.tuned(lab.profile.device.kind)
    found: list[Trial] = []
    for name in sweep["tuned_engines"]:
        found += _at_own_size(lab, sweep["tuned"], batch=sweep["tuned_batch"], **known[name])
        small = {"image_px": SMALL_PX, "batch": sweep["tuned_small_batch"]}
        found += lab.trials(model=sweep["tuned_small"], **small, **known[name])
    compiled = {"batch": sweep["compiled_batch"], **known[sweep["compiled_engine"]]}
    return found + _at_own_size(lab, sweep["compiled"], **compiled)


def rated(lab: Lab) -> list[Trial]:
    """At another learning rate than the others."""
    rates = {"learning_rate": lab.sweep["learning_rates"], "batch": lab.sweep["rated_batch"]}
    return _at_own_size(lab, lab.sweep["rated"], **rates)


def shared(lab: Lab) -> list[Trial]:
    """Where there are several GPUs: one process that copies the weights to all of them and shares out each batch.

    On as many of them as there are; at larger scales on fewer of them too. A batch that they can't share evenly is
    left out.
    """
    counts = [n for n in lab.device_counts if n > 1] if lab.profile.device.kind == "cuda" else []
    found: list[Trial] = []
    for devices in counts if lab.sweep["shared_by_fewer"] else counts[-1:]:
        batches = [batch for batch in lab.sweep["shared_batch"] if batch % devices == 0]
        way = {"devices": devices, "parallel": "one_process", "scaling": "strong"}
        found += _at_own_size(lab, lab.sweep["shared"], batch=batches, **way)
    return found


def traced(lab: Lab, trials: Iterable[Trial]) -> list[Trial]:
    """The trials, each once, with as many steps traced afterwards as the sweep has; a few are counted in, too.

    Nsight Compute takes a minute a trial: those of the papers' loop that the sweep names, with their largest images.
    """
    once = list(dict.fromkeys(trials))

    def counted(trial: Trial) -> bool:
        largest = max(other.image_px for other in once if other.model == trial.model)
        usual = is_plain(trial) and trial.devices == 1 and trial.learning_rate == Trial().learning_rate
        named = trial.model in lab.sweep["counted"] and trial.batch == lab.sweep["counted_batch"]
        return usual and named and trial.image_px == largest

    steps = lab.sweep["traced_iterations"]
    return [replace(trial, traced_iterations=steps, counted=counted(trial)) for trial in once]


def sampled(lab: Lab) -> list[Trial]:
    """Trials that differ in nothing but how many of their steps are traced: does a sample stand for a run?

    No claim selects them, so that each configuration stands once in what claims are judged by.
    """
    about = {"image_px": SMALL_PX, "batch": lab.sweep["sampled_batch"], "steps_before": lab.sweep["steps_before"]}
    return lab.trials(model=lab.sweep["sampled"], **about, traced_iterations=lab.sweep["sampled_iterations"])


def _at_own_size(lab: Lab, models: Iterable[str], **about: Any) -> list[Trial]:
    return [one for model in models for one in lab.trials(model=model, image_px=MODELS[model].native_px, **about)]
