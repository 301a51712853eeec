"""All forms of a stored set hold the same images, and a form that is not whole is never opened."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.errors import DataError, UserError
from labkit.torchvision_import import import_torchvision
from workbook.storage import FORMS, StoredSet, cache_folder, images, make_from_folder, make_set, open_stored

IMAGES, CLASSES, SEED = 24, 5, 3
Pairs = Iterator[tuple[int, bytes]]  # label and file content


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredSet]:
    return make_set(tmp_path_factory.mktemp("stored") / "set", images=IMAGES, classes=CLASSES, seed=SEED)


@pytest.fixture
def own(made: dict[str, StoredSet], tmp_path: Path) -> Path:
    """Return the folder of a copy of the set, which a test may damage."""
    return Path(shutil.copytree(made["jpeg"].folder.parent, tmp_path / "own"))


def from_jpeg(stored: StoredSet) -> Pairs:
    for sample in stored.samples:
        yield sample.label, (stored.folder / sample.path).read_bytes()


def from_shards(stored: StoredSet) -> Pairs:
    for file in stored.files:
        with tarfile.open(file) as archive:
            content = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        for name in (name for name in content if name.endswith(".jpg")):
            yield int(content[name.replace(".jpg", ".cls")]), content[name]


def from_tfrecord(stored: StoredSet) -> Pairs:
    tf = pytest.importorskip("tensorflow")
    types = {"image/encoded": tf.string, "image/class/label": tf.int64}
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in types.items()}
    for record in tf.data.TFRecordDataset([str(file) for file in stored.files]):  # it checks every CRC
        example = tf.io.parse_single_example(record, features)
        yield int(example["image/class/label"]), example["image/encoded"].numpy()


@pytest.mark.parametrize("read", [from_shards, from_tfrecord])
def test_a_packed_form_holds_the_labels_and_bytes_of_the_jpeg_files(
    read: Callable[[StoredSet], Pairs], made: dict[str, StoredSet]
) -> None:
    packed = made[read.__name__.removeprefix("from_")]
    assert Counter(read(packed)) == Counter(from_jpeg(made["jpeg"]))
    labels = [label for label, _ in read(packed)]
    assert labels != sorted(labels) and labels != [sample.label for sample in made["jpeg"].samples]  # a random order


def test_the_cache_holds_the_pixels_that_torchvision_makes_of_the_jpeg_files(made: dict[str, StoredSet]) -> None:
    import_torchvision()
    from torchvision.transforms import functional  # import_torchvision() above makes this importable

    files = {file.name: file for file in made["cache"].files}
    pixels, labels = (np.load(files[name], mmap_mode="r") for name in ("images.npy", "labels.npy"))
    assert pixels.dtype == np.uint8 and pixels.shape == (IMAGES, 3, 256, 256) and labels.dtype == np.int64

    def expected(data: bytes) -> bytes:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return np.asarray(functional.center_crop(functional.resize(image, 256), 256)).transpose(2, 0, 1).tobytes()

    assert Counter((int(label), image.tobytes()) for label, image in zip(labels, pixels, strict=True)) == Counter(
        (label, expected(data)) for label, data in from_jpeg(made["jpeg"])
    )


def test_all_forms_describe_the_same_set_and_are_opened_as_they_were_made(made: dict[str, StoredSet]) -> None:
    assert tuple(made) == FORMS and len({stored.checksum for stored in made.values()}) == 1
    for form, stored in made.items():
        assert open_stored(made["jpeg"].folder.parent, form) == stored
        assert (stored.images, stored.classes) == (IMAGES, CLASSES) and len(stored.checksum) == 12
        assert stored.file_bytes == sum(file.stat().st_size for file in stored.files) > 0
    assert len(made["shards"].files) == 16  # so that many workers have a file each, also of a small set
    assert {sample.label for sample in made["jpeg"].samples} == set(range(CLASSES))


def test_an_image_depends_on_the_seed_and_its_number_alone(made: dict[str, StoredSet], tmp_path: Path) -> None:
    fewer = make_set(tmp_path / "fewer", images=9, classes=CLASSES, seed=SEED, forms=["jpeg"])["jpeg"]
    other = make_set(tmp_path / "other", images=9, classes=CLASSES, seed=SEED + 1, forms=["jpeg"])["jpeg"]
    whole, first, different = (list(from_jpeg(stored)) for stored in (made["jpeg"], fewer, other))
    assert first == whole[:9] and not set(different) & set(whole)
    assert images.jpeg(SEED, 20) == whole[20][1] and len(set(whole)) == IMAGES
    assert fewer.checksum != other.checksum != made["jpeg"].checksum


@pytest.mark.parametrize("seed", [0, 1])
def test_files_have_the_size_and_the_coded_bits_of_imagenets(seed: int) -> None:
    files = [images.jpeg(seed, index) for index in range(60)]
    assert 100_000 < np.mean([len(file) for file in files]) < 120_000
    sizes = [Image.open(io.BytesIO(file)).size for file in files]
    assert {width > height for width, height in sizes} == {True, False}
    assert 480 < np.mean([max(size) for size in sizes]) < 520
    bits_per_pixel = 8 * sum(map(len, files)) / sum(width * height for width, height in sizes)
    assert 4 < bits_per_pixel < 6  # ImageNet's: 110 KB for 500 x 375


def test_an_unknown_form_names_the_valid_ones(own: Path) -> None:
    with pytest.raises(UserError, match=r"unknown form 'shard'; valid: shards, .*jpeg"):
        open_stored(own, "shard")
    with pytest.raises(UserError, match="unknown form"):
        make_set(own, images=IMAGES, classes=CLASSES, seed=SEED, forms=["tar"])


def test_a_missing_form_names_those_that_are_there(own: Path) -> None:
    (own / "shards" / "index.json").unlink()
    with pytest.raises(UserError, match=r"no whole shards form; whole forms there: jpeg, tfrecord, cache\."):
        open_stored(own, "shards")


DAMAGES = {
    "an index that is no JSON": lambda home: (home / "index.json").write_text("{"),
    "an empty index": lambda home: (home / "index.json").write_text(""),
    "the index of another form": lambda home: shutil.copy(home.parent / "cache" / "index.json", home / "index.json"),
    "a file cut short": lambda home: os.truncate(next(home.glob("*.tar")), 5000),
    "a missing file": lambda home: next(home.glob("*.tar")).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_form_is_refused_and_made_anew(damage: str, own: Path, made: dict[str, StoredSet]) -> None:
    DAMAGES[damage](own / "shards")
    with pytest.raises(UserError, match="make the set again") as caught:
        open_stored(own, "shards")
    assert "\n" not in str(caught.value)
    again = make_set(own, images=IMAGES, classes=CLASSES, seed=SEED)
    assert Counter(from_shards(again["shards"])) == Counter(from_jpeg(made["jpeg"]))


def test_a_removed_image_is_noticed_and_drawn_again(own: Path, made: dict[str, StoredSet]) -> None:
    (own / "jpeg" / made["jpeg"].samples[7].path).unlink()
    with pytest.raises(UserError, match=r"is not as .*index\.json describes it"):
        open_stored(own, "jpeg")
    assert make_set(own, images=IMAGES, classes=CLASSES, seed=SEED)["jpeg"].checksum == made["jpeg"].checksum
    assert list(from_jpeg(open_stored(own, "jpeg"))) == list(from_jpeg(made["jpeg"]))


def test_a_folder_with_another_set_or_with_somebodys_files_is_left_alone(own: Path, tmp_path: Path) -> None:
    before = listing(own)
    with pytest.raises(UserError, match="remove it or name another folder"):
        make_set(own, images=IMAGES, classes=CLASSES, seed=SEED + 1)
    theirs = tmp_path / "theirs" / "jpeg" / "thesis.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("of years")
    with pytest.raises(UserError, match="other files than a stored set"):
        make_set(tmp_path / "theirs", images=IMAGES, classes=CLASSES)
    assert listing(own) == before and theirs.read_text() == "of years"


@pytest.mark.parametrize(("count", "classes", "seed"), [(0, 1, 0), (5, 0, 0), (5, 6, 0), (5, 5, -1)])
def test_invalid_numbers_are_refused(count: int, classes: int, seed: int, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        make_set(tmp_path / "set", images=count, classes=classes, seed=seed)
    assert not (tmp_path / "set").exists()


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of everything in a folder, but for the lock of the project."""
    paths = [folder, *folder.rglob("*")]
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths if path.name != ".lock"}


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """Return a user's folder: 20 images in two classes, one of them damaged, and three unreadable files."""
    folder = tmp_path / "imagenet"
    for label, name in enumerate(("n01440764", "n15075141")):
        (folder / "train" / name).mkdir(parents=True)
        for index in range(10):
            (folder / "train" / name / f"{name}_{index}.JPEG").write_bytes(images.jpeg(label, index))
    first = folder / "train" / "n01440764"
    (first / "n01440764_3.JPEG").write_bytes(images.jpeg(0, 3)[:20_000])
    (first / "empty.JPEG").touch()
    (first / "nowhere.JPEG").symlink_to(folder / "absent.JPEG")
    (first / "notes.txt").write_text("no image")
    return folder


