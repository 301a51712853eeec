"""Correctness check: does Keras's first step compute PyTorch's loss, on the same weights and the same batch?

PyTorch's loss is computed on the CPU, in FP32, in a separate process: PyTorch's threads, memory and CUDA libraries
would stay in the timed process. The weights are Keras's, carried over by name. Dropout is disabled, because the random
number generators of the two frameworks differ.

Without randomness, Keras's loss is that of the timed step itself, by the engine that runs it. Networks with dropout
draw other values in each framework, so the step's loss may be a tenth away. For them, the loss without dropout is
compared as closely as in other networks.

    python -m workbook.engines.keras.reference ARRAYS SPECIFICATION     one line of JSON
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labkit.files import python_path, temporary_folder
from workbook.engines.comparison import checked
from workbook.engines.keras.networks.correspondence import Array
from workbook.engines.keras.training import HostBatch, Pixels
from workbook.errors import GateError
from workbook.hardware.frameworks import RUNNER_PYTHON
from workbook.trials.trial import Trial

_results: dict[tuple[Any, ...], dict[str, Any]] = {}


def reference(trial: Trial, pixels: Pixels, weights: Mapping[str, Array], batch: HostBatch) -> dict[str, Any]:
    """Return PyTorch's `loss`, and its counts of the model's operations. `weights` have PyTorch's names.

    The result for a network, seed and data is computed once in this process. Raise GateError if PyTorch fails.
    """
    network: dict[str, Any] = {
        name: getattr(trial, name) for name in ("model", "image_px", "classes", "head", "batch_of_step", "devices")
    }
    identity = (*network.values(), trial.seed, trial.data, trial.data_checksum)
    if identity not in _results:
        images, labels = batch
        specification = {**network, "pixels": pixels._asdict()}
        with temporary_folder() as folder:
            path = folder / "arrays.npz"
            arrays: dict[str, Any] = {f"weight {name}": value for name, value in weights.items()}
            np.savez(path, images=images, labels=labels, **arrays)
            _results[identity] = _in_a_process(path, specification)
    return _results[identity]


def _in_a_process(path: Path, specification: dict[str, Any]) -> dict[str, Any]:
    python = os.environ.get(RUNNER_PYTHON, sys.executable)
    process = subprocess.run(
        [python, "-m", "workbook.engines.keras.reference", str(path), json.dumps(specification)],
        env={**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no error message"])[-1]
        raise GateError(f"PyTorch could not compute the loss to compare with: {last}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def _compute(path: Path, specification: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch import nn

    from labkit.data.augment import Preparation
    from labkit.models import build, count

    network = {name: specification[name] for name in ("image_px", "classes", "head")}
    pixels = Pixels(**specification["pixels"])
    model = build(specification["model"], **network)
    with np.load(path) as arrays:
        state = {name.removeprefix("weight "): arrays[name] for name in arrays.files if name.startswith("weight ")}
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]).long()
    counted = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    model.load_state_dict({**{name: torch.from_numpy(value) for name, value in state.items()}, **counted})
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    prepare = Preparation(
        device=torch.device("cpu"),
        mean=tuple(pixels.mean),  # type: ignore[arg-type]
        std=tuple(pixels.std),  # type: ignore[arg-type]
        image_px=specification["image_px"],
    )
    parts = zip(*(tensor.chunk(specification["devices"]) for tensor in (prepare(images), labels)), strict=True)
    with torch.no_grad():  # each device normalises by its own images
        losses = [nn.functional.cross_entropy(model.train()(part), right) for part, right in parts]
    cost = count(specification["model"], **network)
    return {
        "loss": float(torch.stack(losses).mean()),
        "flop_training": cost.flop_training,
        "flop_forward": cost.flop_forward,
    }


if __name__ == "__main__":
    print(json.dumps(_compute(Path(sys.argv[1]), json.loads(sys.argv[2]))))  # noqa: T201 - the answer


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
