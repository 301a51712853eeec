"""Which combinations of a trial's fields can be trained on this device, and why the others cannot."""

from __future__ import annotations

import torch

from labkit.engines import precision
from labkit.trial import Trial

# `sgd` as PyTorch's default does it; `sgd_fused`: its fused kernels; `sgd_master`: BF16 weights with FP32 masters, one
# kernel for all of them.
OPTIMIZERS = ("sgd", "sgd_fused", "sgd_master")
INDUCTOR_CAPABILITY = (7, 0)  # of the kernels that Inductor and this package write in Triton


def why_unsupported(trial: Trial) -> str | None:
    """The reason, in a sentence without a full stop; None where the trial can be trained."""
    captured, compiled = "graph" in trial.engine, "compile" in trial.engine
    if trial.devices != 1:
        return "this version trains on one device"
    if trial.optimizer not in OPTIMIZERS:
        return f"the training workload has no optimiser {trial.optimizer!r}"
    reason = precision.why_unsupported(trial)
    if reason:
        return reason
    if captured and trial.device == "cpu":
        return "CUDA graphs are of CUDA devices; a CPU has no launches to save"
    if captured and trial.loader != "device":
        return "a captured step cannot wait for the host to say which images come next: it needs the device's loader"
    if captured and trial.optimizer == "sgd":
        return "a captured step needs an update that reads everything on the device: sgd_fused or sgd_master"
    if trial.optimizer == "sgd_master":
        if not captured:
            return "sgd_master keeps the addresses of gradients, which only stay in a captured step"
        if trial.precision != "bf16":
            return f"sgd_master keeps BF16 weights beside FP32 ones; the trial trains in {trial.precision}"
    if trial.device == "cuda" and (compiled or trial.optimizer == "sgd_master"):
        has = torch.cuda.get_device_capability()
        if has < INDUCTOR_CAPABILITY:
            return f"Triton compiles for compute capability 7.0 and later, this device has {has[0]}.{has[1]}"
    return None
