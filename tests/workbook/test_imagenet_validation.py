"""Tests of ImageNet's validation set and torchvision's weights: pixels, labels and scores equal torchvision's own."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.data import (
    DataSet,
    Split,
    cache_dir,
    identify,
    ilsvrc2012,
    inspect,
    open_data,
)
from labkit.errors import DataError, LabkitError, UserError
from tests.archives import CLASS_FOLDERS, write_jpegs, write_validation_set
from tests.faulty.campaign import HOST
from tests.prepared import checked
from tests.workbook.test_cli import assert_refused, labkit
from workbook import study
from workbook.engines.torchvision_files import PATTERN, read_state
from workbook.engines.weights_files import check_folder, find_weights, why_none
from workbook.errors import Unsupported
from workbook.hardware.profile import load_profile
from workbook.paths import notebook_of
from workbook.records.store import Store
from workbook.report.execute import planned_trials
from workbook.runner.plan import REFUSED_S, pass_at, planned_s
from workbook.session import Session
from workbook.study import open_study
from workbook.trials.trial import Trial
from workbook.workloads import build_workload
from workbook.workloads.infer import split_sha256

torch = pytest.importorskip("torch")

from labkit.models import build  # noqa: E402
from labkit.torchvision_import import import_torchvision  # noqa: E402
from workbook.engines.inference_images import calibration_batches, protocol  # noqa: E402
from workbook.engines.openvino_on_cpu import missing  # noqa: E402
from workbook.workloads._weights import make_network  # noqa: E402

PER_CLASS, CALIBRATING = 2, 1250
SCORED = 12
TRIAL = Trial(
    workload="infer",
    model="resnet18",
    image_px=224,
    batch=4,
    device="cpu",
    data="ilsvrc2012",
    weights="trained",
    scored=SCORED,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_validation_set(tmp_path_factory.mktemp("imagenet"), per_class=PER_CLASS)


@pytest.fixture(scope="module")
def images(folder: Path, shared_cache: Path) -> DataSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(shared_cache))
        return open_data(str(folder))


@pytest.fixture
def nothing_is_decoded(images: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the decoding of any image fail. The data set that `images` cached can still be opened."""

    def read(file: Path) -> np.ndarray:
        raise AssertionError(f"{file} was read")

    monkeypatch.setattr(ilsvrc2012, "read_image", read)


def listed(
    root: Path,
    *,
    per_class: int = PER_CLASS,
    classes: Sequence[str] = CLASS_FOLDERS,
    hidden: str = "",
    file: str = "ILSVRC2012_val_{:08}.JPEG",
) -> Path:
    """Create a folder like ImageNet's with empty image files. The files of class `hidden` are hidden files."""
    for name in classes:
        (root / "val" / name).mkdir(parents=True)
        for number in range(per_class):
            (root / "val" / name / f"{'.' if name == hidden else ''}{file.format(number, c=name)}").touch()
    return root


# The images


def test_pixels_and_labels_equal_torchvisions(folder: Path, images: DataSet) -> None:
    torchvision = import_torchvision()
    from torchvision.transforms import functional  # import_torchvision() above makes this importable

    loader = torchvision.datasets.folder.default_loader
    classes = dict(torchvision.datasets.ImageFolder(folder / "val").samples)
    items = ilsvrc2012.list_images(folder / "val")
    for split, kept in (("train", images.train), ("val", images.val)):
        assert [classes[str(file)] for file, _ in items[split]] == kept.labels.tolist()
        for place in [*range(0, len(kept), 31), *(i for i, item in enumerate(items[split]) if item.label == 5)]:
            scaled = functional.resize(loader(items[split][place].file), [256])
            expected = functional.pil_to_tensor(functional.center_crop(scaled, [224])).numpy()
            assert np.array_equal(kept.images[place], expected), items[split][place].file


