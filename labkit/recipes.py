"""What "plain" and "tuned" mean: fields for `lab.trials(**recipe)`, in one place, with the reason for each.

`plain` is what the papers ran. `tuned` is what this hardware does best with the same network and the same images; it
differs from the plain loop in precision too, which study 07 takes apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from labkit.errors import unknown
from labkit.trial import Trial

Recipe = dict[str, Any]

# Of every trial that trains, in every framework: SGD as PyTorch defines it, the decay added to the gradient.
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
LOSS_SCALE = 2.0**7  # of FP16, to begin with: at 2**12 the first gradients of ResNet-50 on 32x32 images overflow

# Eager, FP32, contiguous, PyTorch's default SGD: a trial's defaults, and what the papers' frameworks did.
PLAIN: Recipe = {}
# The same with images made on the GPU by one kernel: a loader of a dozen launches would cost a launch-bound loop some
# percent of its step, and what is compared with it is not the loader.
PLAIN_ON_GPU: Recipe = {"loader": "device"}

# A GPU. The step is captured once and replayed, because at 32x32 launching its kernels takes longer than they run; BF16
# and channels last, because tensor cores take those; SGD in one kernel that keeps FP32 masters of the BF16 weights.
CAPTURED: Recipe = {
    "engine": "graph",
    "precision": "bf16",
    "memory_format": "channels_last",
    "optimizer": "sgd_master",
    "loader": "device",
}
# The same, compiled before it is captured: fewer kernels, which pass over memory less often.
COMPILED: Recipe = {**CAPTURED, "engine": "compile+graph"}

# A CPU has no launches to save. The fused SGD passes over the weights once: VGG-16 at batch 16 took a third less time
# on two cores with AMX, ResNets a few percent. Inductor (a minute of compiling), channels last and BF16 gained nothing
# there on 32x32 images; Inductor can be asked for.
FUSED_ON_CPU: Recipe = {"optimizer": "sgd_fused"}
COMPILED_ON_CPU: Recipe = {**FUSED_ON_CPU, "engine": "compile"}

_TUNED = MappingProxyType(
    {
        "cuda": {"graph": CAPTURED, "compile+graph": COMPILED},
        "cpu": {"fused": FUSED_ON_CPU, "compile": COMPILED_ON_CPU},
    }
)


# How often a step passes over the weights, in passes over them in FP32: forward and backward read them, backward writes
# gradients, the update reads weights, gradients and momenta and writes weights and momenta. With FP32 masters the first
# three and the update's gradients and rounded weights are half as wide, and masters are read and written.
_WEIGHT_PASSES = MappingProxyType({"sgd": 8.0, "sgd_fused": 8.0, "sgd_master": 6.5})
_OF_UPDATE, _OF_NEW_WEIGHTS = 5.0, 0.5  # of the last; what others have updated is only written


def weight_passes(optimizer: str, devices: int = 1) -> float:
    """How often a step of a device passes over the weights at the least, counted in passes over them in FP32.

    Several devices can share out the update of masters (`engines/buckets.py`): each makes its part, and writes the new
    weights of the others' parts.
    """
    others = (devices - 1) / devices if optimizer == "sgd_master" else 0.0
    return _WEIGHT_PASSES[optimizer] - others * (_OF_UPDATE - _OF_NEW_WEIGHTS)


# On several devices a recipe stays the same, but BF16 weights have BF16 gradients, which are exchanged as they are: in
# FP32 they would be the same rounded numbers in twice the bytes.
_EXCHANGED = MappingProxyType({"sgd_master": {"gradient_precision": "bf16"}})


def on_devices(recipe: Recipe, devices: int) -> Recipe:
    """A recipe of training on so many devices."""
    exchanged = _EXCHANGED.get(recipe.get("optimizer", ""), {}) if devices > 1 else {}
    return {**recipe, **exchanged, "devices": devices}


def tuned(kind: Literal["cuda", "cpu"]) -> dict[str, Recipe]:
    """The tuned recipes of a kind of device, by a short name; they copy, so a caller may change its own."""
    return {name: dict(recipe) for name, recipe in _TUNED[kind].items()}


def recipes(kind: Literal["cuda", "cpu"]) -> dict[str, Recipe]:
    """`plain` and the tuned recipes of a kind of device, by the names that a profile's sweeps use."""
    return {"plain": dict(PLAIN_ON_GPU if kind == "cuda" else PLAIN), **tuned(kind)}


# Inference, on a GPU: batch norm folded, weights and images in BF16, the whole prediction one launch.
PREDICTED: Recipe = {"engine": "graph", "precision": "bf16", "memory_format": "channels_last"}
PREDICTED_COMPILED: Recipe = {**PREDICTED, "engine": "compile+graph"}
# Kernels of our own, each a whole layer: fewer launches than Inductor and cuDNN make of it, which counts at small
# batches; in INT8 symmetric and calibrated.
PREDICTED_FUSED: Recipe = {**PREDICTED, "engine": "triton+graph"}
# On a CPU: batch norm folded, weights packed for oneDNN by Inductor, which fuses what follows a convolution into it.
PREDICTED_ON_CPU: Recipe = {"engine": "compile", "memory_format": "channels_last"}
# OpenVINO's own network, in the same precision: what INT8 in that engine has to be compared with.
PREDICTED_BY_OPENVINO: Recipe = {"engine": "openvino"}

