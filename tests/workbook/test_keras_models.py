"""Tests that Keras's networks equal PyTorch's in layers, weights, losses, steps and statistics, on TensorFlow and JAX.

A process can load only one Keras back end, so each back end has its own process (`tests/keras_checks.py`).
"""

from __future__ import annotations

import itertools
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from labkit.errors import UserError
from labkit.models import count, input_sizes
from labkit.models.facts import variants
from tests.processes import frameworks_after, result_of
from workbook.engines.keras import networks as in_keras
from workbook.engines.keras.networks.correspondence import padding_of, same_padding

torch = pytest.importorskip("torch")
if find_spec("keras") is None:  # an import would take seconds and fix the back end
    pytest.skip("keras is not installed", allow_module_level=True)

# A process does all jobs of a group, because a second process would spend most of its time on imports. With JAX, which
# compiles each network for a long time, each network has its own process.
SMALL = ("resnet50", "inception_bn", "vgg16", "googlenet")
EXACT = ("resnet50", "inception_bn")
MAGNIFIES = ("inception_bn", "inception_v3")  # rounding errors: in FP32 their first gradients differ by 3 and 4 %
QUICK = ("counts", "carrying", "optimiser", "seeds")
THOROUGH = tuple(f"float32:{name}" for name in SMALL[:2])
SLOW = (
    ("float32:inception_v3",),
    tuple(f"float32:{name}" for name in SMALL[2:]),
    tuple(f"float64:{name}" for name in EXACT),
)
BACKENDS = ("tensorflow", "jax")


@cache
def done(backend: str, jobs: tuple[str, ...]) -> dict[str, Any]:
    """Run these jobs in a process and return their results by job."""
    return result_of("tests.keras_checks", *jobs, KERAS_BACKEND=backend, JAX_ENABLE_X64="1")


def found(backend: str, job: str) -> Any:
    """Return the result of a job. Skip the test if the back end is not installed."""
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    group = next(jobs for jobs in (QUICK, THOROUGH, *SLOW) if job in jobs)
    if backend == "jax":
        group = (job,) if ":" in job else QUICK[1:]  # job `counts` runs with TensorFlow only
    return done(backend, group)[job]


def cases(jobs: list[str]) -> list[Any]:
    """Return both back ends with each job. Cases with JAX or with jobs of SLOW are marked slow."""
    marks: dict[Any, Any] = {("tensorflow", job): [] for job in QUICK}
    marks |= {("tensorflow", job): pytest.mark.thorough for job in THOROUGH}
    pairs = itertools.product(BACKENDS, jobs)
    return [pytest.param(*pair, marks=marks.get(pair, pytest.mark.slow)) for pair in pairs]


NETWORKS = cases([f"float32:{name}" for name in in_keras.KERAS_MODELS])


# ---- layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", in_keras.KERAS_MODELS)
def test_a_keras_network_has_as_many_parameters_as_pytorchs(name: str) -> None:
    small = [variant for variant in variants(name) if variant[0] == input_sizes(name)[0]]
    expected = [count(name, image_px=px, head=head).parameters for px, head in small]
    assert found("tensorflow", "counts")[name] == expected


