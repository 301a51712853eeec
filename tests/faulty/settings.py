"""Says which Python runs it, what stands in its environment and what Keras was loaded with."""

import os
import sys

from tests.faulty import Steps

TOLD = ("KERAS_BACKEND", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")
MEMORY = ("TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE")


def build(trial, data):
    steps = Steps(trial)
    loaded = [name for name in ("torch", "tensorflow", "jax", "keras") if name in sys.modules]
    told = {name: os.environ.get(name) for name in (*TOLD, *MEMORY)}
    steps.facts |= {"told": told, "loaded": loaded, "pid": os.getpid()}
    return steps
