"""A process with one of Keras's back ends (KERAS_BACKEND); the last line is JSON, job by job.

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

from labkit.engines.in_keras.sgd import TorchSGD
from labkit.errors import LabkitError
from labkit.models import in_keras, input_sizes
from labkit.models.facts import variants
from labkit.models.in_keras.carried import carry_to_keras, carry_to_torch, pairs
from labkit.models.in_keras.layers import Layers
from tests.keras_beside_torch import apart, compare, predict


@patch.multiple(Layers, _normal=lambda *_: "zeros", _uniform=lambda *_: "zeros")  # drawing them takes longest
def counts() -> dict[str, list[Any]]:
    """Trainable values of every variant on the smallest images, in the order of `variants`."""
    found: dict[str, list[Any]] = {}
    for name in in_keras.KERAS_MODELS:
        for image_px, stem, head in variants(name):
            if image_px != input_sizes(name)[0]:
                continue
            model = in_keras.build(name, image_px=image_px, stem=stem, head=head)
            found.setdefault(name, []).append(trainable(model))
    return found


def trainable(model: Any) -> int:
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def carrying() -> dict[str, Any]:
    """Of a small network whose matrix takes 2x3 features of 4 channels flat."""
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
    same = images.permute(0, 2, 3, 1).numpy()
    before = ours(images).detach().numpy()
    back = carry_to_torch(theirs)
    returned = all(
        np.array_equal(back[name], value.numpy()) for name, value in ours.state_dict().items() if name in back
    )
    with torch.no_grad():
        for weight in ours.parameters():
            weight.zero_()
    after = predict(theirs, same)
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
        "unchanged": apart(predict(theirs, same), after),
        "flattened": [pair.flattened for pair in pairs(theirs) if pair.flattened],
    }


def refusal(attempt: Any) -> str:
    try:
        attempt()
    except LabkitError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def optimiser() -> dict[str, float]:
    """Five steps of an array with gradients that are given, at rates that change: ours and Keras's beside PyTorch's."""
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal(50), rng.standard_normal((5, 50))
    rates = (0.1, 0.1, 0.02, 0.3, 0.05)
    weight = nn.Parameter(torch.tensor(start))
    theirs = torch.optim.SGD([weight], lr=rates[0], momentum=0.9, weight_decay=0.05)
    for rate, gradient in zip(rates, gradients, strict=True):
        theirs.param_groups[0]["lr"] = rate
        weight.grad = torch.tensor(gradient)
        theirs.step()
    found = {}
    for name, make in {
        "ours": lambda: TorchSGD(rates[0], momentum=0.9, decay=0.05),
        "keras": lambda: keras.optimizers.SGD(rates[0], momentum=0.9, weight_decay=0.05),
    }.items():
        optimizer, variable = make(), keras.Variable(start, dtype="float64")
        for rate, gradient in zip(rates, gradients, strict=True):
            optimizer.learning_rate.assign(rate)
            optimizer.apply([keras.ops.convert_to_tensor(gradient, "float64")], [variable])
        found[name] = apart(keras.ops.convert_to_numpy(variable), weight.detach().numpy())
    return found


def seeds() -> list[float]:
    """First weights of two models of the same seed and of one of another."""
    models = [in_keras.build("vgg16", head="head512", classes=10, seed=seed) for seed in (3, 3, 4)]
    return [float(carry_to_torch(model)["features.0.weight"].ravel()[0]) for model in models]


JOBS = {"counts": counts, "carrying": carrying, "optimiser": optimiser, "seeds": seeds}


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    for job in sys.argv[1:]:
        precision, _, name = job.rpartition(":")
        found[job] = compare(name, precision) if precision else JOBS[name]()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
