"""Rules of support of PyTorch's engines: which trials they cannot train or predict here."""

from __future__ import annotations

import shutil

from labkit.models import MODELS
from workbook.engines import openvino_on_cpu as openvino
from workbook.engines import precision, triton_check
from workbook.engines.common_rules import AS_INSTALLED_ON_A_CPU, FP16_ON_A_CPU, ONE_IMAGE, TF32_ON_A_CPU, of_gpu
from workbook.engines.exchange import data_parallel
from workbook.trials.rules import Rule, given
from workbook.trials.trial import Trial

# `sgd`: PyTorch's default; `sgd_fused`: PyTorch's fused kernels; `sgd_master`: BF16 weights with FP32 masters, one
# kernel for all weights.
OPTIMIZERS = ("sgd", "sgd_fused", "sgd_master")
FUSED_PRECISIONS = ("int8", "fp16", "bf16")
PREDICTING_ONLY = ("openvino", "triton+graph")
OF_KERAS = ("function", "xla")
COMPILERS = ("g++", "c++", "clang++")  # that Inductor calls on a CPU


def is_gan(trial: Trial) -> bool:
    """Return whether the trial's model is two networks, one of which makes images from noise."""
    return trial.model in MODELS and MODELS[trial.model].noise > 0


def _captured(trial: Trial) -> bool:
    return "graph" in trial.engine


def _compiled(trial: Trial) -> bool:
    return "compile" in trial.engine


def _by_triton(trial: Trial) -> bool:
    """Return whether Triton compiles kernels of the trial: Inductor's, or our own."""
    own = trial.engine == "triton+graph" or trial.optimizer == "sgd_master"
    return trial.device == "cuda" and (own or _compiled(trial))


# fmt: off
GPU = of_gpu("PyTorch", precision.capability)

_GRAPHS = Rule("never", lambda t: _captured(t) and t.device == "cpu",
    "CUDA graphs need a GPU; a CPU has no launches to save")

CAPTURE = (
    _GRAPHS,
    Rule("never", lambda t: t.loader == "device" and t.device == "cpu",
        "the device's loader needs a GPU; a CPU gathers from the memory map"),
    Rule("never", lambda t: _captured(t) and t.loader != "device" and t.form == "embedded",
        "a captured step cannot wait for the host to say which images come next: it needs the device's loader"),
)

_COMPILE = (
    Rule("never", lambda t: t.engine in OF_KERAS,
        "the mode {engine} is Keras's, on TensorFlow or JAX; the configuration runs on PyTorch without Keras"),
    Rule("never", lambda t: _by_triton(t) and triton_check.too_old(),
        "Triton compiles for compute capability 7.0 and later, this device has {value}", asks_machine=True),
    Rule("here", lambda t: _by_triton(t) and triton_check.fault()),
    Rule("here", lambda t: _compiled(t) and t.device == "cpu" and not any(map(shutil.which, COMPILERS)),
        "Inductor needs a C++ compiler on a CPU, and none is installed"),
)

PRECISION = (
    Rule("version", lambda t: t.precision not in precision.TOLERANCES,
        "the training workload does not train in {precision}"),
    AS_INSTALLED_ON_A_CPU,
    TF32_ON_A_CPU,
    FP16_ON_A_CPU,
    *GPU,
)

_MASTER = (
    Rule("never", lambda t: not _captured(t),
        "sgd_master keeps the addresses of gradients, which only stay in a captured step"),
    Rule("never", lambda t: t.precision != "bf16",
        "sgd_master keeps BF16 weights beside FP32 ones; the configuration trains in {precision}"),
    Rule("never", lambda t: t.devices > 1 and t.gradient_precision != "bf16",
        "sgd_master's gradients are BF16: several devices exchange them in BF16, not in {gradient_precision}"),
)

TRAINING = (
    Rule("never", is_gan, "{model} is two networks that train against each other: the gan workload trains them"),
    Rule("never", lambda t: t.engine in PREDICTING_ONLY, "the mode {engine} predicts, it does not train"),
    *given(lambda t: t.parallel == "one_process", data_parallel.RULES),
    Rule("version", lambda t: t.updates == "asynchronous" and not (
            t.devices > 1 and t.precision == t.gradient_precision == "fp32" and t.optimizer == "sgd"
            and t.engine == "eager"),
        "asynchronous updates need several devices, FP32, the optimiser sgd and the mode eager"),
    Rule("version", lambda t: t.placement == "together" and t.engine != "eager",
        "processes that share one device exchange gradients by Gloo, and need the mode eager"),
    Rule("never", lambda t: t.gradient_precision != "fp32" and t.devices == 1, "one device exchanges no gradients"),
    Rule("version", lambda t: t.gradient_precision == "bf16" and (t.device == "cpu" or t.placement == "together"),
        "PyTorch exchanges BF16 gradients by NCCL, between GPUs; Gloo has FP16"),
    Rule("version", lambda t: t.optimizer not in OPTIMIZERS, "the training workload has no optimiser '{optimizer}'"),
    *PRECISION,
    *CAPTURE,
    ONE_IMAGE,
    Rule("never", lambda t: _captured(t) and t.optimizer == "sgd",
        "a captured step needs an update that reads everything on the device: sgd_fused or sgd_master"),
    *given(lambda t: t.optimizer == "sgd_master", _MASTER),
    *_COMPILE,
)

_OPENVINO = (
    Rule("never", lambda t: t.device != "cpu", "the mode openvino is for CPUs"),
    Rule("version", lambda t: t.precision not in openvino.PRECISIONS,
        f"OpenVINO on a CPU predicts in {', '.join(openvino.PRECISIONS)}, not in {{precision}}"),
    Rule("never", lambda t: t.copies == "included",
        "the mode openvino cannot predict with copies included: images lie on the CPU anyway"),
    Rule("never", lambda t: t.memory_format != "contiguous",
        "OpenVINO chooses its own memory format and takes contiguous images"),
    Rule("here", lambda t: openvino.missing(t.precision)),
    Rule("never", lambda t: t.precision == "bf16" and not openvino.has_bf16(),
        "this CPU has no arithmetic of BF16 (AVX512-BF16 or AMX)", asks_machine=True),
)

_FUSED = (
    Rule("never", lambda t: t.device != "cuda", "the mode triton+graph is for GPUs"),
    Rule("version", lambda t: t.model == "inception_bn",
        "the mode triton+graph has no kernel for the averages with padding between Inception-BN's layers"),
    Rule("version", lambda t: t.precision not in FUSED_PRECISIONS,
        f"the mode triton+graph predicts in {', '.join(FUSED_PRECISIONS)}, not in {{precision}}"),
)

PREDICTION = (
    Rule("never", is_gan, "{model} classifies nothing: the gan workload trains it"),
    *given(lambda t: t.engine == "openvino", _OPENVINO),
    *given(lambda t: t.engine == "triton+graph", _FUSED),
    Rule("version", lambda t: t.precision == "int8" and t.engine not in PREDICTING_ONLY,
        "the mode {engine} does not predict in INT8: openvino does on a CPU, triton+graph on a GPU"),
    AS_INSTALLED_ON_A_CPU,
    TF32_ON_A_CPU,
    *GPU,
    _GRAPHS,
    *_COMPILE,
)
# fmt: on
