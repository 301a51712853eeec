"""Which trials the study of the WGAN has, from the sizes of its sweep: one function for each question."""

from __future__ import annotations

from typing import Any

from labkit import recipes
from labkit.analysis.studies.lab import Lab
from labkit.trial import Trial


def swept(lab: Lab) -> list[Trial]:
    """The paper's loop over mini-batches, and beside it in other precisions and captured; each is traced."""
    sweep, known = lab.sweep, _known(lab)
    found = lab.trials(batch=sweep["batch"], **_traced(lab), **known["eager"])
    for engine, which in {"eager": "beside", "graph": "captured"}.items():
        axes = {"precision": sweep[f"{which}_precisions"], "batch": sweep[f"{which}_batch"]}
        found += lab.trials(**axes, **_traced(lab), **known[engine]) if engine in known else []
    penalised = recipes.adversarial(lab.profile.device.kind, "gradient_penalty")["eager"]
    return found + lab.trials(batch=sweep["penalty_batch"], **_traced(lab), **penalised)


def sampled(lab: Lab) -> list[Trial]:
    """The paper's loop traced later, for as many iterations and for many: do place and length of a sample matter?"""
    later = {**_traced(lab), "batch": lab.sweep["longer_batch"], "steps_before": lab.sweep["longer_after"]}
    longer = {**later, "traced_iterations": lab.sweep["longer_traced"], "traced_s": lab.sweep["longer_traced_s"]}
    return [trial for asked in (later, longer) for trial in lab.trials(**asked, **_known(lab)["eager"])]


def drawn(lab: Lab, *, own_images: bool) -> list[Trial]:
    """What is trained long enough to draw: handwritten digits unless the report has images of its own."""
    sweep = lab.sweep
    about = {"samples": sweep["samples"], "steps_before": sweep["samples_after"]}
    about |= {name: sweep[f"samples_{name}"] for name in ("batch", "precision", "memory_format")}
    recipe = _known(lab)[sweep["samples_engine"]]
    return lab.trials(**about, data="own" if own_images else "digits", **recipe)


def _known(lab: Lab) -> dict[str, dict[str, Any]]:
    return recipes.adversarial(lab.profile.device.kind)


def _traced(lab: Lab) -> dict[str, Any]:
    return {name: lab.sweep[name] for name in ("traced_iterations", "steps_before")}
