"""Each network in Keras beside PyTorch's, same weights, same batch; for a process with one of Keras's back ends.

The relative difference of two arrays is the length of the difference over that of PyTorch's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
import torch
from torch import nn

from labkit.engines.damping import damp
from labkit.engines.in_keras.sgd import TorchSGD
from labkit.engines.training import plain_sgd
from labkit.models import build, in_keras
from labkit.models.in_keras.carried import carry_to_keras, carry_to_torch, pairs

CLASSES, STEPS = 10, 3
RATE_IN_FLOAT64 = 0.01  # a trial's default


@dataclass(frozen=True)
class Case:
    """What is built and trained. `rate` is of FP32.

    Gradients of a network with batch norm at its initial weights grow from layer to layer towards the images, and
    rounding with them: of Inception-BN two frameworks' first losses agree to 1e-7, and their first gradients to 3e-2.
    At the usual rate three steps would compare rounding. So a ResNet's branches are weakened (as in labkit's gate), and
    the others' rate is small enough for the steps to be near each other and large enough to change the loss by far more
    than the tolerance. In FP64 they train at the usual rate, and rounding is nowhere near.
    """

    rate: float
    px: int = 32
    batch: int = 16
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "resnet50": Case(1e-3),
    "vgg16": Case(0.05, batch=8, options={"head": "head512"}),
    "googlenet": Case(1e-5),
    "inception_bn": Case(1e-7),
    "inception_v3": Case(1e-7, px=299, batch=2),  # the only size that labkit builds it for
}


def compare(name: str, precision: str) -> dict[str, Any]:
    """Counts, and relative differences of logits, losses, gradients, and weights and statistics after the steps."""
    torch.set_default_dtype(getattr(torch, precision))
    keras.config.set_floatx(precision)
    case = CASES[name]
    rate = case.rate if precision == "float32" else RATE_IN_FLOAT64
    torch.manual_seed(0)
    model = build(name, image_px=case.px, classes=CLASSES, **case.options)
    other = in_keras.build(name, image_px=case.px, classes=CLASSES, **case.options)
    found: dict[str, Any] = {"initial_spread": spread_beside(carry_to_torch(other), model)}
    found["dropout"] = [without_dropout(model), without_dropout_in_keras(other)]
    images, labels = torch.randn(case.batch, 3, case.px, case.px), torch.randint(CLASSES, (case.batch,))
    damp(model)
    settle(model, images)
    carry_to_keras(model.state_dict(), other)

    model.eval()
    with torch.no_grad():
        logits = model(images).numpy()
    same = images.permute(0, 2, 3, 1).numpy()
    found["parameters"] = [
        sum(weight.numel() for weight in model.parameters()),
        sum(int(np.prod(variable.shape)) for variable in other.trainable_variables),
    ]
    found["logits"] = apart(predict(other, same), logits)
    model.train()
    found["losses"], gradients = train_torch(model, images, labels, rate)
    train = {"tensorflow": train_tensorflow, "jax": train_jax}[keras.backend.backend()]
    found["keras_losses"], other_gradients = train(other, same, labels.numpy(), rate)
    found["gradients"] = apart_together(other_gradients, gradients)
    now, state = carry_to_torch(other), model.state_dict()
    weights = {key: state[key].numpy() for key, _ in model.named_parameters()}
    found["weights"] = apart_together(now, weights)
    found["statistics"] = apart_together(now, {key: state[key].numpy() for key in state if "running" in key})
    return found


def spread_beside(theirs: dict[str, Any], model: nn.Module) -> float:
    """How far standard deviations of initial weights are from PyTorch's at most, as a ratio above 1.

    Of tensors of 1,000 values and more, whose own is known to a few per cent.
    """
    ours = {name: weight.detach().numpy() for name, weight in model.named_parameters() if weight.numel() >= 1000}
    ratios = [values.std() / theirs[name].std() for name, values in ours.items() if values.std()]
    return float(max(max(ratio, 1 / ratio) for ratio in ratios))


def without_dropout(model: nn.Module) -> list[float]:
    """Two frameworks draw different numbers: nothing is dropped. The rates that there were."""
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    rates = [module.p for module in dropouts]
    for module in dropouts:
        module.p = 0.0
    return rates


def without_dropout_in_keras(model: Any) -> list[float]:
    dropouts = [layer for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    rates = [layer.rate for layer in dropouts]
    for layer in dropouts:
        layer.rate = 0.0
    return rates


@torch.no_grad()
def settle(model: nn.Module, images: torch.Tensor) -> None:
    """Running statistics of the batch, and scales and shifts that are not 1 and 0: else a mistake there is not seen."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.weight.mul_(torch.empty_like(norm.weight).uniform_(0.8, 1.2))
        norm.bias.uniform_(-0.1, 0.1)
        norm.momentum = 1.0
    model.train()
    model(images)
    for norm in norms:
        norm.momentum = 0.1