@pytest.mark.parametrize(("backend", "job"), NETWORKS)
def test_the_spread_of_initial_weights_and_the_dropout_are_pytorchs(backend: str, job: str) -> None:
    result = found(backend, job)
    assert result["initial_spread"] < 1.05  # 1,000 values give a standard deviation to 2 %
    ours, theirs = result["dropout"]
    expected = {"resnet50": [], "vgg16": [0.5, 0.5], "googlenet": [0.2], "inception_bn": [], "inception_v3": [0.5]}
    assert ours == theirs == expected[job.removeprefix("float32:")]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(("window", "stride"), [(2, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("edge", [3, 4, 7, 8, 14, 35])
def test_explicit_padding_gives_pytorchs_pooling(edge: int, window: int, stride: int, padding: int, ceil: bool) -> None:
    images = torch.rand(1, 1, edge, edge)
    expected = torch.nn.functional.max_pool2d(images, window, stride, padding, ceil_mode=ceil)
    before, after = padding_of(edge, window, stride, padding, ceil=ceil)
    padded = torch.nn.functional.pad(images, (before, after, before, after))
    assert torch.equal(torch.nn.functional.max_pool2d(padded, window, stride), expected)


def test_same_padding_differs_from_pytorchs_with_a_stride_of_2() -> None:
    assert padding_of(8, 3, 2, 1) == (1, 0) and same_padding(8, 3, 2) == (0, 1)
    assert padding_of(224, 7, 2, 3) == (3, 2) and same_padding(224, 7, 2) == (2, 3)
    assert padding_of(112, 3, 2, 0, ceil=True) == same_padding(112, 3, 2) == (0, 1)
    assert padding_of(7, 3, 2, 0, ceil=True) == (0, 0) and same_padding(7, 3, 2) == (1, 1)


# ---- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "job"), NETWORKS)
def test_predictions_losses_and_three_steps_on_the_same_weights_agree(backend: str, job: str) -> None:
    result = found(backend, job)
    losses = result["losses"]
    assert result["parameters"][0] == result["parameters"][1]
    assert result["logits"] < 2e-4, "in evaluation mode"
    assert result["keras_losses"][0] == pytest.approx(losses[0], rel=1e-4), "in training mode"
    assert result["keras_losses"] == pytest.approx(losses, rel=1e-3)
    assert abs(losses[-1] / losses[0] - 1) > 0.02, "steps that barely change the loss would prove nothing"
    assert result["weights"] < 1e-5
    if job.removeprefix("float32:") not in MAGNIFIES:
        assert result["gradients"] < 1e-3
    if result["statistics"] is not None:
        assert result["statistics"] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_three_steps_in_double_precision_are_the_same(name: str) -> None:
    """TensorFlow only: Keras on JAX always normalises in FP32, because its `result_type` has no 64 bits there."""
    result = found("tensorflow", f"float64:{name}")
    losses = result["losses"]
    assert result["keras_losses"] == pytest.approx(losses, rel=1e-6)
    assert abs(losses[-1] / losses[0] - 1) > 0.02
    for quantity in ("logits", "gradients", "weights", "statistics"):
        assert result[quantity] < 1e-6, quantity


# ---- carrying weights, and the optimiser ----------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "job"), cases(["carrying"]))
def test_weights_are_carried_by_name_in_both_directions_or_refused(backend: str, job: str) -> None:
    result = found(backend, job)
    assert result["names"] == sorted(
        ["0.bias", "0.weight", "1.bias", "1.running_mean", "1.running_var", "1.weight", "3.bias", "3.weight"]
    )
    assert result["flattened"] == [[2, 3, 4]]
    assert result["returned"], "weights carried to Keras and back are unchanged"
    assert result["logits"] < 1e-5, "even if PyTorch's weights change afterwards"
    for case, facts in {
        "more": ["PyTorch's", "4.weight"],
        "less": ["Keras's", "1.running_var"],
        "shape": ["3.weight", "(5, 20)", "(5, 24)"],
    }.items():
        assert all(fact in result["refused"][case] for fact in ["LabkitError", *facts])
    assert result["unchanged"] == 0


@pytest.mark.parametrize(("backend", "job"), cases(["optimiser"]))
def test_labkits_optimiser_equals_pytorchs_and_that_of_keras_does_not(backend: str, job: str) -> None:
    result = found(backend, job)
    assert result["ours"] < 1e-6  # learning rates are FP32
    assert result["keras"] > 0.1, "Keras decays outside the momentum and keeps old gradients at old rates"


@pytest.mark.parametrize(("backend", "job"), cases(["seeds"]))
def test_initial_weights_follow_from_the_seed(backend: str, job: str) -> None:
    first, second, third = found(backend, job)
    assert first == second != third
    assert first == pytest.approx(0.14243192970752716, rel=1e-6), "with every back end"


# ---- unknown models and options -------------------------------------------------------------------------------------


def test_invalid_options_are_refused_before_keras_is_imported() -> None:
    networks = "workbook.engines.keras.networks"
    then = f"try:\n    {networks}.build('alexnet')\nexcept labkit.errors.UserError:\n    pass"
    imported = frameworks_after("labkit.errors", f"{networks}.correspondence", networks, then=then)
    assert not {"torch", "keras", "tensorflow", "jax"} & {*imported}
    for options, expected in (
        ({"name": "mlp512"}, "Keras model.*inception_bn"),
        ({"name": "inception_v3", "image_px": 32}, "299"),
        ({"name": "vgg16", "head": "512"}, "head512, torchvision"),
    ):
        with pytest.raises(UserError, match=expected):
            in_keras.build(**options)
