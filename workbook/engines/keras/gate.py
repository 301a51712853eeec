"""Correctness check: does Keras's first step compute PyTorch's loss, on the same weights and the same batch?

Without randomness, the loss is that of the timed step itself, by the engine that runs it. Networks with dropout draw
other values in each framework, so the step's loss may be a tenth away. For them, the loss without dropout is compared
as closely as in other networks.
"""

from __future__ import annotations

import math
from typing import Any

from workbook.engines.tolerances import checked
from workbook.errors import GateError

# Relative, of the first loss. FP32 and TF32 round far less than another batch would change (1.5 % of ResNet-50's loss).
# For Inception-BN and GoogLeNet at batch 16 on 32x32 images, BF16 was up to 0.4 % away, FP16 0.02 %. So trials in BF16
# detect a wrong network; FP32 trials of the same loop detect a wrong batch.
TOLERANCES = {"fp32": 1e-4, "tf32": 5e-4, "fp16": 2e-3, "bf16": 2e-2}
DROPPED = 0.1  # of an untrained network's loss: what dropout may change


def judge(first: float, *, expected: float, undropped: float | None, precision: str) -> dict[str, Any]:
    """Return facts on the comparison for the record. Raise GateError if a difference is larger than it may be.

    `first` is the loss of the first step, `expected` PyTorch's loss. `undropped` is the loss without dropout, for
    networks that have it.
    """
    if not math.isfinite(first):
        raise GateError(f"the first step's loss is {first}")
    compared = first if undropped is None else undropped
    claim = f"on the same weights and images the first loss is {compared:.6f} and PyTorch's {expected:.6f}: they differ"
    differences = {"loss": ("loss", abs(compared - expected) / abs(expected), TOLERANCES[precision])}
    facts = checked(claim, differences, "PyTorch's")
    if undropped is not None and not abs(first - expected) <= DROPPED * abs(expected):
        raise GateError(f"with dropout the first step's loss is {first:.4f}, and without it {expected:.4f}")
    against = "PyTorch's first loss, in FP32 on the CPU" + ("" if undropped is None else ", with nothing dropped")
    return {"against": against, "expected_loss": expected, **facts}
