"""Tells whether a framework can compute on this machine's GPU: `python -m workbook.runner.probe FRAMEWORK cuda|cpu`.

A build without CUDA, without CUDA's libraries or without code for this GPU fails only in use. On a CPU the import of
this module is enough: this interpreter can then import the worker too.
"""

from __future__ import annotations

import json
import sys

from workbook.errors import Unsupported
from workbook.hardware.frameworks import KNOWN

SAID_CHARACTERS = 300


def main(framework: str, device: str) -> int:
    """Print one JSON line: `sees` with the device's name, or `reason` why the framework cannot use the device."""
    sys.stdout.write(json.dumps(_seen(framework, device)) + "\n")
    return 0


def _seen(framework: str, device: str) -> dict[str, str]:
    if device == "cpu":
        return {"sees": ""}
    try:
        name = _SEES[KNOWN[framework].backend]()
        _calculate()
    except Unsupported as error:
        return {"reason": str(error)}
    except Exception as error:  # noqa: BLE001 - any exception is a reason
        return {
            "reason": f"it fails on the GPU: {type(error).__name__}: {' '.join(str(error).split())}"[:SAID_CHARACTERS]
        }
    return {"sees": name}


def _torch_sees() -> str:
    import torch

    if not torch.cuda.is_available():
        kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        raise Unsupported(f"torch {torch.__version__} ({kind}) sees no GPU")
    return str(torch.cuda.get_device_name(0))


def _tensorflow_sees() -> str:
    import tensorflow

    version = tensorflow.__version__
    if not tensorflow.test.is_built_with_cuda():
        raise Unsupported(f"tensorflow {version} is a CPU build")
    gpus = tensorflow.config.list_physical_devices("GPU")
    if not gpus:
        raise Unsupported(f"tensorflow {version} is built for CUDA and sees no GPU: it lacks CUDA's libraries")
    return str(tensorflow.config.experimental.get_device_details(gpus[0]).get("device_name", "a GPU"))


def _jax_sees() -> str:
    import jax

    try:
        return str(jax.devices("cuda")[0].device_kind)
    except RuntimeError as error:  # without the plug-in `cuda` is an unknown back end
        text = " ".join(str(error).split())[:SAID_CHARACTERS]
        raise Unsupported(f"jax {jax.__version__} has no CUDA plug-in, or one that does not load: {text}") from error


_SEES = {"torch": _torch_sees, "tensorflow": _tensorflow_sees, "jax": _jax_sees}


def _calculate() -> None:
    """Compute a small convolution, which needs cuDNN and code for the device. Raise Unsupported for a wrong result."""
    from keras import ops

    images, filters = ops.ones((1, 8, 8, 8)), ops.ones((3, 3, 8, 8))
    result = ops.convert_to_numpy(ops.conv(images, filters, padding="valid"))
    if result.shape != (1, 6, 6, 8) or abs(result - 72).max() > 0.1:
        raise Unsupported("its convolution gives wrong numbers on the GPU")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
