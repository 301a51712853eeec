"""Run jobs in a process with one Keras back end (KERAS_BACKEND). The last line of output is JSON, keyed by job.

`python -m tests.keras_checks counts carrying float32:resnet50 float64:resnet50 ...`
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import torch
from torch import nn

from labkit.errors import LabkitError
from labkit.models import input_sizes
from labkit.models.facts import variants
from tests.keras_beside_torch import apart, compare, predict, shorten_resnet50
from workbook.engines.keras import networks as in_keras
from workbook.engines.keras.networks.correspondence import carry_to_keras, carry_to_torch, pairs
from workbook.engines.keras.networks.layers import Layers
from workbook.engines.keras.sgd import TorchSGD


@patch.multiple(Layers, _normal=lambda *_: "zeros", _uniform=lambda *_: "zeros")  # drawing weights takes longest
def counts() -> dict[str, list[Any]]:
    """Return the number of trainable values of every variant at the smallest image size, in the order of `variants`."""
    values_of: dict[str, list[Any]] = {}
    for name in in_keras.KERAS_MODELS:
        for image_px, head in variants(name):
            if image_px != input_sizes(name)[0]:
                continue
            model = in_keras.build(name, image_px=image_px, head=head)
            values_of.setdefault(name, []).append(trainable(model))
    return values_of


def trainable(model: Any) -> int:
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def carrying() -> dict[str, Any]:
    """Check carrying of weights for a small network whose dense layer takes 2x3 flattened features of 4 channels."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(24, 5)).eval()
    layers = keras.layers
    stack = [keras.Input((4, 5, 3)), layers.Conv2D(4, 3, name="0"), layers.BatchNormalization(epsilon=1e-5, name="1")]
    theirs = keras.Sequential([*stack, layers.Flatten(), layers.Dense(5, name="3")])
    with torch.no_grad():
        ours[1].running_mean.uniform_()
        ours[1].weight.uniform_()
    carry_to_keras(ours.state_dict(), theirs)
    images = torch.randn(2, 3, 4, 5)
    keras_images = images.permute(0, 2, 3, 1).numpy()
    before = ours(images).detach().numpy()
    back = carry_to_torch(theirs)
    returned = all(
        np.array_equal(back[name], value.numpy()) for name, value in ours.state_dict().items() if name in back
    )
    with torch.no_grad():
        for weight in ours.parameters():
            weight.zero_()
    after = predict(theirs, keras_images)
    state = {name: value.numpy() for name, value in ours.state_dict().items()}
    wrong = {
        "more": {**state, "4.weight": state["3.weight"]},
        "less": {name: value for name, value in state.items() if name != "1.running_var"},
        "shape": {**state, "3.weight": state["3.weight"][:, :20]},
    }
    return {
        "logits": apart(after, before),
        "names": sorted(back),
        "returned": returned,
        "refused": {case: refusal(lambda given=given: carry_to_keras(given, theirs)) for case, given in wrong.items()},
        "unchanged": apart(predict(theirs, keras_images), after),
        "flattened": [pair.flattened for pair in pairs(theirs) if pair.flattened],
    }


def refusal(attempt: Any) -> str:
    try:
        attempt()
    except LabkitError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def optimiser() -> dict[str, float]:
    """Return relative differences of labkit's and Keras's SGD to PyTorch's, after five steps at changing rates."""
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal(50), rng.standard_normal((5, 50))
    rates = (0.1, 0.1, 0.02, 0.3, 0.05)
    weight = nn.Parameter(torch.tensor(start))
    theirs = torch.optim.SGD([weight], lr=rates[0], momentum=0.9, weight_decay=0.05)
    for rate, gradient in zip(rates, gradients, strict=True):
        theirs.param_groups[0]["lr"] = rate
        weight.grad = torch.tensor(gradient)
        theirs.step()
    difference_of = {}
    for name, make in {
        "ours": lambda: TorchSGD(rates[0], momentum=0.9, decay=0.05),
        "keras": lambda: keras.optimizers.SGD(rates[0], momentum=0.9, weight_decay=0.05),
    }.items():
        optimizer, variable = make(), keras.Variable(start, dtype="float64")
        for rate, gradient in zip(rates, gradients, strict=True):
            optimizer.learning_rate.assign(rate)
            optimizer.apply([keras.ops.convert_to_tensor(gradient, "float64")], [variable])
        difference_of[name] = apart(keras.ops.convert_to_numpy(variable), weight.detach().numpy())
    return difference_of


def seeds() -> list[float]:
    """Return the first weight of each of three models: two with the same seed and one with another seed."""
    models = [in_keras.build("vgg16", head="head512", classes=10, seed=seed) for seed in (3, 3, 4)]
    return [float(carry_to_torch(model)["features.0.weight"].ravel()[0]) for model in models]


JOBS = {"counts": counts, "carrying": carrying, "optimiser": optimiser, "seeds": seeds}


def main() -> None:
    torch.set_num_threads(1)
    results = {}
    for job in sorted(sys.argv[1:], key=lambda job: ":" in job):  # `counts` is of the whole networks
        precision, _, name = job.rpartition(":")
        if precision == "float32" and name == "resnet50":  # job float64:resnet50 compares the whole network
            shorten_resnet50(first=2)
        results[job] = compare(name, precision) if precision else JOBS[name]()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
