"""Reasons why this device cannot train or predict a trial's combination of fields."""

from __future__ import annotations

import shutil

import torch

from labkit.models import MODELS
from workbook.engines import precision
from workbook.engines.any_framework import why_not_normalised
from workbook.engines.exchange.data_parallel import why_not_in_one_process
from workbook.engines.openvino import network as openvino_on_cpu
from workbook.engines.triton_check import why_no_triton
from workbook.trials.trial import Trial

# `sgd`: PyTorch's default; `sgd_fused`: PyTorch's fused kernels; `sgd_master`: BF16 weights with FP32 masters, one
# kernel for all weights.
OPTIMIZERS = ("sgd", "sgd_fused", "sgd_master")
FUSED_PRECISIONS = ("int8", "fp16", "bf16")
PREDICTING_ONLY = ("openvino", "triton+graph")
OF_KERAS = ("function", "xla")


def why_unsupported(trial: Trial) -> str | None:
    """Return why the trial cannot be trained, as a sentence without a full stop; None if it can."""
    captured = "graph" in trial.engine
    if _is_gan(trial):
        return f"{trial.model} is two networks that train against each other: the gan workload trains them"
    if trial.engine in PREDICTING_ONLY:
        return f"the engine {trial.engine} predicts, it does not train"
    if trial.parallel == "one_process" and (reason := why_not_in_one_process(trial)):
        return reason
    exact = trial.precision == trial.gradient_precision == "fp32" and trial.engine == "eager"
    if trial.updates == "asynchronous" and not (trial.devices > 1 and exact and trial.optimizer == "sgd"):
        return "asynchronous updates need several devices, FP32, the optimiser sgd and the engine eager"
    if trial.placement == "together" and trial.engine != "eager":
        return "processes that share one device exchange gradients by Gloo, and need the engine eager"
    if trial.gradient_precision != "fp32" and trial.devices == 1:
        return "one device exchanges no gradients"
    if trial.gradient_precision == "bf16" and (trial.device == "cpu" or trial.placement == "together"):
        return "PyTorch exchanges BF16 gradients by NCCL, between GPUs; Gloo has FP16"
    if trial.optimizer not in OPTIMIZERS:
        return f"the training workload has no optimiser {trial.optimizer!r}"
    if reason := precision.why_unsupported(trial) or why_not_captured(trial) or why_not_normalised(trial):
        return reason
    if captured and trial.optimizer == "sgd":
        return "a captured step needs an update that reads everything on the device: sgd_fused or sgd_master"
    if trial.optimizer == "sgd_master":
        if not captured:
            return "sgd_master keeps the addresses of gradients, which only stay in a captured step"
        if trial.precision != "bf16":
            return f"sgd_master keeps BF16 weights beside FP32 ones; the trial trains in {trial.precision}"
        if trial.devices > 1 and trial.gradient_precision != "bf16":
            sent = trial.gradient_precision
            return f"sgd_master's gradients are BF16: several devices exchange them in BF16, not in {sent}"
    return _why_not_compiled(trial)


def why_not_predicted(trial: Trial) -> str | None:
    """Return why the trial cannot be predicted, as a sentence without a full stop; None if it can."""
    if _is_gan(trial):
        return f"{trial.model} classifies nothing: the gan workload trains it"
    if trial.devices != 1:
        return "this version predicts on one device"
    if trial.engine == "openvino":
        return _why_not_openvino(trial)
    if trial.engine == "triton+graph":
        return _why_not_fused(trial)
    if trial.precision == "int8":
        return f"the engine {trial.engine} does not predict in INT8: openvino does on a CPU, triton+graph on a GPU"
    return precision.why_not_here(trial) or why_not_captured(trial, trains=False) or _why_not_compiled(trial)


def why_not_captured(trial: Trial, *, trains: bool = True) -> str | None:
    """Return why a step cannot be captured, or the device cannot load its images; None if both can or need not be."""
    captured = "graph" in trial.engine
    if captured and trial.device == "cpu":
        return "CUDA graphs need a GPU; a CPU has no launches to save"
    if trains and trial.loader == "device" and trial.device == "cpu":
        return "the device's loader needs a GPU; a CPU gathers from the memory map"
    if trains and captured and trial.loader != "device" and trial.form == "embedded":
        return "a captured step cannot wait for the host to say which images come next: it needs the device's loader"
    return None


def _is_gan(trial: Trial) -> bool:
    return trial.model in MODELS and MODELS[trial.model].noise > 0


def _why_not_fused(trial: Trial) -> str | None:
    if trial.device != "cuda":
        return "the engine triton+graph is for GPUs"
    if trial.model == "inception_bn":
        return "the engine triton+graph has no kernel for the averages with padding between Inception-BN's layers"
    if trial.precision not in FUSED_PRECISIONS:
        return f"the engine triton+graph predicts in {', '.join(FUSED_PRECISIONS)}, not in {trial.precision}"
    return precision.why_not_here(trial) or why_no_triton(torch.device("cuda"))


def _why_not_openvino(trial: Trial) -> str | None:
    if trial.device != "cpu":
        return "the engine openvino is for CPUs"
    if trial.precision not in openvino_on_cpu.PRECISIONS:
        return f"OpenVINO on a CPU predicts in {', '.join(openvino_on_cpu.PRECISIONS)}, not in {trial.precision}"
    if trial.copies == "included":
        return "the engine openvino cannot predict with copies included: images lie on the CPU anyway"
    if trial.memory_format != "contiguous":
        return "OpenVINO chooses its own memory format and takes contiguous images"
    return openvino_on_cpu.why_unsupported(trial.precision)  # type: ignore[arg-type]


def _why_not_compiled(trial: Trial) -> str | None:
    """Return why Inductor, or Triton for labkit's own kernels, cannot compile the trial; None if they can."""
    if trial.engine in OF_KERAS:
        return f"the engine {trial.engine} is Keras's, on TensorFlow or JAX; the trial runs on PyTorch without Keras"
    compiles = "compile" in trial.engine
    if trial.device == "cuda" and (compiles or trial.optimizer == "sgd_master"):
        return why_no_triton(torch.device("cuda"))
    if compiles and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        return "Inductor needs a C++ compiler on a CPU, and none is installed"
    return None