def test_calibration_images_are_spread_over_the_classes_and_never_scored(folder: Path, images: DataSet) -> None:
    assert (len(images.train), len(images.val)) == (CALIBRATING, 1000 * PER_CLASS - CALIBRATING)
    items = ilsvrc2012.list_images(folder / "val")
    train, val = ({file for file, _ in items[split]} for split in ("train", "val"))
    assert not train & val and len(train | val) == 1000 * PER_CLASS
    for labels in (images.train.labels, images.val.labels):
        counts = np.bincount(labels, minlength=1000)
        assert np.abs(np.add.reduceat(counts, range(0, 1000, 50)) - len(labels) / 20).max() <= 1, "spread evenly"
    few = replace(images, train=Split(images.train.images[:30], images.train.labels[:30]))
    batches = calibration_batches(TRIAL, few)
    assert sum(map(len, batches)) == 30 and batches[0].shape[1:] == (3, 224, 224)
    assert "not scored" in protocol(images) and "training images" in protocol(replace(images, name="synthetic32"))


def test_the_first_scored_images_are_of_different_classes(tmp_path: Path) -> None:
    items = ilsvrc2012.list_images(listed(tmp_path, per_class=5) / "val")
    labels = [label for _, label in items["val"]]
    assert len(set(labels[:700])) == 700 and len(set(labels[:2000])) == 1000


def test_the_set_has_torchvisions_normalisation_and_a_description(folder: Path, images: DataSet) -> None:
    expected = import_torchvision().models.ResNet18_Weights.IMAGENET1K_V1.transforms()
    np.testing.assert_allclose(np.array(images.mean) / 255, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(np.array(images.std) / 255, expected.std, rtol=1e-12)
    assert (images.edge_px, images.classes, images.name, images.validation_only) == (224, 1000, "ilsvrc2012", True)
    assert inspect(identify(str(folder)))[0] == images.description
    for part in ("750 images", "1,250", "subset", "256 px"):
        assert part in images.description
    assert "subset" not in ilsvrc2012.describe(1250, 48750)


@pytest.mark.usefixtures("nothing_is_decoded")
def test_a_second_opening_reads_no_image(folder: Path, images: DataSet) -> None:
    for path in (folder, folder / "val"):
        again = open_data(str(path))
        assert again.checksum == images.checksum and isinstance(again.val.images, np.memmap)
    assert [part.role for part in identify(str(folder)).parts] == ["validation"]


def test_reading_images_writes_no_progress_bar_to_a_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ilsvrc2012, "_QUIET_S", 0.0)
    few = ilsvrc2012.list_images(folder / "val")["val"][:200]
    assert sum(len(labels) for _, labels in ilsvrc2012.read_images(few)) == 200
    assert capsys.readouterr() == ("", "")


def test_a_changed_file_changes_the_token_of_the_set(tmp_path: Path) -> None:
    classes = listed(tmp_path) / "val"
    before = ilsvrc2012.source(classes).token
    assert ilsvrc2012.source(classes).token == before
    os.utime(next((classes / CLASS_FOLDERS[3]).iterdir()), ns=(1, 1))
    assert ilsvrc2012.source(classes).token != before


def test_a_sample_keeps_size_and_normalisation(folder: Path, images: DataSet) -> None:
    few = open_data(str(folder), val_images=20)
    assert (few.edge_px, few.mean, few.std) == (224, images.mean, images.std)
    assert len(few.val) == 20 and few.checksum != images.checksum


def test_cache_entries_of_32_px_are_unchanged() -> None:
    open_data("synthetic32", train_images=40, val_images=20)
    meta = json.loads((cache_dir() / "synthetic32-v1-s0-40-20" / "meta.json").read_text())
    assert "edge_px" not in meta and "words" not in meta
    assert meta["checksum"] == "215ee90ab7861685abd76a6a260098c5d9e696e4ccc4c4589ca59c0cd125cf96"


