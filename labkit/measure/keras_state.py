"""The state that a trial of a Keras back end starts from and leaves, by each back end's own means.

A framework is named as trials name it; no other than the trial's own is imported.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from labkit.measure.state import begin_anew, peak_memory, reset_compiler, reset_peak_memory

_jax_peak_before = 0  # JAX's counter when the trial began; nothing sets it back


def free_keras(framework: str) -> None:
    """Give back what the last trial left behind: Keras's global state, compiled programs, memory."""
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
    """Count the peak from now on, where that can be asked for: JAX's cannot."""
    if device != "cuda":
        return
    if framework == "keras-torch":
        reset_peak_memory(device)
    elif framework == "keras-tensorflow":
        import tensorflow as tf

        tf.config.experimental.reset_memory_stats("GPU:0")


def peak_memory_of_keras(framework: str, device: str) -> dict[str, Any]:
    """`memory_bytes` of a trial and how it was read: on a GPU the peak by the framework's own counter.

    JAX's counter never goes down: a trial that stayed below an earlier one's peak has none (`memory_reason`). No
    framework counts a CPU's memory; there it is the process's resident set, with the framework in it.
    """
    if device != "cuda":
        return peak_memory(device)
    if framework == "keras-torch":
        return peak_memory(device)
    if framework == "keras-tensorflow":
        import tensorflow as tf

        found = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        return {"memory_bytes": found, "memory_method": "peak of TensorFlow's allocator after the first step"}
    return _peak_of_jax()


def _peak_of_jax() -> dict[str, Any]:
    counters = _jax_counters()
    peak = counters.get("peak_bytes_in_use")
    method = {"memory_method": "peak of JAX's allocator in this trial, trials of algorithms while compiling included"}
    if peak is None:
        return {"memory_bytes": None, "memory_reason": "JAX's allocator keeps no counters here", **method}
    if peak <= _jax_peak_before:
        reason = "an earlier trial of the process took as much or more, and JAX's counter can't be set back"
        return {"memory_bytes": None, "memory_reason": reason, **method}
    return {"memory_bytes": peak, **method}


def _jax_counters() -> dict[str, int]:
    """Of the first GPU; empty where there is none, or none that counts."""
    import jax

    try:
        return jax.devices("cuda")[0].memory_stats() or {}
    except RuntimeError:
        return {}
