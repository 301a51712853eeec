"""Tests of the 512-unit network for the Reuters newswires: its counts, training and gate.

`test_ranks` trains this network on several ranks.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from labkit.data import DataSet, open_data
from labkit.errors import UserError
from labkit.models import MODELS, build, count, input_sizes
from tests.prepared import prepared
from workbook.errors import GateError, Unsupported
from workbook.results import roofline
from workbook.reuters import open_documents
from workbook.trials.inputs import check_data, input_bytes
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

WEIGHTS = 10_000 * 512 + 512 + 512 * 46 + 46


@pytest.fixture
def documents() -> DataSet:
    return open_documents(train_documents=320, val_documents=60)


def training(data: DataSet, **fields: Any) -> Trial:
    about = {"model": "mlp512", "batch": 16, "device": "cpu", "classes": data.classes, **fields}
    return Trial(data=data.name, data_checksum=data.checksum, **about)


# ---- the network ----------------------------------------------------------------------------------------------------


def test_the_mlp_has_a_hidden_layer_over_10000_words() -> None:
    model = build("mlp512")
    assert [tuple(weight.shape) for weight in model.parameters()] == [(512, 10_000), (512,), (46, 512), (46,)]
    assert sum(weight.numel() for weight in model.parameters()) == WEIGHTS == MODELS["mlp512"].published_parameters
    rows = (torch.rand(3, 10_000) < 0.01).float()
    hidden, _active, dropped, logits = model
    assert isinstance(dropped, torch.nn.Dropout) and dropped.p == 0.5
    assert torch.equal(model.eval()(rows), logits(hidden(rows).clamp_min(0)))
    assert build("mlp512", classes=7)(rows).shape == (3, 7)


def test_the_flop_are_those_of_the_two_products() -> None:
    facts = count("mlp512")
    first, second = 2 * 10_000 * 512, 2 * 512 * 46
    assert facts.parameters == WEIGHTS and facts.parameter_bytes == 4 * WEIGHTS
    assert facts.flop_forward == first + second
    assert facts.flop_training == 2 * first + 3 * second, "training needs no gradient of the input"
    assert count("mlp512", classes=46) == facts == count("mlp512", image_px=224)
    assert count("mlp512", classes=7).parameters == WEIGHTS - 39 * 513


def test_the_mlp_takes_words_and_other_models_take_images() -> None:
    assert input_sizes("mlp512") == ()
    assert (input_bytes("mlp512", 32), input_bytes("vgg16", 32)) == (1250, 3072)
    with pytest.raises(UserError, match=r"^512-unit MLP takes bags of 10,000 words, but the data are images"):
        check_data("mlp512", words=0)
    with pytest.raises(UserError, match=r"^VGG-16 takes images, but the data are bags of 10,000 words.*mlp512\.$"):
        check_data("vgg16", words=10_000)


def test_the_planned_work_follows_from_the_weights() -> None:
    work = roofline.planned_work(Trial(model="mlp512", batch=32))
    assert work.flop == 32 * count("mlp512").flop_training
    assert work.unavoidable_bytes == 8 * 4 * WEIGHTS + 32 * 1250


# ---- training -------------------------------------------------------------------------------------------------------


def test_the_mlp_learns() -> None:
    documents = open_documents(train_documents=2000, val_documents=300)
    workload = build_workload(training(documents, batch=64, learning_rate=0.05), documents)
    workload.check()
    assert 3.4 < workload.facts["first_loss"] < 4.3, "near the logarithm of 46"
    assert workload.facts["parameters"] == WEIGHTS
    assert (workload.facts["document_bytes"], workload.facts["loader"]) == (1250, "resident")
    assert "image_bytes" not in workload.facts
    assert (workload.images_per_step, workload.flop_per_step) == (64, 64 * count("mlp512").flop_training)
    losses = []
    for _ in range(3):
        for _ in range(20):
            workload.step()
        losses.append(workload.read_loss())
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 2
    scores = workload.evaluate()
    assert scores.images == 300 and scores.top1 > 0.5, "the most frequent class has a third of the documents"
    assert scores.loss is not None and scores.loss < 2


def test_the_gate_finds_a_step_on_other_documents(documents: DataSet) -> None:
    workload = prepared(training(documents, optimizer="sgd_fused"), documents)
    honest = workload.run.loader.next_batch
    workload.run.loader.next_batch = lambda: (honest(), honest())[1]
    with pytest.raises(GateError, match="read other images"):
        workload.check()


@pytest.mark.parametrize("field", [{"image_px": 224}, {"augment": True}, {"memory_format": "channels_last"}])
def test_options_of_images_are_refused(documents: DataSet, field: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=f"{next(iter(field))} applies to networks that take images"):
        build_workload(training(documents, **field), documents)


def test_a_network_and_data_that_do_not_fit_are_refused(documents: DataSet) -> None:
    digits = open_data("digits")
    with pytest.raises(UserError, match="512-unit MLP takes bags of 10,000 words"):
        build_workload(training(digits), digits)
    for model, data in (("mlp512", documents), ("resnet18", documents), ("mlp512", digits)):
        with pytest.raises(Unsupported, match="needs a model that takes images"):
            build_workload(training(data, model=model, workload="infer"), data)
