"""The references and the tuned recipes: fields for `lab.trials(**recipe)`, with the reason for each.

plain        strict FP32: stands for the loops that the papers ran, on GPUs without TF32
installed    the same loop with PyTorch's own settings: what a newcomer runs
tuned_eager  what a careful user runs: BF16 by autocast, channels last, fused optimiser
others       the fastest known loops on this hardware with the same network and images

Headlines divide by the fastest of the three, which is ordinary PyTorch. Claims of the papers are judged on `plain`. The
recipes differ in precision too, whose effect study 07 separates.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Literal

from labkit.errors import one_of, unknown
from workbook.trials.trial import Trial

Recipe = dict[str, Any]

# For every trial that trains, in every framework: SGD as PyTorch defines it, with the decay added to the gradient.
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
LOSS_SCALE = 2.0**7  # FP16's initial scale: at 2**12 the first gradients of ResNet-50 on 32x32 images overflow

# Eager, FP32, contiguous, PyTorch's default SGD, sample numbers from the host: a trial's defaults, as in the papers'
# frameworks. Every study has this one baseline, so a configuration has one number. Its loader costs about a
# dozen launches a step; on an H100, ResNet-50 at batch 256 showed no difference with and without them.
PLAIN: Recipe = {}

# Ordinary PyTorch on a GPU. `installed`: without any setting of ours. `tuned_eager`: as PyTorch's tuning guide advises,
# with autocast to BF16, channels last, cuDNN's benchmark and the fused SGD. On a CPU `plain` is PyTorch as installed,
# and the fused SGD below is all that gains in an eager loop.
INSTALLED: Recipe = {"precision": "default"}
# The loader is that of the optimised modes, so that a ratio compares steps alone.
TUNED_EAGER: Recipe = {
    **{"precision": "bf16", "memory_format": "channels_last", "optimizer": "sgd_fused"},
    "loader": "device",
}
# A prediction has no autocast: weights and images are BF16.
PREDICTED_EAGER: Recipe = {"precision": "bf16", "memory_format": "channels_last"}

# A GPU. A CUDA graph replays the step, because at 32x32 launching its kernels takes longer than running them. BF16 and
# channels last suit the tensor cores. SGD runs in one kernel that keeps FP32 masters of the BF16 weights.
CAPTURED: Recipe = {
    "engine": "graph",
    "precision": "bf16",
    "memory_format": "channels_last",
    "optimizer": "sgd_master",
    "loader": "device",
}
# The same step, compiled before the capture: fewer kernels, which pass over memory less often.
COMPILED: Recipe = {**CAPTURED, "engine": "compile+graph"}

# A CPU has no launches to save. The fused SGD passes over the weights once: on two cores with AMX, VGG-16 at batch 16
# took a third less time, ResNets a few percent. Inductor (a minute of compiling), channels last and BF16 gained nothing
# there on 32x32 images. Inductor is available as an option.
FUSED_ON_CPU: Recipe = {"optimizer": "sgd_fused"}
COMPILED_ON_CPU: Recipe = {**FUSED_ON_CPU, "engine": "compile"}

_TUNED = MappingProxyType(
    {
        "cuda": {"graph": CAPTURED, "compile+graph": COMPILED},
        "cpu": {"fused": FUSED_ON_CPU, "compile": COMPILED_ON_CPU},
    }
)


# A step's passes over the weights, counted as passes in FP32. Forward and backward read weights, backward writes
# gradients. The update reads weights, gradients and momenta, and writes weights and momenta. With FP32 masters the
# first three, the update's gradients and its rounded weights are half as wide, and masters are read and written.
_WEIGHT_PASSES = MappingProxyType({"sgd": 8.0, "sgd_fused": 8.0, "sgd_master": 6.5})
_OF_UPDATE, _OF_NEW_WEIGHTS = 5.0, 0.5  # of `sgd_master`: the whole update; the write of weights updated elsewhere


def weight_passes(optimizer: str, devices: int = 1) -> float:
    """Return the minimal number of passes of a device's step over the weights, counted as passes in FP32.

    Several devices can divide the update of masters (`engines/buckets.py`): each device updates its part, and writes
    the new weights of the remaining parts.
    """
    elsewhere = (devices - 1) / devices if optimizer == "sgd_master" else 0.0
    return _WEIGHT_PASSES[optimizer] - elsewhere * (_OF_UPDATE - _OF_NEW_WEIGHTS)


# On several devices a recipe changes only where BF16 weights have BF16 gradients. These are exchanged in BF16, because
# in FP32 they would be the same rounded numbers in twice the bytes.
_EXCHANGED = MappingProxyType({"sgd_master": {"gradient_precision": "bf16"}})


def on_devices(recipe: Recipe, devices: int) -> Recipe:
    """Return the recipe for training on `devices` devices."""
    exchanged = _EXCHANGED.get(recipe.get("optimizer", ""), {}) if devices > 1 else {}
    return {**recipe, **exchanged, "devices": devices}


def tuned(kind: Literal["cuda", "cpu"]) -> dict[str, Recipe]:
    """Return copies of the tuned recipes of a kind of device, by a short name."""
    return {name: dict(recipe) for name, recipe in _TUNED[kind].items()}


def ordinary(kind: Literal["cuda", "cpu"], workload: Literal["train", "infer"] = "train") -> list[Recipe]:
    """Return the recipes of ordinary PyTorch on a kind of device, beside `plain`: as installed, and tuned eager.

    None on a CPU: `plain` is PyTorch as installed there, and the fused SGD is among the tuned recipes.
    """
    if kind == "cpu":
        return []
    return [dict(INSTALLED), dict(TUNED_EAGER if workload == "train" else PREDICTED_EAGER)]


class Recipes(dict[str, Recipe]):
    """Recipes by name. A name without a recipe raises UserError, which lists the names."""

    def __missing__(self, name: str) -> Recipe:
        raise unknown("recipe", name, self)


def recipes(kind: Literal["cuda", "cpu"]) -> Recipes:
    """Return `plain` and the tuned recipes of a kind of device, by the names in a profile's sweeps.

    >>> recipes("cuda")["graph"]["engine"]
    'graph'
    """
    return Recipes(plain=dict(PLAIN), **tuned(kind))


# The precisions that run on tensor cores, or in a CPU's BF16 arithmetic, which prefer channels last. On an H100,
# ResNet-50 (224 px, batch 256) trained 1.8 times as fast with it in BF16 and FP16, and 1.4 times in TF32. In FP32 it
# was 4 % slower.
_CHANNELS_LAST = frozenset({"tf32", "fp16", "bf16"})
# A captured step needs an update and a loader that read everything on the device.
_IN_ANY_PRECISION = MappingProxyType(
    {
        "eager": {},
        "fused": {"optimizer": "sgd_fused"},
        "compile": {"engine": "compile"},
        "graph": {"engine": "graph", "optimizer": "sgd_fused", "loader": "device"},
    }
)


def in_precision(mode: str, precision: str) -> Recipe:
    """Return the recipe of PyTorch's training in a precision, by the mode's name in a profile's sweeps.

    Precisions differ in the memory format too: each has the one that suits it. In FP32, `eager` is the baseline. Raise
    UserError for a mode that has no recipe for every precision.
    """
    of_mode = _IN_ANY_PRECISION[one_of("execution mode in any precision", mode, _IN_ANY_PRECISION)]
    layout = {"memory_format": "channels_last"} if precision in _CHANNELS_LAST else {}
    return {**of_mode, **layout, "precision": precision}


# Inference on a GPU: batch norm folded, weights and images in BF16, the whole prediction in one launch.
PREDICTED: Recipe = {"engine": "graph", "precision": "bf16", "memory_format": "channels_last"}
PREDICTED_COMPILED: Recipe = {**PREDICTED, "engine": "compile+graph"}
# labkit's Triton kernels, each a whole layer: fewer launches than with Inductor and cuDNN, which matters at small
# batches. In INT8 they are symmetric and calibrated.
PREDICTED_FUSED: Recipe = {**PREDICTED, "engine": "triton+graph"}
# Inference on a CPU: batch norm folded; Inductor packs weights for oneDNN and fuses a convolution with the next layers.
PREDICTED_ON_CPU: Recipe = {"engine": "compile", "memory_format": "channels_last"}
# OpenVINO's network in FP32, the reference for INT8 in the same engine.
PREDICTED_BY_OPENVINO: Recipe = {"engine": "openvino"}

_PREDICTING = MappingProxyType(
    {
        "cuda": {"graph": PREDICTED, "compile+graph": PREDICTED_COMPILED, "triton+graph": PREDICTED_FUSED},
        "cpu": {"compile": PREDICTED_ON_CPU, "openvino": PREDICTED_BY_OPENVINO},
    }
)


def predicting(kind: Literal["cuda", "cpu"]) -> dict[str, Recipe]:
    """Return `plain` and the tuned recipes of inference on a kind of device, by the names in a profile's sweeps."""
    return {"plain": dict(PLAIN), **{name: dict(recipe) for name, recipe in _PREDICTING[kind].items()}}


