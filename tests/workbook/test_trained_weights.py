"""Tests of trained weights: training and files, damaged or foreign files, scoring, and folded batch norm."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.data import DataSet, Split, open_data
from labkit.errors import LabkitError, UserError
from tests.prepared import checked
from tests.workbook.made_records import blocks
from workbook.engines.weights_files import check_folder, file_name, find_weights, read_weights
from workbook.errors import Unsupported
from workbook.records import Blocks
from workbook.records.scored import Scored, pack, unpack
from workbook.study import open_study
from workbook.trials.trial import Trial
from workbook.workloads import build_workload
from workbook.workloads.infer import scoring_split, split_sha256

torch = pytest.importorskip("torch")

from labkit.models import build  # noqa: E402
from workbook.engines.batch_norm import fold_back, has_batch_norm, normalise  # noqa: E402
from workbook.engines.openvino_on_cpu import missing  # noqa: E402
from workbook.engines.prediction import score  # noqa: E402
from workbook.engines.torchvision_files import read_state  # noqa: E402
from workbook.workloads import _weights  # noqa: E402

TRAINED = Trial(
    workload="infer", model="resnet18", classes=10, batch=64, device="cpu", data="digits", weights="trained", scored=150
)


def trained_here(patch: pytest.MonkeyPatch, folder: Path, **schedules: _weights.Schedule) -> None:
    patch.setenv("LABKIT_CACHE", str(folder.parent))
    patch.setattr(_weights, "can_train", lambda _: True)
    patch.setattr(_weights, "RECIPE", {"batch": 16, "schedule": "one_cycle", "optimizer": "sgd_fused"})
    patch.setattr(_weights, "SCHEDULES", schedules)


@pytest.fixture(scope="module")
def digits(shared_cache: Path) -> DataSet:
    """Return the digits with fewer training images and the whole validation split."""
    return open_data("digits", train_images=500)


@pytest.fixture(scope="module")
def trained(digits: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the weights of a ResNet-18 after three epochs of digits, trained with the baseline loop.

    After fewer epochs many images lie so close to a decision boundary that INT8 changes answers, though not for worse.
    """
    folder = tmp_path_factory.mktemp("cache") / "weights"
    with pytest.MonkeyPatch.context() as patch:
        trained_here(patch, folder, resnet18=_weights.Schedule(3, 0.02))
        workload = build_workload(TRAINED, digits)
        assert workload.build_phases["weights"] > 0
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_CACHE", str(trained.parent))
    return trained


def test_weights_are_trained_once_with_facts_about_the_training(here: Path, digits: DataSet) -> None:
    network = _weights.make_network(TRAINED, digits)  # from the file: a CPU does not train
    assert network.weights is not None
    facts = network.weights.facts
    assert facts["epochs"] == 3 and facts["learning_rate"] == 0.02 and facts["took_s"] > 0
    assert facts["top1"] > 0.5, "an untrained network could lose no accuracy"
    assert all(value.dtype == torch.float32 for value in network.weights.state.values() if value.is_floating_point())
    assert not network.model.training
    assert [path.name for path in here.iterdir()] == [file_name(replace(TRAINED, data_checksum=digits.checksum))]


def test_scoring_gives_the_accuracy_of_the_training(here: Path, digits: DataSet) -> None:
    workload = checked(replace(TRAINED, scored=10_000), digits)
    shares: list[float] = []
    scored = workload.score(shares.append)
    assert scored.images == len(digits.val), "all images of a set that cannot be extended"
    assert workload.facts["weights"]["top1"] == pytest.approx(scored.share("top1"), abs=1e-6)
    assert workload.facts["weights"]["top5"] == pytest.approx(scored.share("top5"), abs=1e-6)
    assert workload.facts["weights"]["sha256"] == scored.weights_sha256
    assert shares[-1] == 1 and shares == sorted(shares)
    assert torch.equal(next(workload._pool), workload._pool.batches[0]), "scoring leaves the pool at its first batch"


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_int8_classifies_nearly_all_images_like_fp32(here: Path, digits: DataSet) -> None:
    scores = {
        precision: checked(replace(TRAINED, engine="openvino", precision=precision), digits).score(lambda _: None)
        for precision in ("fp32", "int8")
    }
    fp32, int8 = scores["fp32"], scores["int8"]
    assert (fp32.images_sha256, fp32.weights_sha256) == (int8.images_sha256, int8.weights_sha256)
    assert float((fp32.hits("top1") != int8.hits("top1")).mean()) < 0.05