def test_a_users_folder_is_used_as_it_stands_and_not_written_to(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    before = listing(user)
    stored = make_from_folder(user)
    assert listing(user) == before
    assert stored["jpeg"].folder == user and stored["shards"].folder == cache_folder(user) / "shards"
    assert (stored["jpeg"].images, stored["jpeg"].classes) == (20, 2)
    assert {Path(sample.path).parent.name: sample.label for sample in stored["jpeg"].samples} == {
        "n01440764": 0,
        "n15075141": 1,
    }
    assert Counter(from_shards(stored["shards"])) == Counter(from_jpeg(stored["jpeg"]))
    assert stored["cache"].images == 19


def test_a_change_in_a_users_folder_is_noticed_and_every_form_made_anew(user: Path, tmp_path: Path) -> None:
    folder = tmp_path / "forms"
    old = make_from_folder(user, folder=folder, forms=["jpeg", "shards"])
    assert make_from_folder(user, folder=folder, forms=["shards"])["shards"] == old["shards"]
    shutil.copy(user / old["jpeg"].samples[0].path, user / "train" / "n15075141" / "more.jpg")
    with pytest.raises(UserError, match="n15075141 is not as"):
        open_stored(folder, "jpeg")
    new = make_from_folder(user, folder=folder, forms=["jpeg", "shards"])
    assert new["jpeg"].images == 21 and new["jpeg"].checksum != old["jpeg"].checksum
    assert Counter(from_shards(new["shards"])) == Counter(from_jpeg(new["jpeg"]))


def test_a_folder_of_another_layout_is_refused_with_the_layout(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file or directory.*train/<class>/\*\.JPEG"):
        make_from_folder(tmp_path, folder=tmp_path.parent / f"{tmp_path.name}-forms")
    (tmp_path / "train" / "n01440764").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no JPEG file"):
        make_from_folder(tmp_path, folder=tmp_path.parent / f"{tmp_path.name}-forms")
    with pytest.raises(UserError, match="not written to"):
        make_from_folder(tmp_path, folder=tmp_path / "forms")
