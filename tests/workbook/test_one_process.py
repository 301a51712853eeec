"""Tests of DataParallel, which drives several devices from a single process, against its parts run in sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from labkit.data import DataSet, open_data  # noqa: E402
from labkit.errors import UserError  # noqa: E402
from labkit.models import build  # noqa: E402
from tests.prepared import prepare  # noqa: E402
from workbook.engines import training as engines_training  # noqa: E402
from workbook.engines.exchange.data_parallel import InParts, split_over_devices  # noqa: E402
from workbook.errors import GateError, Unsupported  # noqa: E402
from workbook.trials.trial import Trial  # noqa: E402
from workbook.workloads import build_workload  # noqa: E402
from workbook.workloads.train import TrainWorkload  # noqa: E402


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=16, val_images=16)


def test_one_process_needs_several_devices_of_a_machine_and_synchronous_updates() -> None:
    two = Trial(devices=2, batch=8, scaling="strong", parallel="one_process")
    assert (two.processes, two.batch_of_process, two.batch_of_device, two.batch_of_step) == (1, 8, 4, 8)
    assert replace(two, parallel="ranks").batch_of_process == 4
    for wrong, said in (
        ({"devices": 1}, "two devices or more"),
        ({"scaling": "weak"}, "scaling='strong'"),
        ({"nodes": 2}, "nodes=1"),
        ({"updates": "asynchronous"}, "updates='synchronous'"),
        ({"arrangement": "in_sequence"}, "arrangement='alone'"),
        ({"framework": "keras-jax"}, "framework='torch'"),
    ):
        with pytest.raises(UserError, match=said):
            replace(two, **wrong)


def two_devices(model: str, data: DataSet) -> Trial:
    about: dict[str, Any] = {"devices": 2, "scaling": "strong", "parallel": "one_process", "device": "cpu"}
    return Trial(model=model, batch=8, data=data.name, data_checksum=data.checksum, **about)


def test_one_process_on_a_cpu_is_refused(data: DataSet) -> None:
    with pytest.raises(Unsupported, match="a CPU is one device"):
        build_workload(two_devices("resnet18", data), data)


def test_parts_equal_the_whole_batch_if_no_layer_mixes_images() -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    images = torch.randn(7, 3, 8, 8)
    expected = whole(images)
    expected.square().sum().backward()
    gradients = [weight.grad.clone() for weight in whole.parameters()]
    whole.zero_grad()
    outputs = InParts(whole, 2)(images)
    outputs.square().sum().backward()
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close([weight.grad for weight in whole.parameters()], gradients)


def test_batch_norm_uses_each_parts_statistics_and_keeps_the_first_parts() -> None:
    torch.manual_seed(0)
    images, norm = torch.randn(8, 3, 4, 4), nn.BatchNorm2d(3)
    outputs = InParts(norm, 2)(images)
    alone = nn.BatchNorm2d(3)
    first = alone(images[:4])
    torch.testing.assert_close(outputs[:4], first)
    torch.testing.assert_close([norm.running_mean, norm.running_var], [alone.running_mean, alone.running_var])
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(outputs[4:], nn.BatchNorm2d(3)(images[4:]))


@pytest.mark.parametrize("model", ["alexnet", "resnet18"])
def test_alexnet_is_split_only_in_its_features(model: str) -> None:
    with torch.device("meta"):
        network = build(model)
    trial = Trial(model=model, devices=2, scaling="strong", parallel="one_process")
    called, facts = split_over_devices(network, trial, by_hand=True)
    split = network.features if model == "alexnet" else called
    assert isinstance(split, InParts) and (called is network) == (model == "alexnet")
    assert facts["data_parallel"]["devices"] == 2


class LosesTheSecondsGradients(InParts):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = super().forward(images)
        return torch.cat([found[: len(images) // 2], found[len(images) // 2 :].detach()])


class DrawsOfItsOwn(InParts):
    """Parts that draw other random numbers, as each device does for its dropout."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        torch.rand(1)
        return super().forward(images)


class Whole(InParts):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.module(images)


def narrow(network: nn.Module) -> None:
    """Replace AlexNet's classifier, which has 55 million weights, by a single layer."""
    if hasattr(network, "classifier"):
        first = next(module for module in network.classifier if isinstance(module, nn.Linear))
        network.classifier = nn.Sequential(nn.Dropout(), nn.Linear(first.in_features, 1000))


def through_the_gate(
    model: str, data: DataSet, instead: type[InParts], monkeypatch: pytest.MonkeyPatch
) -> TrainWorkload:
    """Return a workload past its gate, with `instead` in place of DataParallel, which a CPU does not have."""

    def split(network: nn.Module, trial: Trial, *, by_hand: bool = False) -> tuple[nn.Module, dict[str, Any]]:
        kind = InParts if by_hand else instead
        if model != "alexnet":
            return kind(network, trial.devices), {}
        network.features = kind(network.features, trial.devices)
        return network, {}

    monkeypatch.setattr(engines_training, "split_over_devices", split)
    workload = prepare(TrainWorkload(two_devices(model, data), data, adapt=narrow))
    workload.check()
    return workload


@pytest.mark.parametrize(("model", "like"), [("alexnet", DrawsOfItsOwn), ("resnet18", InParts)])
def test_equal_results_pass_the_gate_despite_other_dropout_and_training_restarts(
    model: str, like: type[InParts], data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = through_the_gate(model, data, like, monkeypatch)
    assert workload.facts["gate"]["change_difference"] == pytest.approx(0.0, abs=1e-6)
    one_device = replace(two_devices(model, data), devices=1, parallel="ranks")
    fresh = TrainWorkload(one_device, data, adapt=narrow)
    torch.testing.assert_close(workload.training.weights(), fresh.training.weights(), rtol=0, atol=0)
    modules = list(workload.training.model.modules())
    assert all(module.training for module in modules), "only the gate disables dropout"
    assert any(isinstance(module, nn.Dropout) for module in modules) == (model == "alexnet")


@pytest.mark.parametrize(("model", "wrong"), [("alexnet", LosesTheSecondsGradients), ("resnet18", Whole)])
def test_the_gate_finds_lost_gradients_and_norms_over_the_whole_batch(
    model: str, wrong: type[InParts], data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GateError):
        through_the_gate(model, data, wrong, monkeypatch)
