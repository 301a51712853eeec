"""The Keras of this process. Keras takes its back end from the environment when it is imported, and keeps it for good.

Each back end would take nearly all of a GPU's memory when it first uses it. JAX is told not to by the environment,
TensorFlow by a call before its first operation. PyTorch takes what it needs.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from labkit.errors import LabkitError
from workbook.hardware.frameworks import KNOWN, title_of

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
