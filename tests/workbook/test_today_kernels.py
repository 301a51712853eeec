"""Kernels of today's networks by class, in committed traces, against counts from the networks' modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.workbook.test_committed_records import records_of
from workbook.trials.today import open_today

HOST = "89bb84c108db"  # an H200
# In strict FP32 a layer needs these kernels: forward, gradient of its input, and of its weights (of a layer norm
# together with its bias). The gradient of the images is not needed.
OF_NORM = OF_LINEAR = 3
OF_CONVOLUTION_OF_IMAGES = 2
OF_ATTENTION = 2  # forward and backward
OF_CROSS_ENTROPY = 4  # logarithm of softmax and negative log likelihood, each forward and backward


def kernels(model: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return kernels of a step by class, and those of matrix products by name, of a network's FP32 training."""
    (trace,) = [
        record.result.trace
        for record in records_of("h200", "14_today", HOST)
        if record.trial["model"] == model and record.trial["workload"] == "own_training"
        if record.trial["precision"] == "fp32" and record.trial["traced_iterations"] and record.result
    ]
    assert trace is not None
    products = {kernel.name: kernel.count for kernel in trace.longest if kernel.kind == "matrix_product"}
    return {name: of.count / trace.steps for name, of in trace.kernels.items()}, {
        name: count / trace.steps for name, count in products.items()
    }


@pytest.mark.parametrize("model", ["vit_b_16", "gpt2_124m"])
def test_kernels_of_a_class_are_as_many_as_the_modules_need(model: str) -> None:
    with torch.device("meta"):
        modules = list(open_today(model).build().modules())
    norms = sum(isinstance(module, nn.LayerNorm) for module in modules)
    of_class, _ = kernels(model)
    assert of_class["layer_norm"] == norms * OF_NORM
    assert of_class["loss"] == OF_CROSS_ENTROPY


def test_matrix_products_of_gpt2_are_those_of_its_linear_layers_and_of_attention() -> None:
    with torch.device("meta"):
        network = open_today("gpt2_124m").build()
    blocks = len(network.blocks)
    linear = sum(isinstance(module, nn.Linear) for module in network.modules()) + 1  # the embedding is the last layer
    _, products = kernels("gpt2_124m")
    assert sum(products.values()) == linear * OF_LINEAR + blocks * OF_ATTENTION


def test_the_images_of_a_vision_transformer_are_convolved_once_and_without_a_gradient() -> None:
    of_class, _ = kernels("vit_b_16")
    helpers = 1
    assert of_class["convolution"] == OF_CONVOLUTION_OF_IMAGES + helpers
