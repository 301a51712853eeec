"""Says whether a framework can calculate on this machine's GPU: `python -m labkit.run.probe FRAMEWORK cuda|cpu`.

A build without CUDA, without its libraries or without code for this device only shows itself when it is used. On a CPU
it is enough that this module could be imported, since a worker of this interpreter can be then too.
"""

from __future__ import annotations

import json
import sys

from labkit.errors import Unsupported
from labkit.hardware.frameworks import KNOWN

SAID_CHARACTERS = 300


def main(framework: str, device: str) -> int:
    """Say as one JSON line what the framework sees of the device, or why it can't use it."""
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
    except Exception as error:  # noqa: BLE001 - whatever it raises is why it can't run here
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
        said = " ".join(str(error).split())[:SAID_CHARACTERS]
        raise Unsupported(f"jax {jax.__version__} has no CUDA plug-in, or one that does not load: {said}") from error


_SEES = {"torch": _torch_sees, "tensorflow": _tensorflow_sees, "jax": _jax_sees}


def _calculate() -> None:
    """A small convolution, whose result is known: for it a back end needs cuDNN and code for the device."""
    from keras import ops

    images, filters = ops.ones((1, 8, 8, 8)), ops.ones((3, 3, 8, 8))
    found = ops.convert_to_numpy(ops.conv(images, filters, padding="valid"))
    if found.shape != (1, 6, 6, 8) or abs(found - 72).max() > 0.1:
        raise Unsupported("its convolution gives wrong numbers on the GPU")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