def quantised(kind: Literal["cuda", "cpu"]) -> Recipe:
    """Return the recipe of inference in INT8 (quantised after training) on a kind of device."""
    return {**(PREDICTED_FUSED if kind == "cuda" else PREDICTED_BY_OPENVINO), "precision": "int8"}


# BF16 on a CPU with BF16 arithmetic: oneDNN multiplies in AMX's tiles or AVX-512's dot products. Training on a CPU can
# gain from it at 224 px; on 32x32 images it was measured to gain nothing.
BF16_ON_CPU: Recipe = {**FUSED_ON_CPU, "precision": "bf16", "memory_format": "channels_last"}
PREDICTED_IN_BF16: Recipe = {**PREDICTED_BY_OPENVINO, "precision": "bf16"}
BF16_FEATURES = frozenset({"amx_bf16", "avx512_bf16", "bf16"})  # Linux's names, the last on ARM

_SIDES = MappingProxyType(
    {
        ("cuda", "train"): _TUNED["cuda"],
        ("cuda", "infer"): _PREDICTING["cuda"],
        ("cpu", "train"): {**_TUNED["cpu"], "bf16": BF16_ON_CPU},
        ("cpu", "infer"): {**_PREDICTING["cpu"], "bf16": PREDICTED_IN_BF16},
    }
)