def test_the_reason_on_a_cpu_without_weights_names_their_sources(
    digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    with pytest.raises(Unsupported, match=r"resnet18 at 32 px on digits: .*GPU.*WEIGHTS="):
        build_workload(TRAINED, digits)


def test_the_same_call_measures_a_trial_once_its_weights_have_arrived(
    trained: Path, digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = replace(TRAINED, data_checksum=digits.checksum, batch=16, scored=0)
    impossible = replace(trial, weights="initial", precision="tf32")
    monkeypatch.setattr("workbook.options.check_folder", Path)  # the folder is empty at first
    lab = open_study("08_quantization", hw="cpu", scale="smoke", weights=tmp_path)

    def tried(of: Trial) -> list[str]:
        lab.measure([trial, impossible])
        return [record.status for record in lab.store.read(lab.study.id, lab.host.id) if record.key == of.key]

    for times in (1, 2):
        assert tried(trial) == ["unsupported"] * times, "each call tries it again"
    (today,) = {record.started_at[:10] for record in lab.store.read(lab.study.id, lab.host.id)}
    frame = lab.measure([trial, impossible]).frame().set_index("weights")
    assert today in frame.loc["trained", "reason"]
    assert today not in frame.loc["initial", "reason"], "no day changes what a CPU is"
    shutil.copy(trained / file_name(trial), tmp_path)
    assert tried(trial)[-1] == "ok"
    assert tried(trial).count("ok") == 1, "it is measured once"
    assert tried(impossible) == ["unsupported"], "what no machine can do is tried once"


def test_a_model_without_a_schedule_is_not_trained(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_weights, "SCHEDULES", {})
    with pytest.raises(Unsupported, match="no schedule"):
        _weights.train_weights(TRAINED, digits)


@pytest.mark.parametrize("fields", [{"model": "vgg16"}, {"image_px": 224}, {"seed": 1}, {"data_checksum": "other"}])
def test_other_networks_and_data_have_other_files(fields: dict[str, Any]) -> None:
    assert file_name(replace(TRAINED, **fields)) != file_name(TRAINED)
    for same in ({"batch": 1}, {"precision": "int8"}, {"engine": "openvino"}, {"scored": 3}, {"device": "cuda"}):
        assert file_name(replace(TRAINED, **same)) == file_name(TRAINED)


def test_a_damaged_file_of_weights_is_refused(here: Path, tmp_path: Path) -> None:
    whole = next(here.iterdir()).read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[:1000])
    with pytest.raises(LabkitError, match=r"cut\.pt"):
        read_weights(tmp_path / "cut.pt")
    content = torch.load(next(here.iterdir()), weights_only=True)
    content["state"]["fc.bias"] += 1
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(LabkitError, match="damaged"):
        read_weights(tmp_path / "other.pt")


class Runs:
    """An object whose pickle runs a command as it is loaded."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._marker}",)


def in_a_tar(content: object, path: Path) -> None:
    """Write the oldest form of torch's files."""
    with tarfile.open(path, "w") as archive:
        for name in ("storages", "tensors", "pickle"):
            member, data = tarfile.TarInfo(name), pickle.dumps(content)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


WRITES: dict[str, Callable[[object, Path], None]] = {
    "zip": torch.save,
    "before torch 1.6": lambda content, path: torch.save(content, path, _use_new_zipfile_serialization=False),
    "tar": in_a_tar,
    "pickle": lambda content, path: path.write_bytes(pickle.dumps(content)) and None,
}


@pytest.mark.parametrize("form", WRITES)
def test_a_file_that_would_run_code_is_refused_and_runs_none(form: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "weights"
    WRITES[form]({"format": 1, "sha256": "", "facts": {}, "state": {"fc.bias": Runs(marker)}}, path)
    named = tmp_path / f"resnet18-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pth"
    shutil.copy(path, named)
    for read in (read_weights, lambda path: read_state(path, "resnet18", classes=1000)):
        with pytest.raises(LabkitError, match=r"nothing of it was executed\.$|legacy \.tar format"):
            read(named)
    assert not marker.exists()
    with suppress(Exception):  # torch alone runs the command: the test can fail
        torch.load(path, weights_only=False)
    assert marker.exists()


def test_the_folder_of_weights_is_checked_before_anything_runs(here: Path, tmp_path: Path) -> None:
    assert check_folder(str(here)) == here
    with pytest.raises(UserError, match="not a folder"):
        check_folder(str(tmp_path / "none"))
    (tmp_path / "notes.txt").touch()
    (tmp_path / "lenet-32px-0123456789abcdef.pt").touch()
    with pytest.raises(UserError, match=r"<model>-<px>px-.*lenet.*notes\.txt"):
        check_folder(str(tmp_path))


def test_an_empty_cache_has_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    assert find_weights(TRAINED) is None
    name = file_name(TRAINED)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / name).touch()
    assert find_weights(TRAINED) == tmp_path / "weights" / name
    assert find_weights(TRAINED, tmp_path) is None, "the user's folder stands alone"


def test_initial_weights_are_not_scored(digits: DataSet) -> None:
    with pytest.raises(Unsupported, match="initial weights"):
        build_workload(replace(TRAINED, weights="initial"), digits)
    with pytest.raises(UserError, match="scored"):
        replace(TRAINED, scored=-1)


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_hits_survive_packing(hits: list[bool]) -> None:
    assert unpack(pack(np.array(hits)), len(hits)).tolist() == hits


def scored(hits: list[bool]) -> Scored:
    top1 = np.array(hits)
    return Scored.of(top1, top1 | True, weights_sha256="w", images_sha256="i")


def test_scores_survive_a_record_and_damaged_scores_are_refused() -> None:
    original = scored([True, False, True])
    assert original.share("top1") == 2 / 3 and original.share("top5") == 1
    values = original.model_dump(mode="json")
    assert Scored.model_validate(values) == original
    for wrong in ({"top1_count": 1}, {"images": 30}, {"top1_bits": "AAAA"}, {"top1_bits": "no base64!"}, {"images": 0}):
        with pytest.raises(ValueError, match=r"bits|base64|no image|Only|Invalid"):
            Scored.model_validate({**values, **wrong})


def test_scores_of_blocks_give_accuracies(digits: DataSet) -> None:
    from workbook.results.from_result import value_of

    item = blocks("08", TRAINED, 1, 100.0)
    assert isinstance(item.result, Blocks) and value_of(item, "top1") is None
    with_scores = item.model_copy(update={"result": item.result.model_copy(update={"scored": scored([True, False])})})
    assert value_of(with_scores, "top1") == 0.5 and value_of(with_scores, "top5") == 1


def test_a_short_last_batch_is_padded_and_the_padding_is_not_scored() -> None:
    images = np.arange(7, dtype=np.uint8).repeat(3 * 32 * 32).reshape(7, 3, 32, 32)
    split = Split(images, np.array([0, 1, 2, 3, 4, 5, 0], dtype=np.int16))
    sizes = []

    def predict(pixels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(pixels))
        return -(torch.arange(10.0)[None] - pixels[:, 0, 0, 0].float()[:, None]).abs()  # image i looks like class i

    top1, top5 = score(predict, split, batch=3, on_share=lambda _: None)
    assert sizes == [3, 3, 3]
    assert top1.tolist() == [True] * 6 + [False] and top5.tolist() == [True] * 6 + [False]


def test_with_fewer_than_five_classes_every_image_is_a_top5_hit() -> None:
    split = Split(np.zeros((2, 3, 32, 32), np.uint8), np.array([0, 1], dtype=np.int16))
    top1, top5 = score(lambda pixels: torch.tensor([[0.0, 1.0]] * len(pixels)), split, batch=2, on_share=lambda _: None)
    assert top1.tolist() == [False, True] and top5.all()


def test_an_extended_validation_split_begins_with_the_sets_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    data = open_data("synthetic32", train_images=200, val_images=100)
    longer = scoring_split(data, 300)
    assert len(longer) == 300 and np.array_equal(longer.images[:100], data.val.images)
    fewer = scoring_split(data, 40)
    assert len(fewer) == 40 and np.array_equal(fewer.images, data.val.images[:40])
    assert split_sha256(fewer) != split_sha256(data.val) != split_sha256(longer)
    assert split_sha256(Split(longer.images[:100], longer.labels[:100])) == split_sha256(data.val)
    other_seed = open_data("synthetic32", train_images=200, val_images=100, seed=1)
    with pytest.raises(LabkitError, match="not the first of the longer split"):
        scoring_split(other_seed, 300)


def test_batch_norm_added_for_training_is_folded_without_changing_outputs() -> None:
    torch.manual_seed(0)
    model = build("alexnet", image_px=32, classes=10)
    names = set(model.state_dict())
    assert not has_batch_norm(model)
    normalise(model)
    images = torch.randn(16, 3, 32, 32)
    with torch.no_grad():
        model(images)  # running statistics
        model.eval()
        expected = model(images)
        fold_back(model)
        assert not has_batch_norm(model)
        assert set(model.state_dict()) == names
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


def test_weights_trained_with_added_batch_norm_fit_the_original_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = open_data("digits", train_images=32, val_images=32)
    trained_here(monkeypatch, tmp_path / "weights", alexnet=_weights.Schedule(1, 0.01))
    trial = replace(TRAINED, model="alexnet")
    network = _weights.make_network(trial, few)
    assert network.weights is not None and network.weights.facts["batch_norm_folded"]
    assert not has_batch_norm(network.model)
