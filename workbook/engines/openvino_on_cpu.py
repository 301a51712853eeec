"""OpenVINO on a CPU: a network in FP32, in BF16 where the CPU has it, or in INT8, quantised after training by NNCF.

Weights are quantised per channel and activations per tensor, both symmetrically. Activations' ranges are their extremes
over the calibration images; then biases are corrected (NNCF's defaults). The Dell paper's TensorRT takes symmetric
ranges too, but chooses them by entropy. On a CPU with AMX or AVX512-VNNI, convolutions multiply bytes.

This module switches off two defaults: OpenVINO computes "FP32" in BF16 where the CPU has it, and both packages send
usage statistics to Google as soon as they are imported.

Known limit: OpenVINO 2026.4.1 errs where activations between convolutions are signed (no ReLU before a convolution but
the first). It strayed from the result of its own rounding in FP32 (0.6 against 0.05 of the logits' spread in a network
of three convolutions). The workbook's networks have a ReLU everywhere.

`benchmarks/int8_on_cpu.py` measures why OpenVINO was chosen rather than ONNX Runtime or PyTorch's PT2E.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal, get_args

import torch
from torch import nn

from labkit.data import DataSet
from workbook.engines.inference_images import calibration_batches, facts_of
from workbook.engines.prediction import Predictor
from workbook.hardware.limits import usable_cores
from workbook.trials.trial import Trial

Precision = Literal["fp32", "bf16", "int8"]
PRECISIONS = get_args(Precision)
HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}  # of layers that do not multiply bytes
PACKAGES = ("openvino", "nncf")
MULTIPLYING = ("Convolution", "FullyConnected")  # as OpenVINO names the layers that can be quantised


def missing(precision: str = "int8") -> str | None:
    """Return which packages predictions in `precision` need and lack here, without a full stop; None if none."""
    needed = PACKAGES if precision == "int8" else PACKAGES[:1]
    names = [name for name in needed if not _is_installed(name)]
    how = f"pip install {' '.join(names)}"
    return f"OpenVINO in {precision} needs {' and '.join(names)}, not installed here ({how})" if names else None


def has_bf16() -> bool:
    """Return whether this CPU computes in BF16."""
    return "BF16" in _import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    return {name: version(name) for name in PACKAGES if _is_installed(name)}


class CompiledNetwork:
    """A network that predicts on the CPU, compiled for one batch size."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return new FP32 logits (batch, classes) of FP32 images (batch, 3, H, W)."""
        return torch.from_numpy(self._request.infer([images.contiguous().numpy()], share_inputs=True)[0])

    def layers(self) -> dict[str, Counter[str]]:
        """Return how many layers of each quantisable kind multiply in which type, as the plugin compiled them.

        `{"Convolution": {"u8": 52, "i8": 1}, "FullyConnected": {"u8": 1}}`; the type is the input's.
        """
        counts: dict[str, Counter[str]] = {}
        for operation in self._compiled.get_runtime_model().get_ops():
            facts = operation.get_rt_info()
            kind = facts["layerType"].astype(str)
            if kind in MULTIPLYING:
                counts.setdefault(kind, Counter())[facts["runtimePrecision"].astype(str)] += 1
        return counts


def convert(model: torch.nn.Module, images: torch.Tensor) -> Any:
    """Return OpenVINO's network for any number of images (n, 3, H, W) like these. Raise ValueError in training mode."""
    if model.training:
        raise ValueError("the model is in training mode: call eval() first, or batch norm would follow the batch")
    openvino = _import_openvino()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer's, on shapes that it takes for constants
        network = openvino.convert_model(model, example_input=images[:2], input=[-1, *images.shape[1:]])
    _round_pools_down(network)
    return network


