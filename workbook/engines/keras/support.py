"""Reasons why Keras cannot train a trial here on its back end. Imports no back end.

`why_unsupported` reads the trial. `why_not_here` is for a process with its back end, and looks at the device.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from workbook.engines.any_framework import why_not_normalised, why_not_on_cpu, why_too_old
from workbook.engines.keras.networks import KERAS_MODELS
from workbook.hardware.frameworks import KNOWN, title_of
from workbook.trials.trial import Trial

ENGINES = {
    "keras-torch": ("eager", "compile"),
    "keras-tensorflow": ("eager", "function", "xla"),
    "keras-jax": ("xla",),
}
# Each precision as a policy of Keras: the type that layers compute in. Weights are always in FP32.
POLICIES = {"fp32": "float32", "tf32": "float32", "fp16": "mixed_float16", "bf16": "mixed_bfloat16"}
# Fields whose other values only PyTorch has: they stay at their defaults, so that a configuration has one key.
_PLAIN = {
    "optimizer": "there is one SGD, PyTorch's (sgd)",
    "loader": "the host gathers batches (indexed)",
    "memory_format": "images are channels last in any case, and a compiler chooses what lies in between",
    "augment": "images are not augmented",
    "arrangement": "one job runs alone",
    "updates": "all devices wait for each other",
    "gradient_precision": "devices exchange gradients as the weights are, in FP32",
    "interconnect": "the framework chooses the way between devices",
    "network": "the framework chooses the way between devices",
    "nodes": "its devices are of one machine",
    "weights": "nothing is predicted",
    "copies": "nothing is predicted",
    "epochs": "steps are timed, and no epochs are validated",
}


def why_unsupported(trial: Trial) -> str | None:
    """Return why Keras cannot train the trial, as a sentence without a full stop; None if it can."""
    title, engines = title_of(trial.framework), ENGINES[trial.framework]
    if trial.framework == "keras-jax" and trial.engine == "eager":
        return "JAX's operators one by one are not meant for training: the engine xla compiles the step (jax.jit)"
    if trial.engine not in engines:
        return f"{title} has no engine {trial.engine}: it has {', '.join(engines)}"
    if trial.model not in KERAS_MODELS:
        return f"{trial.model} is defined for PyTorch alone; Keras has {', '.join(KERAS_MODELS)}"
    if trial.precision not in POLICIES:
        return f"{title} does not train in {trial.precision}"
    if trial.device == "cpu" and (reason := why_not_on_cpu(trial.precision)):
        return reason
    if trial.devices > 1 and trial.framework != "keras-jax":
        return f"{title} trains on one device in this version; on several, Keras on JAX and PyTorch without Keras do"
    plain = Trial()
    for name, instead in _PLAIN.items():
        if getattr(trial, name) != getattr(plain, name):
            return f"{title} has no other {name} than {getattr(plain, name)!r}: {instead}"
    return why_not_normalised(trial) or _why_not_installed(trial.framework)


def _why_not_installed(framework: str) -> str | None:
    missing = [package for package in KNOWN[framework].packages if find_spec(package) is None]
    return f"{missing[0]} is not installed in the Python that this ran with" if missing else None


def why_not_here(trial: Trial, capability: Any) -> str | None:
    """Return why the back end cannot train the trial on its device (none, or too old); None if it can.

    `capability` is the back end's answer: (major, minor) of its GPU, None if it sees no GPU.
    """
    if trial.device == "cpu":
        return None
    if capability is None:
        return f"there is no GPU here that this {KNOWN[trial.framework].backend} can use"
    return why_too_old(trial.precision, capability)