# Folders that are not the validation set


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        ({"classes": CLASS_FOLDERS[:-1]}, "folder 999."),
        ({"classes": CLASS_FOLDERS[::5]}, "folder 200."),  # as many as Tiny ImageNet
        ({"classes": ["n00000001", *CLASS_FOLDERS[1:]]}, "but other"),
        ({"per_class": 1}, "1,000 images; calibration takes 1,250"),
        ({"file": "{c}_{}_{c}.JPEG"}, "training image"),
        ({"file": "{}.jpg"}, "not named like"),
        ({"hidden": CLASS_FOLDERS[7]}, f"{CLASS_FOLDERS[7]} holds no image"),
    ],
)
def test_a_folder_that_is_not_the_validation_set_is_refused(listing: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        open_data(str(listed(tmp_path, **listing)))


def test_images_of_one_size_are_a_processed_copy_and_not_scored(tmp_path: Path) -> None:
    write_jpegs(tmp_path / "fog" / "val", CLASS_FOLDERS, "ILSVRC2012_val_{:08}.JPEG", px=64)
    with pytest.raises(DataError, match="64 x 64 pixels"):
        open_data(str(tmp_path / "fog"))


def test_kaggles_layout_gives_the_images_and_labels_of_class_folders(
    folder: Path, images: DataSet, tmp_path: Path
) -> None:
    flat = tmp_path / "ILSVRC" / "Data" / "CLS-LOC" / "val"
    flat.mkdir(parents=True)
    rows = ["ImageId,PredictionString"]
    for number, file in enumerate(sorted((folder / "val").glob("*/*"))):
        name = f"ILSVRC2012_val_{number:08}"
        (flat / f"{name}.JPEG").hardlink_to(file)
        rows.append(f"{name},{file.parent.name} 1 2 3 4 {file.parent.name} 5 6 7 8 ")
    with pytest.raises(DataError, match=r"LOC_val_solution\.csv, .* neither"):
        open_data(str(tmp_path))
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(rows[:-1]))
    with pytest.raises(DataError, match=f"class of {name}"):
        open_data(str(tmp_path))
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(rows))
    for given in (tmp_path, flat.parent, flat):
        listing = ilsvrc2012.list_images(ilsvrc2012.find_folder(given) or tmp_path)
        for split, kept in (("train", images.train), ("val", images.val)):
            assert [item.label for item in listing[split]] == kept.labels.tolist()
    (part,) = identify(str(tmp_path)).parts
    assert (part.name, part.reason) == ("ilsvrc2012", "")


def test_a_file_that_is_not_an_image_is_refused_and_leaves_no_cache_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    root = listed(tmp_path / "imagenet")
    next((root / "val" / CLASS_FOLDERS[0]).iterdir()).write_text("no image")
    plan = ["plan", "--hw", "cpu", "--study", "quantization", "--data", str(root)]
    for command in (plan, ["data", "check", str(root)]):
        assert_refused(labkit(*command), "0.JPEG is text")
    assert {path.name for path in (tmp_path / "cache").glob("*")} <= {".lock"}


def test_a_truncated_image_is_named(folder: Path, tmp_path: Path) -> None:
    whole = next((folder / "val" / CLASS_FOLDERS[5]).iterdir()).read_bytes()
    (tmp_path / "cut.JPEG").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.JPEG .*truncated"):
        ilsvrc2012.read_image(tmp_path / "cut.JPEG")
    with pytest.raises(DataError, match=r"gone\.JPEG .*No such file"):
        ilsvrc2012.read_image(tmp_path / "gone.JPEG")


def test_the_checksum_in_chunks_equals_that_of_the_whole_split(images: DataSet) -> None:
    some = Split(images.val.images[:530, :, :8, :8], images.val.labels[:530])  # more images than a chunk holds
    whole = np.ascontiguousarray(some.images).tobytes() + some.labels.astype("<i2").tobytes()
    assert split_sha256(some) == hashlib.sha256(whole).hexdigest()


# Studies with a validation set


