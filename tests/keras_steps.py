"""Train with labkit's loop in a process with one Keras back end. The last line of output is JSON, keyed by job.

`KERAS_BACKEND=tensorflow python -m tests.keras_steps function xla ...`: jobs are engines, `gate` and `dropout`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import keras
import numpy as np
import torch

from labkit.data import DataSet, open_data
from labkit.models import build
from tests.keras_beside_torch import settle, shorten_resnet50
from tests.prepared import checked
from workbook.engines.comparison import damp
from workbook.engines.keras import reference
from workbook.engines.keras.back_end import make_training
from workbook.engines.keras.networks.correspondence import carry_to_keras, carry_to_torch
from workbook.engines.keras.training import HostBatch, KerasTraining, Pixels
from workbook.engines.training import plain_sgd
from workbook.errors import GateError
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

FRAMEWORK = f"keras-{keras.backend.backend()}"
BATCH, RATE = 16, 1e-3  # a small rate: at a larger one, three steps would compare rounding (`keras_beside_torch`)
ORDER = (0, 0, 1, 0)  # batch of each compared step: batch 0 repeats, so its loss shows the effect of the steps
MORE = 2  # steps after those in ORDER, each on a new batch
PIXELS = Pixels(32, (127.0, 126.0, 128.0), (74.0, 73.0, 75.0))


def trial(engine: str, **fields: Any) -> Trial:
    usual: dict[str, Any] = {"model": "resnet50", "classes": 10, "batch": BATCH, "learning_rate": RATE}
    return Trial(framework=FRAMEWORK, engine=engine, device="cpu", **(usual | fields))


def images() -> DataSet:
    return open_data("digits")


def steps(job: str) -> dict[str, Any]:
    """Return the losses of the steps and of PyTorch's on equal weights and batches, and the number of traces.

    Job `xla:2` trains on two devices, each of which normalises its own half of the batch.
    """
    engine, _, number_of_devices = job.partition(":")
    devices = int(number_of_devices or 1)
    training = make_training(trial(engine, batch=BATCH // devices, devices=devices), PIXELS)
    initial, expected, state = in_pytorch(devices)
    carry_to_keras(initial, training.model)
    losses, phases = [], []
    for name, prepare in training.preparations(noise(0)):
        prepare()
        phases.append(name)
    for number in ORDER:
        if not training.steps:  # a preparation may have taken the first step
            training.update(noise(number))
        losses.append(training.take_loss())
    after_three = training.traces
    for number in range(2, 2 + MORE):
        training.update(noise(number))
    training.wait()
    mean = training.take_loss()
    training.store()
    final = carry_to_torch(training.model)
    weights = [name for name in final if "running" not in name]
    return {
        "losses": losses,
        "torch": expected,
        "phases": phases,
        "traces": training.traces,
        "traces_after_three": after_three,
        "finite": bool(np.isfinite(mean)),
        "moved": sum(not np.array_equal(final[name], state[name]) for name in weights),
        "weights": len(weights),
        "none_after": bool(np.isnan(training.take_loss())),
    }


@cache
def in_pytorch(devices: int) -> tuple[dict[str, Any], list[float], dict[str, Any]]:
    """Return PyTorch's initial weights, the losses of the steps in `ORDER`, and the weights after those steps."""
    torch.manual_seed(0)
    model = build("resnet50", classes=10)
    damp(model)
    settle(model, as_torch(noise(0)[0]))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = plain_sgd(model.parameters(), RATE)
    losses = []
    for images, labels in map(noise, ORDER):
        optimizer.zero_grad()
        parts = zip(as_torch(images).chunk(devices), torch.from_numpy(labels).long().chunk(devices), strict=True)
        loss = torch.stack([torch.nn.functional.cross_entropy(model(some), right) for some, right in parts]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return initial, losses, {name: value.numpy() for name, value in model.state_dict().items()}


def noise(seed: int) -> HostBatch:
    """Return random images and labels. Similar images would give batch norm a small divisor and amplify rounding."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (BATCH, 3, PIXELS.edge_px, PIXELS.edge_px), dtype=np.uint8)
    return images, random.integers(0, 10, BATCH).astype(np.int32)


def as_torch(images: Any) -> torch.Tensor:
    """Return images that are normalised as in the loop."""
    mean, std = (torch.tensor(levels).view(1, 3, 1, 1) for levels in (PIXELS.mean, PIXELS.std))
    return (torch.from_numpy(images).float() - mean) / std


def gate() -> dict[str, Any]:
    """Return the gate's results for a correct step, for a step on other images and for one with other weights.

    `restarted` holds the losses after and before the gate, which must restore the initial weights and the first batch.
    """
    engine = "xla" if FRAMEWORK == "keras-jax" else "eager"
    results: dict[str, Any] = {}
    for case in ("right", "other images", "other weights"):
        workload: Any = build_workload(trial(engine, classes=1000), images())
        training: KerasTraining = workload.training
        initial = training.loss_without_dropout(workload._batch) if case == "right" else None
        first_batch = workload._batch
        if case == "other images":
            workload._batch = (first_batch[0][::-1].copy(), first_batch[1])
        try:
            for name, prepare in workload.preparations():
                prepare()
                if name == "weights" and case == "other weights":
                    for variable in training.model.trainable_variables[-2:]:
                        variable.assign(variable * 1.5)
                workload._batch = first_batch if name == "first_step" else workload._batch
            workload.check()
            results[case] = workload.facts["gate"]
            workload.step()
            results["restarted"] = [workload.read_loss(), initial]
        except GateError as error:
            results[case] = str(error)
    return results


def dropout() -> dict[str, Any]:
    """Return the gate's losses without dropout, the first step's loss with dropout, and the dropout rates."""
    engine = "xla" if FRAMEWORK == "keras-jax" else "eager"
    dropping = replace(trial(engine, batch=4, classes=1000), model="vgg16", head="head512")
    workload = checked(dropping, images())
    rates = [layer.rate for layer in workload.training.model.layers if isinstance(layer, keras.layers.Dropout)]
    return {"gate": workload.facts["gate"], "first": workload.facts["first_loss"], "rates": rates}


if __name__ == "__main__":
    shorten_resnet50(first=1)
    reference._in_a_process = reference._compute  # PyTorch is loaded in this process
    jobs = {"gate": gate, "dropout": dropout}
    print(json.dumps({job: jobs[job]() if job in jobs else steps(job) for job in sys.argv[1:]}))
