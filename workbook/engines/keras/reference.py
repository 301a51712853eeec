"""PyTorch's loss for the first batch, without Keras: Keras's first step is compared with it.

It is computed on the CPU, in FP32, in a separate process: PyTorch's threads, memory and CUDA libraries would stay in
the timed process. The weights are Keras's, carried over by name. Dropout is disabled, because the random number
generators of the two frameworks differ.

    python -m workbook.engines.keras.reference ARRAYS SPECIFICATION     one line of JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labkit.files import python_path, temporary_folder
from workbook.engines.keras.host_batches import HostBatch
from workbook.engines.keras.networks.carried import Array
from workbook.engines.keras.training import Pixels
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