@pytest.mark.usefixtures("nothing_is_decoded")
@pytest.mark.parametrize("studies", ["", "quantization,inference"])
def test_studies_that_train_refuse_a_validation_set_before_anything_is_read(
    studies: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    done = labkit("plan", "--hw", "cpu", "--study", studies, "--scale", "smoke", "--data", str(folder))
    assert_refused(done, "validation images", "(STUDY=quantization)")
    assert ("01_training" in done.stderr) == (studies != "quantization,inference")


def test_a_notebook_that_trains_refuses_a_validation_set(folder: Path) -> None:
    with pytest.raises(UserError, match=r"01_training .*DATA="):
        open_study("01_training", hw="cpu", scale="smoke", mode="plan", data=str(folder), host=HOST)


def planned(data: str, scale: str = "smoke") -> list[Trial]:
    notebook = notebook_of("08_quantization")
    return list(planned_trials(notebook, {"hw": "cpu", "scale": scale, "mode": "plan", "data": data}))


@pytest.mark.usefixtures("nothing_is_decoded")
def test_only_scored_trials_use_the_validation_set(
    folder: Path, images: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "mismatch", lambda *_: None)
    without, given = planned(""), planned(str(folder))
    timed = [[trial.key for trial in trials if trial.weights == "initial"] for trials in (without, given)]
    assert timed[0] == timed[1] != []
    scored = [trial for trial in given if trial.weights == "trained"]
    assert {trial.precision for trial in scored} == {"fp32", "int8"}
    for trial in scored:
        assert (trial.data, trial.data_checksum, trial.image_px) == ("ilsvrc2012", images.checksum, 224)
        assert (trial.scored, trial.batch) == (200, 20)
    assert {(t.data, t.image_px, t.scored, t.batch) for t in without if t.weights == "trained"} == {
        ("synthetic32", 32, 1000, 250)
    }


def test_images_are_never_scaled_down(images: DataSet) -> None:
    with pytest.raises(Unsupported, match=r"224 px \(ilsvrc2012\) .* 32 px"):
        build_workload(replace(TRIAL, image_px=32), images)


# The weights


def save(state: dict[str, Any], model: str, folder: Path, *, name: str = "{model}-{digits}.pth") -> Path:
    """Save a state under a name like torchvision's, with the first digits of its SHA-256, and return the path."""
    path = folder / "new.pth"
    torch.save(state, path)
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.rename(folder / name.format(model=model, digits=digits))


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return dict(build("resnet18", image_px=224).state_dict())


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache's empty folder of weights."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


def test_a_torchvision_file_is_found_by_its_name(weights: Path) -> None:
    alexnet = replace(TRIAL, model="alexnet")
    assert find_weights(TRIAL) is None
    for name in ("resnet18-f37072fd.pt", "resnet18-f37072f.pth", "resnet18-32px-0123456789abcdef.pt", "wide-resnet18"):
        (weights / name).touch()
    assert find_weights(TRIAL) is None and find_weights(alexnet) is None
    (weights / "resnet18-f37072fd.pth").touch()
    (weights / "alexnet-owt-7be5be79.pth").touch()
    assert find_weights(TRIAL) == weights / "resnet18-f37072fd.pth"
    assert find_weights(alexnet) == weights / "alexnet-owt-7be5be79.pth"
    assert find_weights(replace(TRIAL, model="resnet101")) is None
    assert find_weights(replace(TRIAL, data="synthetic32")) is None, "these weights are not of the synthetic set"


def test_of_two_files_the_published_one_is_taken_and_others_are_refused_before_anything_runs(
    weights: Path, state: dict[str, Any]
) -> None:
    for name in ("resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth", "lenet-00000000.pth", "lenet-11111111.pth"):
        (weights / name).touch()  # as torch's cache has them, V2 of ResNet-50 too
    assert find_weights(replace(TRIAL, model="resnet50")) == weights / "resnet50-0676ba61.pth"
    whole = save(state, "resnet18", weights)
    (weights / "resnet18-00000000.pth").touch()
    message = f"resnet18-00000000.pth and {whole.name}"
    with pytest.raises(UserError, match=message):
        find_weights(TRIAL)
    assert_refused(labkit("plan", "--hw", "cpu", "--scale", "smoke", "--weights", str(weights)), message)


def test_the_error_for_a_folder_without_weights_names_torchvisions_pattern(tmp_path: Path) -> None:
    (tmp_path / "lenet-00000000.pth").touch()
    with pytest.raises(UserError, match=f"{PATTERN}; .*lenet-00000000.pth"):
        check_folder(str(tmp_path))


def test_a_missing_weights_file_is_named_and_nothing_is_trained(images: DataSet, weights: Path) -> None:
    session = Session(profile=load_profile("cpu"), host=HOST, store=Store(weights), scale="smoke")
    first = pass_at(session, "08_quantization", 1)
    for device in ("cpu", "cuda"):  # a GPU would train the weights for other data
        trial = replace(TRIAL, device=device)
        assert all(fact in why_none(trial) for fact in ("224 px", "ilsvrc2012", "WEIGHTS=", "resnet18-f37072fd.pth"))
        with pytest.raises(Unsupported, match="resnet18-f37072fd"):
            make_network(trial, images)
        assert planned_s(trial, first) == REFUSED_S, "the trial is not timed"
    (weights / "resnet18-f37072fd.pth").touch()
    more_s = [planned_s(replace(TRIAL, scored=count), first) for count in (0, 1000)]
    assert more_s[1] - more_s[0] == pytest.approx(49), "1 s per 1,000 images of 32 px, and these are 49 times as large"


def cut_short(state: dict[str, Any], folder: Path) -> Path:
    start = save(state, "resnet18", folder).read_bytes()[:5000]
    path = folder / f"resnet18-{hashlib.sha256(start).hexdigest()[:8]}.pth"
    path.write_bytes(start)
    return path


def for_other_images(_: dict[str, Any], folder: Path) -> Path:
    (folder / "resnet50-11ad3fa6.pth").touch()
    return folder / "resnet50-11ad3fa6.pth"


def pointer(_: dict[str, Any], folder: Path) -> Path:
    path = folder / "resnet18-f37072fd.pth"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 46830571\n")
    return path


def saving(change: Callable[[dict[str, Any]], Any], **options: str) -> Callable[[dict[str, Any], Path], Path]:
    return lambda state, folder: save(change(state), "resnet18", folder, **options)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (saving(dict, name="{model}-00000000.pth"), "SHA-256"),
        (cut_short, "as weights"),
        (saving(lambda _: build("alexnet", image_px=224).state_dict()), "lacks conv1.weight, .* has feat"),
        (saving(lambda state: state | {"fc.weight": state["fc.weight"][:10]}), r"shape are fc\.weight\."),
        (saving(lambda state: {"model": state, "epoch": 3}), "under 'model'"),
        (saving(lambda state: {f"module.{name}": value for name, value in state.items()}), "`module.`"),
        (pointer, "LFS pointer"),
        (saving(lambda state: list(state.values())), "holds a list"),
        (saving(lambda _: {"conv1.weight": Path("/")}), "nothing .* executed"),
        (for_other_images, r"IMAGENET1K_V2\) .*232 px .*resnet50-0676ba61.pth"),
    ],
)
def test_a_file_that_does_not_fit_the_network_is_refused(
    write: Callable[[dict[str, Any], Path], Path], said: str, state: dict[str, Any], tmp_path: Path
) -> None:
    path = write(state, tmp_path)
    with pytest.raises(LabkitError, match=said) as refused:
        read_state(path, path.name.split("-")[0], classes=1000)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("write", [saving(lambda state: {"net": state}), pointer, cut_short])