_PREDICTING = MappingProxyType(
    {
        "cuda": {"graph": PREDICTED, "compile+graph": PREDICTED_COMPILED, "triton+graph": PREDICTED_FUSED},
        "cpu": {"compile": PREDICTED_ON_CPU, "openvino": PREDICTED_BY_OPENVINO},
    }
)


def predicting(kind: Literal["cuda", "cpu"]) -> dict[str, Recipe]:
    """`plain` and the tuned recipes of inference on a kind of device, by the names that a profile's sweeps use."""
    return {"plain": dict(PLAIN), **{name: dict(recipe) for name, recipe in _PREDICTING[kind].items()}}


def quantised(kind: Literal["cuda", "cpu"]) -> Recipe:
    """Inference in INT8 (quantised after training) on a kind of device."""
    return {**(PREDICTED_FUSED if kind == "cuda" else PREDICTED_BY_OPENVINO), "precision": "int8"}


# BF16 on a CPU, where it has the arithmetic: oneDNN multiplies in AMX's tiles or AVX-512's dot products. At 224 px that
# is what training on a CPU can gain; on 32x32 images it was seen to gain nothing.
BF16_ON_CPU: Recipe = {**FUSED_ON_CPU, "precision": "bf16", "memory_format": "channels_last"}
PREDICTED_IN_BF16: Recipe = {**PREDICTED_BY_OPENVINO, "precision": "bf16"}
BF16_FEATURES = frozenset({"amx_bf16", "avx512_bf16", "bf16"})  # as Linux calls them, the last on ARM

_SIDES = MappingProxyType(
    {
        ("cuda", "train"): _TUNED["cuda"],
        ("cuda", "infer"): _PREDICTING["cuda"],
        ("cpu", "train"): {**_TUNED["cpu"], "bf16": BF16_ON_CPU},
        ("cpu", "infer"): {**_PREDICTING["cpu"], "bf16": PREDICTED_IN_BF16},
    }
)


def of_side(names: Iterable[str], kind: str, workload: str, *, cpu_features: Iterable[str]) -> list[Recipe]:
    """Of a list of names for both sides, CPU and GPU: the recipes that this kind of device has for a workload.

    `kind` is `cuda` or `cpu`, `workload` is `train` or `infer`. BF16 is left out on a CPU whose `cpu_features` lack it:
    emulated it would be no tuning. UserError for a name that no side has.
    """
    valid = list(dict.fromkeys(name for side in _SIDES.values() for name in side))
    emulated = "bf16" if kind == "cpu" and not BF16_FEATURES & set(cpu_features) else ""
    chosen = []
    for name in names:
        if name not in valid:
            raise unknown("tuned engine", name, valid)
        recipe = _SIDES[kind, workload].get(name)
        if recipe is not None and recipe.get("precision", "fp32") != emulated:
            chosen.append(dict(recipe))
    return chosen


# A WGAN. `clipping` as Arjovsky et al. 2017 train it (arXiv:1701.07875, algorithm 1): RMSprop, and after each of the
# critic's steps its weights are clipped. `gradient_penalty` as Gulrajani et al. 2017 do (arXiv:1704.00028, the same):
# Adam, and instead of clipping a penalty on how far the slope of the critic's score is from 1.
CRITIC_STEPS = 5  # for each of the generator's, in both papers (Arjovsky's code takes 100 now and then)
CLIP = 0.01
PENALTY = 10.0
ADAM_BETAS = (0.0, 0.9)
_ADVERSARIAL = MappingProxyType(
    {
        "clipping": {"optimizer": "rmsprop", "learning_rate": 5e-5},
        "gradient_penalty": {"optimizer": "adam", "learning_rate": 1e-4},
    }
)


def adversarial(kind: Literal["cuda", "cpu"], constraint: str = "clipping") -> dict[str, Recipe]:
    """`eager`, and on a GPU `graph`: a WGAN's training under a constraint, by the names that a profile's sweeps use.

    On a GPU both make their images there by one kernel, as the plain loop of other networks does.
    """
    of_both = {"workload": "gan", "model": "wgan", "constraint": constraint, **_ADVERSARIAL[constraint]}
    if kind == "cpu":
        return {"eager": of_both}
    return {"eager": {**of_both, **PLAIN_ON_GPU}, "graph": {**of_both, **PLAIN_ON_GPU, "engine": "graph"}}


def optimizer_of(constraint: str) -> str:
    """The optimiser that belongs to a constraint of a WGAN."""
    return str(_ADVERSARIAL[constraint]["optimizer"])


def is_plain(trial: Trial) -> bool:
    """Whether a trial is the papers' loop: eager, FP32, contiguous, PyTorch's default SGD."""
    return all(getattr(trial, name) == getattr(_DEFAULT, name) for name in _TUNED_FIELDS)


