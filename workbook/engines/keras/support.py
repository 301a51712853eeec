"""Rules of support of Keras: which trials it cannot train on its back ends. Imports no back end.

A process with its back end has the rules of its GPU beside them (`common_rules.of_gpu`).
"""

from __future__ import annotations

from importlib.util import find_spec

from workbook.engines.common_rules import FP16_ON_A_CPU, ONE_IMAGE, TF32_ON_A_CPU
from workbook.engines.keras.networks import KERAS_MODELS
from workbook.hardware.frameworks import KNOWN, title_of
from workbook.trials.rules import Rule
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
    "form": "images lie in memory",
    "epochs": "steps are timed, and no epochs are validated",
}


def _another_way(trial: Trial) -> str | None:
    """Return which field has a value that only PyTorch has, and what Keras does instead; None without one."""
    for name, instead in _PLAIN.items():
        if getattr(trial, name) != (plain := getattr(Trial, name)):
            return f"{title_of(trial.framework)} has no other {name} than {plain!r}: {instead}"
    return None


# fmt: off
RULES = (
    Rule("never", lambda t: t.framework == "keras-jax" and t.engine == "eager",
        "JAX's operators one by one are not meant for training: the mode xla compiles the step (jax.jit)"),
    Rule("version", lambda t: t.engine not in (engines := ENGINES[t.framework]) and
        f"{title_of(t.framework)} has no mode {t.engine}: it has {', '.join(engines)}"),
    Rule("version", lambda t: t.model not in KERAS_MODELS,
        f"{{model}} is defined for PyTorch alone; Keras has {', '.join(KERAS_MODELS)}"),
    Rule("version", lambda t: t.precision not in POLICIES and title_of(t.framework),
        "{value} does not train in {precision}"),
    TF32_ON_A_CPU,
    FP16_ON_A_CPU,
    Rule("version", lambda t: t.devices > 1 and t.framework != "keras-jax" and title_of(t.framework),
        "{value} trains on one device in this version; on several, Keras on JAX and PyTorch without Keras do"),
    Rule("version", _another_way),
    ONE_IMAGE,
    Rule("here", lambda t: next((name for name in KNOWN[t.framework].packages if find_spec(name) is None), None),
        "{value} is not installed in the Python that this ran with"),
)
# fmt: on
