"""A prediction whose linear layers have INT8 or FP8 weights, by torchao.

INT8 are weights alone: a product reads half the bytes of BF16 and computes in BF16. FP8 are weights and activations,
which tensor cores of Hopper and later multiply.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

from torch import nn

from workbook.errors import Unsupported
from workbook.trials.rules import Rule

BASE = "bf16"  # what is not quantised, and what the gate compares with
FORMATS = ("int8", "fp8")
MULTIPLE = 16  # of the sides of a matrix that FP8 kernels take
# Options of Inductor on a GPU: those that torchao recommends, for one compilation and not for all of the process. With
# tuned coordinates, a product of one row is a reduction that reads INT8 weights as they are.
RECOMMENDED = {
    "coordinate_descent_tuning": True,
    "coordinate_descent_check_all_directions": True,
    "force_fuse_int_mm_with_mul": True,
}
# Of INT8 as well: since PyTorch 2.9 a pattern replaces products by a kernel that takes 13 to 65 times as long as BF16
# (H200, 2.11, https://github.com/pytorch/pytorch/pull/161680). Without patterns INT8 takes 1.0 to 1.5 times as long.
OF_INT8 = {"pattern_matcher": False}
# fmt: off
RULES = (
    Rule("never", lambda t: t.precision in FORMATS and t.workload != "own_prediction",
        "INT8 and FP8 weights predict, and do not train"),
    Rule("never", lambda t: t.precision == "fp8" and t.device == "cpu", "FP8 products need a GPU"),
    Rule("here", lambda t: t.precision in FORMATS and importlib.util.find_spec("torchao") is None,
        "torchao is not installed: `pip install torchao` brings INT8 and FP8 weights"),
)
# fmt: on


def quantise(model: nn.Module, precision: str) -> None:
    """Replace the weights of a BF16 network's linear layers in place. Raise Unsupported for a network without any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kernels of other devices that torchao does not find
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, Int8WeightOnlyConfig, quantize_

    if not any(_is_fit(layer) for layer in model.modules()):
        raise Unsupported(f"the network has no linear layer whose sides are multiples of {MULTIPLE}", "never")
    # torchao would change Inductor's settings for every later network of this process (`inductor_options`).
    form = Int8WeightOnlyConfig if precision == "int8" else Float8DynamicActivationFloat8WeightConfig
    config = form(set_inductor_config=False)
    quantize_(model, config, filter_fn=lambda layer, _name: _is_fit(layer))


def inductor_options(precision: str, device: str) -> dict[str, Any] | None:
    """Return Inductor's options for a network with weights of a precision; None for its usual ones."""
    if precision not in FORMATS or device == "cpu":
        return None
    return RECOMMENDED | (OF_INT8 if precision == "int8" else {})


def _is_fit(layer: Any) -> bool:
    return isinstance(layer, nn.Linear) and layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0