def has_bf16(cpu_features: Iterable[str]) -> bool:
    """Return whether a CPU has arithmetic of BF16; without it, BF16 is emulated."""
    return bool(BF16_FEATURES & set(cpu_features))


def of_side(names: Iterable[str], kind: str, workload: str, *, cpu_features: Iterable[str]) -> list[Recipe]:
    """Return the recipes that a kind of device has for a workload, among names for both sides, CPU and GPU.

    `kind` is `cuda` or `cpu`, `workload` is `train` or `infer`. BF16 is left out on a CPU whose `cpu_features` lack it,
    because emulated BF16 tunes nothing. Raise UserError for a name that no side has.
    """
    valid = list(dict.fromkeys(name for side in _SIDES.values() for name in side))
    emulated = "bf16" if kind == "cpu" and not has_bf16(cpu_features) else ""
    chosen = []
    for name in names:
        recipe = _SIDES[kind, workload].get(one_of("tuned mode", name, valid))
        if recipe is not None and recipe.get("precision", "fp32") != emulated:
            chosen.append(dict(recipe))
    return chosen


# A WGAN as Arjovsky et al. 2017 train it (arXiv:1701.07875, algorithm 1): RMSprop, and a clipping of the critic's
# weights after each of its steps.
CLIP = 0.01
ADVERSARIAL: MappingProxyType[str, Any] = MappingProxyType({"optimizer": "rmsprop", "learning_rate": 5e-5})


def adversarial(kind: Literal["cuda", "cpu"]) -> dict[str, Recipe]:
    """Return the recipes of a WGAN's training, by the names in a profile's sweeps.

    They are `eager`, and on a GPU `graph` too. There one kernel makes the images in both: an iteration takes six
    batches through small networks, and the host's loader would be part of what is compared.
    """
    of_both = {"workload": "gan", "model": "wgan", **ADVERSARIAL}
    if kind == "cpu":
        return {"eager": of_both}
    on_gpu = {**of_both, "loader": "device"}
    return {"eager": on_gpu, "graph": {**on_gpu, "engine": "graph"}}


def is_plain(trial: Trial) -> bool:
    """Return whether a trial is the baseline (`plain`): eager, FP32, contiguous, PyTorch's default SGD and threads."""
    return all(getattr(trial, name) == getattr(_DEFAULT, name) for name in TUNED_FIELDS)


_DEFAULT = Trial()
# Fields in which the baseline and the recipes differ; a loader alone makes no other execution mode.
TUNED_FIELDS = ("framework", "engine", "precision", "memory_format", "optimizer", "host_setting")


# The engines of a training step in each framework, the simplest first. Eager JAX is refused: its row has the reason.
FRAMEWORK_ENGINES = MappingProxyType(
    {
        "torch": ("eager", "compile"),
        "keras-torch": ("eager", "compile"),
        "keras-tensorflow": ("eager", "function", "xla"),
        "keras-jax": ("eager", "xla"),
    }
)


def of_framework(framework: str, engines: Iterable[str], precision: str) -> list[Recipe]:
    """Return recipes for those of `engines` that a framework has.

    All frameworks run the same default SGD, with operators one by one or compiled. Keras's networks are always channels
    last, which no field of a trial says; PyTorch's follow `in_precision`. Raise UserError for an unknown framework or
    engine.
    """
    own = FRAMEWORK_ENGINES[one_of("framework", framework, FRAMEWORK_ENGINES)]
    valid = list(dict.fromkeys(engine for names in FRAMEWORK_ENGINES.values() for engine in names))
    chosen: list[Recipe] = []
    for engine in engines:
        if one_of("mode of a framework", engine, valid) in own:
            in_torch = in_precision(engine, precision) if framework == "torch" else {}
            chosen.append({**in_torch, "framework": framework, "engine": engine, "precision": precision})
    return chosen


def runs_on(devices: int, learning_rate: float, names: Iterable[str] | None = None) -> list[Recipe]:
    """Return training runs that separate the reasons why several devices might need more epochs than one device.

    `large batch`: one device's batch on each device, at one device's rate. `same batch`: one device's batch in total.
    `scaled rate`: the large batch at a rate that grows with it. `warm-up`: the same, with a rate that begins at one
    device's (Goyal et al. 2017, arXiv:1706.02677). `stale`: one device's batch and rate, with gradients that are old
    when they are applied. Raise UserError for another name.
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
    chosen = by_name if names is None else names
    return [by_name[one_of("training run on several devices", name, by_name)] for name in chosen]
