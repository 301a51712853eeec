"""The Keras back end of this process: its import, a trial's training on it, and its memory.

Keras takes its back end from the environment when it is imported, and keeps it for good. Each back end would take
nearly all of a GPU's memory when it first uses it. JAX is told not to by the environment, TensorFlow by a call before
its first operation. PyTorch takes what it needs. Only the framework of the trial's own back end is imported.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import Any

from labkit.errors import LabkitError
from workbook.engines.keras.training import KerasTraining, Pixels
from workbook.engines.state import begin_anew, peak_memory, reset_compiler, reset_peak_memory
from workbook.hardware.frameworks import KNOWN, title_of
from workbook.trials.trial import Trial

_SETTINGS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def enter(framework: str) -> Any:
    """Import Keras with the back end of a trial's `framework`, and return it.

    Values that the runner set in the environment stay. Raise LabkitError if this process has Keras on another back end.
    """
    wanted = KNOWN[framework].backend
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = wanted
    import keras

    has = keras.backend.backend()
    if has != wanted:
        raise LabkitError(
            f"this process has Keras on {has} and can't have {title_of(framework)} beside it: the configurations "
            f"of each back end need processes of their own."
        )
    if wanted == "tensorflow":
        import tensorflow as tf

        with suppress(RuntimeError):  # raised after TensorFlow's first operation, when growth is set already
            for gpu in tf.config.list_physical_devices("GPU"):
                tf.config.experimental.set_memory_growth(gpu, True)
    return keras


def make_training(trial: Trial, pixels: Pixels) -> KerasTraining:
    """Return the trial's training, in a process with Keras on its back end. Raise Unsupported if it cannot run."""
    if trial.framework == "keras-tensorflow":
        from workbook.engines.keras.on_tensorflow import TrainingOnTensorFlow

        return TrainingOnTensorFlow(trial, pixels)
    if trial.framework == "keras-jax":
        from workbook.engines.keras.on_jax import TrainingOnJax

        return TrainingOnJax(trial, pixels)
    from workbook.engines.keras.on_torch import TrainingOnTorch

    return TrainingOnTorch(trial, pixels)


_jax_peak_before = 0  # JAX's peak counter when the trial began; JAX cannot reset it


def free_keras(framework: str) -> None:
    """Release what the previous trial left: Keras's global state, compiled programs, memory."""
    global _jax_peak_before
    if keras := sys.modules.get("keras"):
        keras.utils.clear_session(free_memory=False)
    gc.collect()
    if framework == "keras-jax" and (jax := sys.modules.get("jax")):
        jax.clear_caches()
        _jax_peak_before = _jax_counters().get("peak_bytes_in_use", 0)
    if framework == "keras-torch":
        import torch

        reset_compiler()
        begin_anew("cuda" if torch.cuda.is_available() else "cpu")
    gc.collect()
    gc.freeze()


def reset_peak_of_keras(framework: str, device: str) -> None:
    """Reset the framework's counter of peak GPU memory. Do nothing for JAX, whose counter cannot be reset."""
    if device != "cuda":
        return
    if framework == "keras-torch":
        reset_peak_memory(device)
    elif framework == "keras-tensorflow":
        import tensorflow as tf

        tf.config.experimental.reset_memory_stats("GPU:0")


def peak_memory_of_keras(framework: str, device: str) -> dict[str, Any]:
    """Return `memory_bytes` of a trial and how it was read: on a GPU, the peak by the framework's own counter.

    JAX's counter never goes down: after an earlier trial with an equal or higher peak, `memory_bytes` is None, with a
    `memory_reason`. No framework counts CPU memory: there, the process's resident set counts, framework included.
    """
    if device != "cuda":
        return peak_memory(device)
    if framework == "keras-torch":
        return peak_memory(device)
    if framework == "keras-tensorflow":
        import tensorflow as tf

        peak = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        return {"memory_bytes": peak, "memory_method": "peak of TensorFlow's allocator after the first step"}
    peak_of_jax = _jax_counters().get("peak_bytes_in_use")
    method = {"memory_method": "peak of JAX's allocator, trials of algorithms while compiling included"}
    if peak_of_jax is None:
        return {"memory_bytes": None, "memory_reason": "JAX's allocator keeps no counters here", **method}
    if peak_of_jax <= _jax_peak_before:
        reason = "an earlier configuration of the process took as much or more, and JAX's counter can't be set back"
        return {"memory_bytes": None, "memory_reason": reason, **method}
    return {"memory_bytes": peak_of_jax, **method}


def _jax_counters() -> dict[str, int]:
    """Return the memory counters of the first GPU, or {} without a GPU or without counters."""
    import jax

    try:
        return jax.devices("cuda")[0].memory_stats() or {}
    except RuntimeError:
        return {}
