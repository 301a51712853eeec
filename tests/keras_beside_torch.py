"""Compare each network in Keras with PyTorch's, on equal weights and batches, in a process with one Keras back end.

The relative difference of two arrays is the norm of their difference divided by the norm of PyTorch's array.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
import torch
from torch import nn

from labkit.models import build
from labkit.torchvision_import import import_torchvision
from workbook.engines.comparison import damp
from workbook.engines.keras import networks as in_keras
from workbook.engines.keras.networks import architectures
from workbook.engines.keras.networks.correspondence import carry_to_keras, carry_to_torch, pairs
from workbook.engines.keras.sgd import TorchSGD
from workbook.engines.training import plain_sgd

CLASSES, STEPS = 10, 3
RATE_IN_FLOAT64 = 0.01  # a trial's default


@dataclass(frozen=True)
class Case:
    """The options and the training of a network. `rate` is the learning rate in FP32.

    With batch norm at initial weights, gradients grow from layer to layer towards the images, and so does rounding. For
    Inception-BN, the first losses of two frameworks agree to 1e-7 and their first gradients to 3e-2. At the default
    rate, three steps would compare rounding. So a ResNet's branches are damped (as in labkit's gate). The other
    networks' rates keep the steps close, but change the loss by far more than the tolerance. In FP64, where rounding is
    negligible, all networks train at the default rate.
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
    "inception_v3": Case(1e-7, px=299, batch=2),  # the only size for which labkit builds this network
}


def shorten_resnet50(first: int) -> None:
    """Leave `first` blocks in the first stage of both networks and one in each other stage, to save most of the time.

    With two blocks, the network has both kinds: the later blocks of a stage add their input unchanged.
    """
    blocks = [first, 1, 1, 1]
    stages = zip(architectures.RESNET50_STAGES, blocks, strict=True)
    architectures.RESNET50_STAGES = tuple((width, number) for (width, _), number in stages)
    resnet = import_torchvision().models.resnet
    short = partial(resnet.ResNet, resnet.Bottleneck, blocks)
    resnet.resnet50 = import_torchvision().models.resnet50 = lambda weights, **options: short(**options)


def compare(name: str, precision: str) -> dict[str, Any]:
    """Return counts and losses, and relative differences of logits, gradients, and final weights and statistics."""
    torch.set_default_dtype(getattr(torch, precision))
    keras.config.set_floatx(precision)
    case = CASES[name]
    rate = case.rate if precision == "float32" else RATE_IN_FLOAT64
    torch.manual_seed(0)
    model = build(name, image_px=case.px, classes=CLASSES, **case.options)
    keras_model = in_keras.build(name, image_px=case.px, classes=CLASSES, **case.options)
    results: dict[str, Any] = {"initial_spread": spread_beside(carry_to_torch(keras_model), model)}
    results["dropout"] = [without_dropout(model), without_dropout_in_keras(keras_model)]
    images, labels = torch.randn(case.batch, 3, case.px, case.px), torch.randint(CLASSES, (case.batch,))
    damp(model)
    settle(model, images)
    carry_to_keras(model.state_dict(), keras_model)

    model.eval()
    with torch.no_grad():
        logits = model(images).numpy()
    keras_images = images.permute(0, 2, 3, 1).numpy()
    results["parameters"] = [
        sum(weight.numel() for weight in model.parameters()),
        sum(int(np.prod(variable.shape)) for variable in keras_model.trainable_variables),
    ]
    results["logits"] = apart(predict(keras_model, keras_images), logits)
    model.train()
    results["losses"], gradients = train_torch(model, images, labels, rate)
    train = {"tensorflow": train_tensorflow, "jax": train_jax}[keras.backend.backend()]
    results["keras_losses"], keras_gradients = train(keras_model, keras_images, labels.numpy(), rate)
    results["gradients"] = apart_together(keras_gradients, gradients)
    final, state = carry_to_torch(keras_model), model.state_dict()
    weights = {key: state[key].numpy() for key, _ in model.named_parameters()}
    results["weights"] = apart_together(final, weights)
    results["statistics"] = apart_together(final, {key: state[key].numpy() for key in state if "running" in key})
    return results


def spread_beside(theirs: dict[str, Any], model: nn.Module) -> float:
    """Return the largest ratio, above 1, between standard deviations of initial weights in Keras and in PyTorch.

    Only tensors of at least 1,000 values count, whose standard deviation is accurate to a few per cent.
    """
    ours = {name: weight.detach().numpy() for name, weight in model.named_parameters() if weight.numel() >= 1000}
    ratios = [values.std() / theirs[name].std() for name, values in ours.items() if values.std()]
    return float(max(max(ratio, 1 / ratio) for ratio in ratios))


def without_dropout(model: nn.Module) -> list[float]:
    """Set all dropout rates to 0, because two frameworks draw different numbers. Return the original rates."""
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
    """Set running statistics to the batch's, and scales and shifts to values other than 1 and 0, so mistakes show."""
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
    """Return the loss before each step and after the last one, and the gradients of the first step."""
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
    """Return the gradients of the model's `trainable_variables` with PyTorch's names and order of axes."""
    by_variable = {id(v): gradient for v, gradient in zip(model.trainable_variables, gradients, strict=True)}
    trained = [pair for pair in pairs(model) if id(pair.variable) in by_variable]
    return {pair.name: pair.to_torch(keras.ops.convert_to_numpy(by_variable[id(pair.variable)])) for pair in trained}


def loss_of(labels: Any, logits: Any) -> Any:
    """Return the mean cross-entropy."""
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))


def train_tensorflow(model: Any, images: Any, labels: Any, rate: float) -> tuple[list[float], dict[str, Any]]:
    """Train like `train_torch`, eagerly with a gradient tape."""
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
    """Train like `train_torch`, with a compiled pure function of all variables."""
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
        trained = new if number < STEPS else trained  # the last step only gives the final loss
    everything = zip([*model.trainable_variables, *model.non_trainable_variables], [*trained, *rest], strict=True)
    for variable, value in everything:
        variable.assign(value)
    return losses, first


def predict(model: Any, images: Any) -> Any:
    """Return the logits. Compile the whole model with JAX, which would otherwise compile layer by layer."""
    if keras.backend.backend() == "tensorflow":
        return keras.ops.convert_to_numpy(model(images, training=False))
    import jax

    outputs, _ = jax.jit(partial(model.stateless_call, training=False))(*values_of(model), images)
    return np.asarray(outputs)


def values_of(model: Any) -> list[list[Any]]:
    """Return the arrays of the trainable and of the non-trainable variables."""
    return [[v.value for v in of] for of in (model.trainable_variables, model.non_trainable_variables)]


def apart(values: Any, reference: Any) -> float:
    exact = np.asarray(reference, np.float64)
    return float(np.linalg.norm(np.asarray(values, np.float64) - exact) / np.linalg.norm(exact))


def apart_together(values: dict[str, Any], reference: dict[str, Any]) -> float | None:
    """Return the difference of all arrays of `reference`, concatenated, or None if `reference` is empty."""
    if not reference:
        return None
    return apart(*(np.concatenate([side[key].ravel() for key in reference]) for side in (values, reference)))
