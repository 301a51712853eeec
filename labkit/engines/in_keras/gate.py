"""Is Keras's first step the one that PyTorch would take? Its loss, on the same weights and the same batch.

Where nothing is random it is the loss of the very step that is timed, by the engine that runs it. Networks that drop
values draw other ones in each framework: their step's loss may be a tenth away, and beside it the loss with nothing
dropped is held as closely as the others'. Where this Python has no PyTorch, the first loss has to be finite and not far
from log(classes), which a network that knows nothing has.
"""

from __future__ import annotations

import math
from typing import Any

from labkit.engines.tolerated import checked
from labkit.errors import GateError

# Relative, of the first loss. FP32 and TF32 round far less than another batch would change (1.5 % of ResNet-50's). Half
# precision was up to 0.4 % (BF16) and 0.02 % (FP16) away, of Inception-BN and GoogLeNet at batch 16 on 32x32 images: in
# BF16 a wrong network is told, and a wrong batch by the FP32 trials of the same loop.
TOLERANCES = {"fp32": 1e-4, "tf32": 5e-4, "fp16": 2e-3, "bf16": 2e-2}
DROPPED = 0.1  # what dropping random values may change of an untrained network's loss
PLAUSIBLE = 2.0  # times log(classes), or a half of it


def judge(
    first: float, *, expected: float | None, undropped: float | None, precision: str, classes: int
) -> dict[str, Any]:
    """What was compared, for the record; GateError where it differs by more than it may.

    `first` is the loss of the first step, `expected` PyTorch's (None without PyTorch), `undropped` the loss with
    nothing dropped, of networks that drop something.
    """
    if not math.isfinite(first):
        raise GateError(f"the first step's loss is {first}")
    if expected is None:
        knowing_nothing = math.log(classes)
        if not knowing_nothing / PLAUSIBLE < first < knowing_nothing * PLAUSIBLE:
            raise GateError(
                f"the first step's loss is {first:.4f}; of a network of {classes} classes that knows nothing it is "
                f"near {knowing_nothing:.4f}"
            )
        return {"against": "log(classes): this Python has no PyTorch", "expected_loss": knowing_nothing}
    compared = first if undropped is None else undropped
    said = f"on the same weights and images the first loss is {compared:.6f} and PyTorch's {expected:.6f}: they differ"
    differences = {"loss": ("loss", abs(compared - expected) / abs(expected), TOLERANCES[precision])}
    facts = checked(said, differences, "PyTorch's")
    if undropped is not None and not abs(first - expected) <= DROPPED * abs(expected):
        raise GateError(f"with dropout the first step's loss is {first:.4f}, and without it {expected:.4f}")
    against = "PyTorch's first loss, in FP32 on the CPU" + ("" if undropped is None else ", with nothing dropped")
    return {"against": against, "expected_loss": expected, **facts}