def compile_converted(network: Any, *, precision: Precision, batch: int, threads: int) -> CompiledNetwork:
    """Set OpenVINO's `network` to this batch for good, and return it compiled to predict on `threads` cores."""
    openvino = _import_openvino()
    network.reshape([batch, *list(network.input(0).get_partial_shape())[1:]])
    options = {"INFERENCE_PRECISION_HINT": HINTS[precision], "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    return CompiledNetwork(openvino.Core().compile_model(network, "CPU", options))


def _round_pools_down(network: Any) -> None:
    """Replace max-pools that round their output's size up with pools that round down and pad the end: the same results.

    OpenVINO takes no bytes through pools that round up. Then 19 of GoogLeNet's 57 convolutions multiply FP32.
    """
    from openvino import opset1

    for pool in network.get_ordered_ops():
        facts = pool.get_attributes() if pool.get_type_name() == "MaxPool" else {}
        if not facts.get("rounding_type", "floor").startswith("ceil") or set(facts.get("dilations", [1])) != {1}:
            continue
        kernel, strides, begin = facts["kernel"], facts["strides"], facts["pads_begin"]
        before, after = (port.get_partial_shape() for port in (pool.input(0), pool.output(0)))
        sides = [(before[axis].get_length(), after[axis].get_length()) for axis in (2, 3)]
        reach = [(made - 1) * step + width for (_, made), step, width in zip(sides, strides, kernel, strict=True)]
        end = [max(0, far - had - first) for far, (had, _), first in zip(reach, sides, begin, strict=True)]
        twin = opset1.max_pool(pool.input_value(0), strides, begin, end, kernel, "floor", "explicit")
        pool.output(0).replace(twin.output(0))


def quantise(network: Any, batches: list[torch.Tensor]) -> Any:
    """Return a copy of OpenVINO's `network` that rounds inputs of convolutions and matrix products to 8 bits."""
    import nncf
    import rich

    nncf.set_log_level(logging.ERROR)
    samples = nncf.Dataset([images.numpy() for images in batches])
    preset = nncf.QuantizationPreset.PERFORMANCE
    console = rich.get_console()  # NNCF draws progress bars there, which a notebook without a screen must not have
    was_quiet, console.quiet = console.quiet, True
    try:
        return nncf.quantize(network, samples, preset=preset, subset_size=len(batches), fast_bias_correction=True)
    finally:
        console.quiet = was_quiet


def _import_openvino() -> Any:
    """Return openvino, imported without the module that reports its use and NNCF's; both run without that module."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
# The last network of this process that was quantised, by its trial without what follows quantisation. Finding ranges
# takes longer than all that is timed, and batch sizes share them.
_QUANTISED: dict[Trial, Any] = {}


class OpenVinoPredictor(Predictor):
    """A predictor by OpenVINO on a CPU. `model` is in evaluation mode with FP32 weights and is not changed.

    OpenVINO fuses batch norm and other layers by itself (`folded` is 0), and takes FP32 images in every precision.
    """

    dtype = torch.float32

    def __init__(self, trial: Trial, model: nn.Module, data: DataSet) -> None:
        super().__init__(trial)
        self._model, self._data = model, data
        self._threads = trial.threads or usable_cores()
        self.weight_bytes = WEIGHT_BYTES[trial.precision]
        self.facts |= {"threads": self._threads, "engine_versions": versions()}
        self._network: Any = None
        self._compiled: CompiledNetwork | None = None

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield the conversion of the network, and for INT8 the search for ranges."""
        yield "convert", self._convert
        if self.trial.precision == "int8":
            yield "calibrate", self._calibrate

    def _convert(self) -> None:
        px = self.trial.image_px
        self._network = convert(self._model, torch.zeros(2, 3, px, px))

    def _calibrate(self) -> None:
        batches = calibration_batches(self.trial, self._data)
        alike = replace(self.trial.only_timed(), batch=1, threads=0, counted=False)
        self.facts["calibration"] = facts_of(batches, self._data) | {"shared": alike in _QUANTISED}
        if alike not in _QUANTISED:
            _QUANTISED.clear()
            _QUANTISED[alike] = quantise(self._network, batches)
        self._network = _QUANTISED[alike].clone()

    def compile(self) -> None:
        """Compile for the trial's batch; `facts` then says which layers multiply in which type."""
        assert self._network is not None, "prepare first"
        about: dict[str, Any] = {"precision": self.trial.precision, "batch": self.trial.batch, "threads": self._threads}
        self._compiled = compile_converted(self._network, **about)
        self.facts["layers"] = {kind: dict(types) for kind, types in self._compiled.layers().items()}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, classes) of images (B, 3, H, W) in FP32."""
        assert self._compiled is not None, "compile first"
        return self._compiled(images)