# The execution modes in the field's words; precision is said beside them.
_MODES = MappingProxyType(
    {
        "eager": "eager",
        "compile": "compiled",
        "graph": "CUDA graph",
        "compile+graph": "compiled + CUDA graph",
        "triton+graph": "fused Triton kernels + CUDA graph",
        "openvino": "OpenVINO",
        "function": "tf.function",
        "xla": "XLA",
    }
)


def mode_name(trial: Trial) -> str:
    """The name of a trial's execution mode: `baseline` is the papers' loop (eager, FP32, PyTorch's default SGD).

    Two modes that differ have two names: a step that updates FP32 weights is not one that keeps FP32 masters.

    >>> mode_name(Trial()), mode_name(Trial(engine="graph", optimizer="sgd_fused"))
    ('baseline', 'CUDA graph, fused SGD')
    """
    if is_plain(trial):
        return "baseline"
    return f"{_MODES[trial.engine]}{', fused SGD' if trial.optimizer == 'sgd_fused' else ''}"


_DEFAULT = Trial()
_TUNED_FIELDS = ("framework", "engine", "precision", "memory_format", "optimizer")


# What drives a training step in each framework, plainest first. Eager JAX is refused, with its reason as a row.
FRAMEWORK_ENGINES = MappingProxyType(
    {
        "torch": ("eager", "compile"),
        "keras-torch": ("eager", "compile"),
        "keras-tensorflow": ("eager", "function", "xla"),
        "keras-jax": ("eager", "xla"),
    }
)
# Between frameworks the same is compared: plain SGD, and operators one by one or compiled. Of layouts each has the one
# that it is used with: PyTorch's is contiguous in FP32 and channels last where tensor cores or BF16 on a CPU want that;
# Keras's networks are channels last in any case, and no field says it.
_CHANNELS_LAST = frozenset({("torch", "fp16"), ("torch", "bf16")})


def engine_class(engine: str) -> Literal["eager", "compiled"]:
    """Whether an engine runs operators one by one, or a step that was traced and compiled before."""
    return "eager" if engine == "eager" else "compiled"


def of_framework(framework: str, engines: Iterable[str], precision: str, device: str) -> list[Recipe]:
    """Of a list of engines those that a framework has, in one precision on `cuda` or `cpu`: alike in all else.

    UserError for a framework or an engine that there is none of.
    """
    if framework not in FRAMEWORK_ENGINES:
        raise unknown("framework", framework, FRAMEWORK_ENGINES)
    valid = list(dict.fromkeys(engine for names in FRAMEWORK_ENGINES.values() for engine in names))
    usual = PLAIN_ON_GPU if (framework, device) == ("torch", "cuda") else PLAIN
    layout = {"memory_format": "channels_last"} if (framework, precision) in _CHANNELS_LAST else {}
    found: list[Recipe] = []
    for engine in engines:
        if engine not in valid:
            raise unknown("engine of a framework", engine, valid)
        if engine in FRAMEWORK_ENGINES[framework]:
            found.append({**usual, **layout, "framework": framework, "engine": engine, "precision": precision})
    return found


def runs_on(devices: int, learning_rate: float, names: Iterable[str] | None = None) -> list[Recipe]:
    """Training runs on several devices that take apart why they might need more epochs than one device.

    `large batch`: as large as all of theirs together, at one device's rate; `same batch`: in total one device's;
    `scaled rate`: the large batch at a rate that grows with it, and `warm-up`: which begins at one device's (Goyal et
    al. 2017, arXiv:1706.02677); `stale`: one device's batch and rate, but gradients that are old when they are applied.
    UserError for another name.
    """
    usual = {"devices": devices, "learning_rate": learning_rate}
    larger = {"devices": devices, "learning_rate": learning_rate * devices}
    by_name: dict[str, Recipe] = {
        "large batch": usual,
        "same batch": {**usual, "scaling": "strong"},
        "scaled rate": larger,
        "warm-up": {**larger, "schedule": "warm_up"},
        "stale": {**usual, "updates": "asynchronous"},
    }
    chosen = list(by_name if names is None else names)
    for name in chosen:
        if name not in by_name:
            raise unknown("training run on several devices", name, by_name)
    return [by_name[name] for name in chosen]


def traced(trials: Iterable[Trial], iterations: int) -> list[Trial]:
    """The trials, each once; timed trainings of one job on several devices with so many steps traced afterwards."""

    def with_trace(trial: Trial) -> Trial:
        exchanges = trial.workload == "train" and trial.devices > 1 and not trial.epochs
        return replace(trial, traced_iterations=iterations) if exchanges and trial.arrangement == "alone" else trial

    return list(dict.fromkeys(map(with_trace, trials)))


def exchanged_in(trial: Trial) -> str:
    """In which precision several devices exchange a trial's gradients unless another is asked for."""
    return str(_EXCHANGED.get(trial.optimizer, {}).get("gradient_precision", "fp32"))