def train_torch(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, rate: float
) -> tuple[list[float], dict[str, Any]]:
    """The loss before each step and after the last, and the first gradients."""
    optimizer = plain_sgd(model.parameters(), rate)
    losses, first = [], {}
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        losses.append(loss.item())
        if step == STEPS:
            break
        loss.backward()
        if not first:
            first = {name: weight.grad.clone().numpy() for name, weight in model.named_parameters()}
        optimizer.step()
    return losses, first


def gradients_to_torch(model: Any, gradients: Any) -> dict[str, Any]:
    """Gradients in the order of the model's `trainable_variables`, with PyTorch's names and order of axes."""
    by_variable = {id(variable): one for variable, one in zip(model.trainable_variables, gradients, strict=True)}
    trained = [pair for pair in pairs(model) if id(pair.variable) in by_variable]
    return {pair.name: pair.to_torch(keras.ops.convert_to_numpy(by_variable[id(pair.variable)])) for pair in trained}


def loss_of(labels: Any, logits: Any) -> Any:
    """Mean cross-entropy."""
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))


def train_tensorflow(model: Any, images: Any, labels: Any, rate: float) -> tuple[list[float], dict[str, Any]]:
    """The same by a tape, eagerly."""
    import tensorflow as tf

    optimizer = TorchSGD(rate)
    optimizer.build(model.trainable_variables)
    losses, first = [], {}
    for step in range(STEPS + 1):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        losses.append(float(loss))
        if step == STEPS:
            break
        gradients = tape.gradient(loss, model.trainable_variables)
        first = first or gradients_to_torch(model, gradients)
        optimizer.apply(gradients, model.trainable_variables)
    return losses, first


def train_jax(model: Any, images: Any, labels: Any, rate: float) -> tuple[list[float], dict[str, Any]]:
    """The same by a pure function of all variables, compiled."""
    import jax

    optimizer = TorchSGD(rate)
    optimizer.build(model.trainable_variables)

    def loss_and_rest(trained: Any, rest: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        logits, rest = model.stateless_call(trained, rest, images, training=True)
        return loss_of(labels, logits), rest

    @jax.jit
    def step(trained: Any, rest: Any, kept: Any, images: Any, labels: Any) -> tuple[Any, ...]:
        gradient = jax.value_and_grad(loss_and_rest, has_aux=True)
        (loss, rest), gradients = gradient(trained, rest, images, labels)
        trained, kept = optimizer.stateless_apply(kept, gradients, trained)
        return loss, gradients, trained, rest, kept

    trained, rest = values_of(model)
    kept = [variable.value for variable in optimizer.variables]
    losses, first = [], {}
    for number in range(STEPS + 1):
        loss, gradients, new, rest, kept = step(trained, rest, kept, images, labels)
        losses.append(float(loss))
        first = first or gradients_to_torch(model, gradients)
        trained = new if number < STEPS else trained  # of the last one only the forward pass counts
    everything = zip([*model.trainable_variables, *model.non_trainable_variables], [*trained, *rest], strict=True)
    for variable, value in everything:
        variable.assign(value)
    return losses, first


def predict(model: Any, images: Any) -> Any:
    """Logits; one compilation with JAX, which would else compile layer by layer."""
    if keras.backend.backend() == "tensorflow":
        return keras.ops.convert_to_numpy(model(images, training=False))
    import jax

    outputs, _ = jax.jit(partial(model.stateless_call, training=False))(*values_of(model), images)
    return np.asarray(outputs)


def values_of(model: Any) -> list[list[Any]]:
    """Arrays of the trained variables and of the others."""
    return [[v.value for v in of] for of in (model.trainable_variables, model.non_trainable_variables)]


def apart(values: Any, reference: Any) -> float:
    exact = np.asarray(reference, np.float64)
    return float(np.linalg.norm(np.asarray(values, np.float64) - exact) / np.linalg.norm(exact))


def apart_together(values: dict[str, Any], reference: dict[str, Any]) -> float | None:
    """Of all arrays named in the reference as one; None of a network that has no such thing."""
    if not reference:
        return None
    return apart(*(np.concatenate([side[key].ravel() for key in reference]) for side in (values, reference)))
