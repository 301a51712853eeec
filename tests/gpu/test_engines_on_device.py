"""The captured and compiled engines, the device's loader and the one-kernel update, on a real GPU."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from labkit.data import DataSet, open_data  # noqa: E402
from labkit.data.augment import Augment, Preparation  # noqa: E402
from labkit.data.order import EpochOrder, Shard  # noqa: E402
from tests.gpu.slow import slow  # noqa: E402
from tests.prepared import loading, prepared  # noqa: E402
from workbook.engines.device_loader import DeviceLoader  # noqa: E402
from workbook.errors import GateError  # noqa: E402
from workbook.trials.trial import Trial  # noqa: E402
from workbook.workloads import build_workload  # noqa: E402
from workbook.workloads.train import TrainWorkload  # noqa: E402

pytestmark = pytest.mark.gpu

TUNED: dict[str, Any] = {
    "engine": "graph",
    "precision": "bf16",
    "memory_format": "channels_last",
    "optimizer": "sgd_master",
    "loader": "device",
}


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=3000, val_images=1234)


def loader_of(data: DataSet, **options: Any) -> DeviceLoader:
    usual: dict[str, Any] = {
        "batch": 64,
        "device": "cuda",
        "mean": data.mean,
        "std": data.std,
        "seed": 3,
        "dtype": torch.float32,
    }
    return loading(DeviceLoader, data.train, **(usual | options))


@pytest.mark.parametrize("one_kernel", [True, False])
@pytest.mark.parametrize("image_px", [32, 224])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_the_loaders_kernel_prepares_the_same_images_as_pytorchs_operators(
    data: DataSet, memory_format: Any, image_px: int, one_kernel: bool
) -> None:
    loader = loader_of(data, memory_format=memory_format, image_px=image_px, one_kernel=one_kernel)
    by_operators = Preparation(
        device=torch.device("cuda"),
        mean=data.mean,
        std=data.std,
        seed=0,
        augment=Augment(),
        image_px=image_px,
    )
    order = EpochOrder(len(data.train), seed=3)
    for _ in range(3):
        images, labels = loader.next_batch()
        chosen = order.take(64)
        expected = by_operators(torch.from_numpy(data.train.images[chosen]).cuda())
        assert torch.allclose(images, expected, atol=2e-5)
        assert labels.tolist() == data.train.labels[chosen].tolist()
        assert images.is_contiguous(
            memory_format=torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        )


def test_every_sample_comes_once_an_epoch_also_over_the_end_of_the_ring(
    data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 3,000 samples are thirty parts, and the ring holds two
    monkeypatch.setattr("workbook.engines.device_loader.PART", 100)
    loader, order = loader_of(data, batch=64), EpochOrder(len(data.train), seed=3)
    for _ in range(150):
        _, labels = loader.next_batch()
        assert labels.tolist() == data.train.labels[order.take(64)].tolist()


def test_flips_and_crops_are_taken_from_the_padded_image_and_repeat_after_a_rewind(data: DataSet) -> None:
    loader = loader_of(data, batch=256, augment=Augment(flip=True, crop=True))
    images, _ = (t.clone() for t in loader.next_batch())
    mean, std = (torch.tensor(v, device="cuda").view(1, 3, 1, 1) for v in (data.mean, data.std))
    source = torch.from_numpy(data.train.images[EpochOrder(len(data.train), seed=3).take(256)]).cuda().float()
    seen = torch.zeros(2, 9, 9, dtype=torch.int64)
    found = torch.zeros(256, dtype=torch.bool, device="cuda")
    for flipped in (0, 1):
        padded = torch.nn.functional.pad(source.flip(-1) if flipped else source, (4, 4, 4, 4))
        for y in range(9):
            for x in range(9):
                window = (padded[:, :, y : y + 32, x : x + 32] - mean) / std
                same = ((window - images).abs().amax((1, 2, 3)) < 1e-4) & ~found
                found |= same
                seen[flipped, y, x] += int(same.sum())
    assert bool(found.all()), "every image is a crop of its own padded, perhaps flipped, image"
    assert 90 < int(seen[1].sum()) < 166, "about half are flipped"
    for places in (seen.sum((0, 2)), seen.sum((0, 1))):
        assert int(places.min()) > 9 and int(places.max()) < 55, (
            "the nine shifts are equally likely, about 28 images each"
        )
    loader.rewind()
    repeated, _ = loader.next_batch()
    assert torch.equal(repeated, images)
    later, _ = loader.next_batch()
    assert not torch.equal(later, images)


def test_ranks_together_make_the_images_of_one_device(data: DataSet) -> None:
    augment = Augment(flip=True, crop=True)
    whole = loader_of(data, batch=64, augment=augment)
    loaders = [loader_of(data, batch=32, augment=augment, shard=Shard(rank, 2)) for rank in range(2)]
    for _ in range(3):
        images, labels = whole.next_batch()
        parts = [loader.next_batch() for loader in loaders]
        assert torch.equal(labels, torch.cat([part[1] for part in parts]))
        assert torch.equal(images, torch.cat([part[0] for part in parts]))


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 4, 5]], [[4], [0], [5, 1], [3, 2]]], ids=["whole", "in parts"])
def test_the_update_in_one_kernel_equals_pytorchs_sgd(parts: list[list[int]]) -> None:
    from workbook.engines.exchange.master_sgd import MasterSGD, to_half

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 40, 3), torch.nn.BatchNorm2d(40), torch.nn.Flatten(), torch.nn.Linear(36000, 50)]
    model = torch.nn.Sequential(*layers).cuda().to(memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    peer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    exact = [weight.detach().clone() for weight in model.parameters()]
    to_half(model)
    ours = MasterSGD(model, exact, lr=torch.tensor(0.05, device="cuda"), momentum=0.9, weight_decay=5e-4)
    ours.arrange(parts)
    for _ in range(4):
        for weight, reference in zip(model.parameters(), plain.parameters(), strict=True):
            weight.grad = torch.randn_like(weight)
            reference.grad = weight.grad.float()
        ours.bind()
        ours.step()
        peer.step()
    for master, weight, reference in zip(ours.masters, model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(master, reference, atol=1e-6)
        assert torch.equal(weight, master.to(weight.dtype)), "the model computes with the rounded master"


def test_an_update_changes_only_the_shares_of_its_rank() -> None:
    from workbook.engines.exchange.master_sgd import MasterSGD, to_half

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 70), torch.nn.Linear(70, 9)).cuda()
    exact = [weight.detach().clone() for weight in model.parameters()]
    to_half(model)
    shares = {0: (2 * 300 + 7, 5001), 2: (0, 0)}
    fields: dict[str, Any] = {"lr": torch.tensor(0.05, device="cuda"), "momentum": 0.9, "weight_decay": 5e-4}
    made = []
    for own in ({}, shares):
        copied = copy.deepcopy(model)
        ours = MasterSGD(copied, [weight.clone() for weight in exact], **fields)
        ours.arrange([[2], [3, 0], [1]], own)
        torch.manual_seed(1)
        for weight in copied.parameters():
            weight.grad = torch.randn_like(weight)
        ours.bind()
        ours.step()
        made.append([state.detach().flatten() for state in (*ours.masters, *ours.momenta, *copied.parameters())])
    before = [*exact, *(torch.zeros_like(state) for state in exact), *model.parameters()]
    for number, (whole, part, old) in enumerate(zip(*made, before, strict=True)):
        first, last = shares.get(number % 4, (0, whole.numel()))
        in_share = torch.arange(whole.numel(), device="cuda")
        in_share = (in_share >= first) & (in_share < last)
        assert torch.equal(part, torch.where(in_share, whole, old.detach().flatten()))


def test_a_moved_fp32_weight_is_its_own_master_again_after_arrange() -> None:
    from workbook.engines.exchange.master_sgd import MasterSGD

    model = torch.nn.Linear(300, 70).cuda()
    exact = [weight.detach().clone() for weight in model.parameters()]
    ours = MasterSGD(model, exact, lr=torch.tensor(0.05, device="cuda"), momentum=0.9, weight_decay=0.0)
    for weight in model.parameters():
        weight.data = weight.data.clone()
        weight.grad = torch.ones_like(weight)
    with pytest.raises(ValueError, match=r"was moved after arrange"):
        ours.bind()
    ours.arrange([[0, 1]])
    ours.bind()
    ours.step()
    for weight, before in zip(model.parameters(), exact, strict=True):
        assert torch.allclose(weight, before - 0.05)


@pytest.mark.parametrize("model", ["resnet50", "vgg16"])
@pytest.mark.parametrize(
    "fields",
    [
        TUNED,
        {**TUNED, "optimizer": "sgd_fused"},
        {**TUNED, "optimizer": "sgd_fused", "precision": "fp32", "memory_format": "contiguous"},
        {"optimizer": "sgd_fused", "loader": "device"},
        *slow(*({**TUNED, "optimizer": "sgd_fused", "precision": precision} for precision in ("fp16", "tf32"))),
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_a_captured_step_computes_the_same_as_the_baseline(data: DataSet, model: str, fields: dict[str, Any]) -> None:
    workload = prepared(Trial(model=model, batch=64, **fields), data)
    workload.check()
    assert workload.facts["gate"]["steps"] == 3


@pytest.mark.slow
def test_a_compiled_and_captured_step_computes_the_same_as_the_baseline(data: DataSet) -> None:
    workload = prepared(Trial(model="resnet18", batch=64, **{**TUNED, "engine": "compile+graph"}), data)
    workload.check()


def broken_momentum(workload: TrainWorkload) -> None:
    workload.training.optimizer.momentum = 0.0


def stale_images(workload: TrainWorkload) -> None:
    workload.run.batch.load = lambda: None  # type: ignore[union-attr, method-assign]


def another_rate(workload: TrainWorkload) -> None:
    workload.training.optimizer.lr = workload.training.lr * 0.5  # a copy, which no schedule reaches


def test_the_gate_finds_a_weight_that_is_never_updated(data: DataSet) -> None:
    workload = prepared(Trial(model="resnet50", batch=64, **TUNED), data)
    workload.training.optimizer._table[-1, 4] = 0  # the last layer's bias has one row
    with pytest.raises(GateError, match="1 of 161 weights"):
        workload.check()


def wrong_sign(workload: TrainWorkload) -> None:
    workload.training.model.layer3[2].conv2.weight.register_hook(torch.neg)


def statistics_stand_still(workload: TrainWorkload) -> None:
    workload.training.model.layer3[2].bn2.momentum = 0.0


FUSED = {**TUNED, "optimizer": "sgd_fused"}


@pytest.mark.parametrize(
    ("about", "fault", "said"),
    [
        (TUNED, broken_momentum, ""),
        (TUNED, stale_images, ""),
        (TUNED, another_rate, ""),
        (FUSED, wrong_sign, "single weight"),
        (FUSED, statistics_stand_still, "running statistic"),
    ],
)
def test_the_gate_finds_a_faulty_step(data: DataSet, about: dict[str, Any], fault: Any, said: str) -> None:
    workload = build_workload(Trial(model="resnet50", batch=64, **about), data)
    assert isinstance(workload, TrainWorkload)
    for name, prepare in workload.preparations():
        if name == "capture":
            fault(workload)
        prepare()
    with pytest.raises(GateError, match=said):
        workload.check()


def test_captured_training_learns_and_repeats_after_a_restart() -> None:
    digits = open_data("digits")
    trial = Trial(model="resnet18", batch=64, data="digits", classes=10, epochs=4, schedule="one_cycle", **TUNED)
    workload = prepared(trial, digits)
    workload.check()
    losses = []
    for _ in range(2):
        workload.restart()
        for epoch in range(trial.epochs):
            for _ in range(workload.steps_of_epoch(epoch)):
                workload.step()
            losses.append(workload.read_loss())
        scores = workload.evaluate()
        assert scores.images == len(digits.val) and scores.top1 > 0.9 and scores.top5 >= scores.top1
    first, second = np.array(losses[:4], dtype=float), np.array(losses[4:], dtype=float)
    assert first[-1] < 0.5 * first[0]
    assert np.allclose(first, second, rtol=0.1), "a restart repeats weights and images; atomics may round differently"