def test_a_file_without_weights_is_refused_before_anything_runs(
    write: Callable[[dict[str, Any], Path], Path], state: dict[str, Any], tmp_path: Path
) -> None:
    path = write(state, tmp_path)
    assert_refused(labkit("plan", "--hw", "cpu", "--scale", "smoke", "--weights", str(tmp_path)), path.name)


def test_whole_weights_pass_the_check_before_anything_runs(weights: Path, state: dict[str, Any]) -> None:
    save(state, "resnet18", weights)
    assert check_folder(str(weights)) == weights


def test_files_without_batch_norm_counters_are_accepted(state: dict[str, Any], tmp_path: Path) -> None:
    old = OrderedDict((name, value) for name, value in state.items() if not name.endswith("num_batches_tracked"))
    path = save(old, "resnet18", tmp_path)
    read, sha256 = read_state(path, "resnet18", classes=1000)
    build("resnet18", image_px=224).load_state_dict(read)  # strict by default
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


# Images and weights together


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("model", ["resnet18", "googlenet"])
def test_scores_equal_those_of_torchvisions_model_and_transforms(
    model: str, folder: Path, images: DataSet, weights: Path
) -> None:
    models = import_torchvision().models
    loader = import_torchvision().datasets.folder.default_loader
    transforms = models.get_model_weights(model).IMAGENET1K_V1.transforms()
    files = ilsvrc2012.list_images(folder / "val")["val"][:SCORED]
    inputs = torch.stack([transforms(loader(file)) for file, _ in files])
    labels = torch.tensor([label for _, label in files])

    # torchvision's GoogLeNet for its weights has auxiliary heads in the file and another normalisation inside.
    special = {"transform_input": True, "aux_logits": True, "init_weights": True} if model == "googlenet" else {}
    torch.manual_seed(0)
    theirs = models.get_model(model, weights=None, **special).eval()
    state = prototypes(theirs, inputs, labels)
    theirs.load_state_dict(state)
    path = save(state, model, weights)
    with torch.inference_mode():
        expected = theirs(inputs)
    right = expected.argmax(dim=1) == labels
    assert 0.5 < float(right.float().mean()) < 0.8, "an accuracy of 0 or 1 would prove little"

    trial = replace(TRIAL, model=model, engine="openvino")
    workload = checked(trial, images)
    pixels = [torch.from_numpy(np.array(images.val.images[first : first + 4])) for first in range(0, SCORED, 4)]
    logits = torch.cat([workload._predict(batch) for batch in pixels])
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.std()))
    scored = workload.score(lambda _: None)
    assert scored.images == SCORED and scored.hits("top1").tolist() == right.tolist()
    top5 = (expected.topk(5, dim=1).indices == labels[:, None]).any(dim=1)
    assert scored.hits("top5").tolist() == top5.tolist()
    facts = workload.facts["weights"]
    assert (facts["file"], facts["file_sha256"]) == (path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    assert ("normalisation" in facts) == (model == "googlenet")
    assert "validation set" in workload.facts["data_description"]


def prototypes(model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
    """Return a state with which a torchvision model classifies two of three images correctly, without training.

    A class's weights in the last layer are the features of its image. Every third image's class has no such weights.
    """
    with torch.inference_mode():
        seen: list[torch.Tensor] = []
        hook = model.fc.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(1)))
        model(inputs)
        hook.remove()
        features = seen[0]
        middle = features.mean(dim=0)
        size = (features - middle).norm(dim=1).mean()
        apart = (features - middle) / size
        answered = torch.arange(len(labels)) % 3 > 0
        weight, bias = torch.zeros(1000, features.shape[1]), torch.full((1000,), -9.0)
        weight[labels[answered]] = apart[answered]
        bias[labels[answered]] = -0.5 * apart[answered].square().sum(dim=1)
        bias[labels[answered]] -= apart[answered] @ (middle / size)
        return dict(model.state_dict()) | {"fc.weight": weight / size, "fc.bias": bias}
