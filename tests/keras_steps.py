"""A process of one framework of Keras that trains with labkit's loop; the last line is JSON, job by job.

`KERAS_BACKEND=tensorflow python -m tests.keras_steps function xla ...`: jobs are engines, or `stale` and `shapes`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import torch

from labkit.data import DataSet, open_data
from labkit.data.host_batches import HostBatches
from labkit.engines.damping import damp
from labkit.engines.keras_training import KerasTraining, Pixels, make_training
from labkit.engines.training import plain_sgd
from labkit.errors import GateError
from labkit.models import build
from labkit.models.in_keras.carried import carry_to_keras, carry_to_torch
from labkit.trial import Trial
from labkit.workloads import build_workload
from tests.keras_beside_torch import settle

FRAMEWORK = f"keras-{keras.backend.backend()}"
BATCH, STEPS, RATE = 8, 3, 1e-3  # small steps: at a larger rate three would compare rounding (`keras_beside_torch`)
MORE = 5  # steps after those that are compared, each on another batch


def trial(engine: str, **fields: Any) -> Trial:
    usual: dict[str, Any] = {"model": "resnet50", "classes": 10, "batch": BATCH, "learning_rate": RATE}
    return Trial(framework=FRAMEWORK, engine=engine, device="cpu", **(usual | fields))


def images() -> DataSet:
    return open_data("digits")


def steps(engine: str) -> dict[str, Any]:
    """Losses of three steps beside PyTorch's on the same weights and batches, and how often the step was traced."""
    data = images()
    training = make_training(trial(engine), Pixels(data.edge_px, data.mean, data.std))
    batches = HostBatches(data.train, batch=BATCH, seed=0)
    first = batches.next_batch()
    torch.manual_seed(0)
    model = build("resnet50", classes=10)
    damp(model)
    settle(model, as_torch(first[0], data))
    carry_to_keras(model.state_dict(), training.model)
    optimizer = plain_sgd(model.parameters(), RATE)
    losses, expected, phases = [], [], []
    for name, prepare in training.preparations(first):
        prepare()
        phases.append(name)
    batch = first
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(as_torch(batch[0], data)), torch.from_numpy(batch[1]).long())
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
        if not training.steps:  # preparing may have taken the first one
            training.update(batch)
        losses.append(training.take_loss())
        batch = batches.next_batch() if step % 2 else batch  # each batch twice: its loss then says what a step did
    after_three = training.traces
    for _ in range(MORE):
        training.update(batches.next_batch())
    training.wait()
    mean = training.take_loss()
    training.store()
    now, state = carry_to_torch(training.model), model.state_dict()
    return {
        "losses": losses,
        "torch": expected,
        "phases": phases,
        "traces": training.traces,
        "traces_after_three": after_three,
        "finite": bool(np.isfinite(mean)),
        "moved": sum(not np.array_equal(now[name], state[name].numpy()) for name, _ in model.named_parameters()),
        "weights": sum(1 for _ in model.parameters()),
        "none_after": bool(np.isnan(training.take_loss())),
    }


def as_torch(pixels: Any, data: DataSet) -> torch.Tensor:
    mean, std = (torch.tensor(levels).view(1, 3, 1, 1) for levels in (data.mean, data.std))
    return (torch.from_numpy(pixels).float() - mean) / std.clamp_min(1)


def gate() -> dict[str, Any]:
    """What the gate says of a step that is right, and of one that reads other images or has other weights."""
    engine = "xla" if FRAMEWORK == "keras-jax" else "eager"
    found: dict[str, Any] = {}
    for case in ("right", "other images", "other weights"):
        workload: Any = build_workload(trial(engine, classes=1000), images())
        training: KerasTraining = workload.training
        for name, prepare in workload.preparations():
            prepare()
            if name == "reference" and case == "other weights":
                for variable in training.model.trainable_variables[:3]:
                    variable.assign(variable * 1.5)
        if case == "other images":
            workload._batch = (workload._batch[0][::-1].copy(), workload._batch[1])
        try:
            workload.check()
            found[case] = workload.facts["gate"]
        except GateError as error:
            found[case] = str(error)
    return found


def dropout() -> dict[str, Any]:
    """Of a network that drops values: PyTorch's loss with nothing dropped, and a step that still drops."""
    engine = "xla" if FRAMEWORK == "keras-jax" else "eager"
    dropping = replace(trial(engine, batch=4, classes=1000), model="vgg16", head="head512")
    workload: Any = build_workload(dropping, images())
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    rates = [layer.rate for layer in workload.training.model.layers if isinstance(layer, keras.layers.Dropout)]
    return {"gate": workload.facts["gate"], "first": workload.facts["first_loss"], "rates": rates}


if __name__ == "__main__":
    jobs = {"gate": gate, "dropout": dropout}
    print(json.dumps({job: jobs[job]() if job in jobs else steps(job) for job in sys.argv[1:]}))
