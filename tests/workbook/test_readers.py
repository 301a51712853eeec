"""Tests of readers: what they deliver, what they skip, how they fail, and that nothing is left of them."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from labkit.errors import LabkitError, UserError
from tests.prepared import prepare
from tests.processes import eventually
from tests.workbook.conftest import Measured
from workbook.errors import GateError, Unsupported
from workbook.records import Record
from workbook.storage import FORMS, StoredSet, make_set
from workbook.storage.page_cache import why_not_cold
from workbook.storage.readers import READERS, READS, lacking, open_reader
from workbook.trials.trial import WORDS, Trial, measured
from workbook.workloads import build_workload

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("_torch_is_left_as_it_was")

IMAGES = 24  # each of a class of its own, so that a label names its image
ANYWHERE = [(reader, form) for reader in READERS for form in READS[reader] if lacking(reader) is None]
WITH_PROCESSES = [pair for pair in ANYWHERE if pair[0] not in ("tf_data", "mapped", "resident")]
LOAD = Trial(workload="load", form="jpeg", reader="torch_pil", workers=1, batch=8, image_px=32, device="cpu")
TRAIN = replace(LOAD, workload="train", model="resnet18", classes=IMAGES, learning_rate=0.005)


@pytest.fixture(scope="session")
def forms(shared_cache: Path) -> dict[str, StoredSet]:
    return make_set(shared_cache / "stored-of-tests", images=IMAGES, classes=IMAGES)


@pytest.fixture
def copied(forms: dict[str, StoredSet], tmp_path: Path) -> Callable[[str], StoredSet]:
    """Return a function that copies a form, whose files the test may then damage."""

    def copy(form: str) -> StoredSet:
        stored = forms[form]
        shutil.copytree(stored.folder, tmp_path / form)
        files = tuple(tmp_path / form / file.relative_to(stored.folder) for file in stored.files)
        return replace(stored, folder=tmp_path / form, files=files)

    return copy


@contextmanager
def opened(reader: str, stored: StoredSet, **options: Any) -> Iterator[Any]:
    usual = {"batch": 8, "image_px": 32, "workers": 0 if reader == "resident" else 2, "seed": 1, "device": "cpu"}
    made = open_reader(reader, stored, **{**usual, **options})
    try:
        yield made
    finally:
        made.close()


def labels_of(reader: Any, images: int) -> list[int]:
    """Return the labels of the next batches."""
    return [int(label) for _ in range(images // reader.batch) for label in reader.next_batch()[1]]


def children() -> list[psutil.Process]:
    """Return the processes that readers started. Python keeps a tracker of shared memory, which is not theirs."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline())
    ]


def what_is_open(folder: Path) -> tuple[set[int], list[str], set[str]]:
    """Return processes, threads and files below the folder that this process holds."""
    files = [entry.path for entry in [*psutil.Process().open_files(), *psutil.Process().memory_maps()]]
    threads = [thread.name for thread in threading.enumerate()]
    return {child.pid for child in children()}, threads, {path for path in files if path.startswith(str(folder))}


# ---- what readers deliver -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reader", "form"), ANYWHERE)
def test_a_reader_delivers_each_sample_once_per_epoch_and_leaves_nothing_behind(
    forms: dict[str, StoredSet], reader: str, form: str
) -> None:
    before = what_is_open(forms[form].folder)
    with opened(reader, forms[form]) as made:
        assert made.epoch_images == IMAGES
        images, labels = made.next_batch()
        assert (tuple(images.shape), images.dtype) == ((8, 3, 32, 32), torch.uint8)
        assert (tuple(labels.shape), labels.dtype) == ((8,), torch.int64)
        assert images.float().std() > 10, "images have content"
        seen = [*labels.tolist(), *labels_of(made, 2 * IMAGES - 8)]
        assert sorted(seen) == sorted([*range(IMAGES)] * 2), "each image twice in two epochs"
        assert set(seen[:IMAGES]) == set(range(IMAGES))
        assert seen[:IMAGES] != seen[IMAGES:], "the order changes"
        assert made.skipped == 0
        if (reader, form) in WITH_PROCESSES:
            assert len(children()) == 2
    assert eventually(lambda: what_is_open(forms[form].folder) == before), what_is_open(forms[form].folder)


@pytest.mark.parametrize(("reader", "form"), ANYWHERE)
def test_batches_are_full_and_continue_across_epochs(forms: dict[str, StoredSet], reader: str, form: str) -> None:
    with opened(reader, forms[form], batch=12, workers=0) as made:
        counts = np.bincount(labels_of(made, 3 * IMAGES), minlength=IMAGES)
    assert counts.sum() == 3 * IMAGES
    assert counts.min() >= 2 and counts.max() <= 4, "at most a batch waits for the end of the next epoch"


def decoded(stored: StoredSet, reader: str) -> dict[int, Any]:
    """Return the images of 224 px by their labels."""
    with opened(reader, stored, image_px=224, workers=0, train=False, order="as stored") as made:
        batches = [made.next_batch() for _ in range(IMAGES // 8)]
    return {int(n): image.float() for images, labels in batches for image, n in zip(images, labels, strict=True)}


@pytest.fixture(scope="module")
def expected(forms: dict[str, StoredSet]) -> dict[int, Any]:
    return decoded(forms["jpeg"], "torch_pil")


@pytest.mark.parametrize(("reader", "form"), [pair for pair in ANYWHERE if pair != ("torch_pil", "jpeg")])
def test_all_readers_decode_the_same_pixels_without_random_crops(
    forms: dict[str, StoredSet], expected: dict[int, Any], reader: str, form: str
) -> None:
    found = decoded(forms[form], reader)
    assert set(found) == set(expected)
    for label, image in found.items():
        # TensorFlow's decoder and resize round differently from Pillow's.
        assert (image - expected[label]).abs().mean() < 1, label
        assert (image - expected[(label + 1) % IMAGES]).abs().mean() > 20, "another image differs far more"


def test_the_seed_decides_the_order(forms: dict[str, StoredSet]) -> None:
    for reader, form in ANYWHERE:
        orders = []
        for seed in (1, 1, 2):
            with opened(reader, forms[form], seed=seed, workers=0) as made:
                orders.append(labels_of(made, IMAGES))
        assert orders[0] == orders[1] != orders[2], reader


def test_training_crops_differ_from_epoch_to_epoch(forms: dict[str, StoredSet]) -> None:
    for reader, form in ANYWHERE:
        with opened(reader, forms[form], workers=0, batch=IMAGES) as made:
            first, second = ({int(n): image for image, n in zip(*made.next_batch(), strict=True)} for _ in range(2))
        assert sum(torch.equal(first[n], second[n]) for n in range(IMAGES)) < 3, reader


# ---- damaged files --------------------------------------------------------------------------------------------------


def damage(stored: StoredSet) -> set[int]:
    """Cut a JPEG file off, overwrite another and remove a third. Return their labels."""
    cut, overwritten, missing = (stored.samples[n] for n in (3, 14, 15))
    os.truncate(stored.folder / cut.path, cut.file_bytes // 10)
    (stored.folder / overwritten.path).write_bytes(b"no image" * 1000)
    (stored.folder / missing.path).unlink()
    return {cut.label, overwritten.label, missing.label}


@pytest.mark.parametrize("reader", [reader for reader, form in ANYWHERE if form == "jpeg"])
def test_unreadable_files_are_skipped_and_counted(copied: Callable[[str], StoredSet], reader: str) -> None:
    stored = copied("jpeg")
    bad = damage(stored)
    with opened(reader, stored, batch=4) as made:
        seen = labels_of(made, 2 * (IMAGES - len(bad)) + 6)
    assert set(seen) == set(range(IMAGES)) - bad
    # Two epochs and the begin of a third, in which some may have been skipped already.
    assert 2 * len(bad) <= made.skipped <= 3 * len(bad)


def test_a_damaged_image_in_a_shard_is_skipped_and_counted(copied: Callable[[str], StoredSet]) -> None:
    stored = copied("shards")
    data = bytearray(stored.files[0].read_bytes())
    first = data.index(b"\xff\xd8\xff")
    data[first : first + 700] = bytes(700)
    stored.files[0].write_bytes(data)
    with opened("webdataset", stored) as made:
        seen = labels_of(made, 2 * IMAGES)
    assert len(set(seen)) == IMAGES - 1
    assert made.skipped >= 2


@pytest.mark.parametrize(("reader", "form"), [pair for pair in ANYWHERE if pair[1] != "cache"])
def test_a_set_without_any_readable_image_is_an_error_and_no_endless_loop(
    copied: Callable[[str], StoredSet], reader: str, form: str
) -> None:
    stored = copied(form)
    for file in stored.files:
        file.write_bytes(b"no image")
    with pytest.raises(LabkitError, match=r"can read none|no sample"), opened(reader, stored, workers=0) as made:
        made.next_batch()


# ---- failing workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "form"),
    [WITH_PROCESSES[0], *(pytest.param(*rest, marks=pytest.mark.slow) for rest in WITH_PROCESSES[1:])],
)
def test_a_killed_worker_is_one_error_and_no_hang(forms: dict[str, StoredSet], reader: str, form: str) -> None:
    before = what_is_open(forms[form].folder)
    with opened(reader, forms[form]) as made:
        made.next_batch()
        os.kill(max(child.pid for child in children()), signal.SIGKILL)
        with pytest.raises(LabkitError, match=rf"{reader} .*(exited|killed|terminated)"):
            labels_of(made, 50 * IMAGES)
    assert eventually(lambda: what_is_open(forms[form].folder) == before)


# ---- unsupported combinations ---------------------------------------------------------------------------------------


def test_the_forms_of_trials_are_those_of_stored_sets() -> None:
    assert ("embedded", *FORMS) == measured("form")
    assert {form for reader in READERS for form in READS[reader]} == set(FORMS)


def test_an_unknown_order_is_refused(forms: dict[str, StoredSet]) -> None:
    with pytest.raises(UserError, match="unknown order 'random'; valid: "):
        open_reader("mapped", forms["cache"], batch=8, image_px=32, workers=0, seed=1, device="cpu", order="random")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"framework": "keras-jax", "engine": "xla", "model": "resnet50"}, "no other form than"),
        ({"augment": True}, "leave augment and loader"),
        ({"readers": 2}, "give readers=1"),
        ({"epochs": 1, "batch": 64}, f"a step takes 64 images, and the set has {IMAGES}"),
        ({"classes": 10}, f"the images have {IMAGES} classes, and the network 10"),
    ],
)
def test_a_trial_that_cannot_read_files_has_one_reason(forms: dict[str, StoredSet], change: Any, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        build_workload(replace(TRAIN, **change), forms["jpeg"])


def test_loading_needs_files() -> None:
    with pytest.raises(Unsupported, match="give form='jpeg'"):
        build_workload(Trial(workload="load", data="none", device="cpu"), None)


# ---- workloads ------------------------------------------------------------------------------------------------------


def test_loading_takes_a_batch_from_each_reader(forms: dict[str, StoredSet]) -> None:
    stored = forms["jpeg"]
    workload: Any = build_workload(replace(LOAD, readers=2, workers=0, batch=IMAGES), stored)
    assert workload.images_per_step == 2 * IMAGES
    assert workload.bytes_per_step == 2 * stored.file_bytes
    workload.check()
    images, labels = workload.step()
    assert tuple(images.shape) == (IMAGES, 3, 32, 32) and set(labels.tolist()) == set(range(IMAGES))
    assert workload.facts["resident_share"] > 0.99, "the page cache is warm"
    assert workload.facts["first_batch_s"] > workload.facts["readers_start_s"] > 0
    workload.close()


@pytest.mark.parametrize(("form", "reader"), [("jpeg", "torch_pil"), ("cache", "mapped")])
@pytest.mark.parametrize(("order", "parts"), [("own", False), ("shared", True)])
def test_several_readers_take_orders_of_their_own_or_parts_of_one(
    forms: dict[str, StoredSet], order: str, parts: bool, form: str, reader: str
) -> None:
    trial = replace(LOAD, form=form, reader=reader, readers=2, workers=0, reader_order=order, batch=IMAGES // 2)
    workload: Any = build_workload(trial, forms[form])
    labels = [label for each in workload.readers for label in each.next_batch()[1].tolist()]
    assert (sorted(labels) == list(range(IMAGES))) == parts


def test_a_reader_that_cannot_share_its_order_says_so(forms: dict[str, StoredSet]) -> None:
    trial = replace(LOAD, form="shards", reader="webdataset", readers=2, workers=0, reader_order="shared")
    with pytest.raises(Unsupported, match=r"webdataset .*order"):
        build_workload(trial, forms["shards"])


def test_the_first_batch_of_a_load_is_checked(forms: dict[str, StoredSet], monkeypatch: pytest.MonkeyPatch) -> None:
    workload: Any = build_workload(replace(LOAD, workers=0), forms["jpeg"])
    good = workload.readers[0].next_batch()
    for wrong, said in (
        ((good[0].float(), good[1]), "torch.float32"),
        ((good[0][:, :2], good[1]), r"\(8, 2, 32, 32\)"),
        ((good[0], good[1] + IMAGES), f"labels .*0 to {IMAGES - 1}"),
        ((torch.zeros_like(good[0]), good[1]), "content"),
    ):
        monkeypatch.setattr(workload.readers[0], "next_batch", lambda wrong=wrong: wrong)
        with pytest.raises(GateError, match=said):
            workload.check()


def test_a_cold_cache_is_dropped_before_the_reader_opens_or_the_trial_is_refused(
    copied: Callable[[str], StoredSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbook.workloads import _readers

    dropped: list[Path] = []
    monkeypatch.setattr(_readers, "why_not_cold", lambda _path: None)
    monkeypatch.setattr(_readers, "drop", lambda files: dropped.extend(files))
    stored = copied("jpeg")
    workload: Any = build_workload(replace(LOAD, workers=0, cache="cold", epochs=1), stored)
    workload.bring_cache()
    assert tuple(dropped) == stored.files
    monkeypatch.setattr(_readers, "why_not_cold", lambda _path: "of tmpfs")
    with pytest.raises(Unsupported, match="of tmpfs"):
        workload.bring_cache()


def test_files_larger_than_memory_cannot_be_warm(forms: dict[str, StoredSet]) -> None:
    with pytest.raises(Unsupported, match="cache='cold'"):
        build_workload(LOAD, replace(forms["jpeg"], file_bytes=10**15))


def test_training_from_files_learns_and_says_how_long_it_waited(forms: dict[str, StoredSet]) -> None:
    workload: Any = build_workload(replace(TRAIN, workers=0), forms["jpeg"])
    workload.check()
    assert workload.read_loss() is not None
    for _ in range(2):
        workload.step()
    workload.read_loss()
    before, waited_s = workload.facts["waited_s"]
    assert before + waited_s == workload.waited_s()
    assert waited_s > 0 and before > 0
    assert workload.facts["skipped"] == 0 and workload.facts["loader"] == "reader"
    assert workload.facts["train_images"] == IMAGES
    workload.close()


def test_a_tuned_step_is_compared_with_the_eager_one_on_the_same_images(forms: dict[str, StoredSet]) -> None:
    workload: Any = prepare(build_workload(replace(TRAIN, optimizer="sgd_fused", workers=0), forms["jpeg"]))
    workload.check()
    assert workload.facts["gate"]["steps"] == 3
    workload.close()


def test_a_loader_returns_its_first_batches_again_and_then_goes_on(forms: dict[str, StoredSet]) -> None:
    from labkit.data.augment import Preparation
    from workbook.storage.readers.reader import FedLoader

    prepare = Preparation(device=torch.device("cpu"), mean=(0, 0, 0), std=(1, 1, 1))
    with opened("torch_pil", forms["jpeg"], workers=0, batch=IMAGES // 6) as reader:
        loader = FedLoader(lambda reader=reader: reader, prepare=prepare, repeats=2)
        first = [loader.next_batch() for _ in range(3)]
        loader.rewind()
        again = [loader.next_batch() for _ in range(5)]
    for (images, labels), (same_images, same_labels) in zip(first[:2], again[:2], strict=True):
        assert torch.equal(images, same_images) and torch.equal(labels, same_labels)
    seen = [int(label) for _, labels in [*first, *again[2:]] for label in labels]
    assert sorted(seen) == list(range(IMAGES)), "no image is lost or repeated"


@pytest.fixture(scope="module")
def passes(forms: dict[str, StoredSet], measured: Measured) -> dict[str, Record]:
    """Return the records of a pass by name, since starting its processes takes longer than most of its trials."""
    of_set = {"data": "drawn_jpegs", "data_checksum": forms["jpeg"].checksum}
    load, train = (replace(trial, **of_set) for trial in (LOAD, TRAIN))
    trials = {"load": load, "train": train, "gone": replace(load, data_checksum="0" * 12)}
    trials |= {f"cold {name}": replace(trials[name], cache="cold", epochs=2) for name in ("load", "train")}
    found = measured(list(trials.values()))
    return {name: found[trial.key] for name, trial in trials.items()}


def test_passes_read_files_in_worker_processes(passes: dict[str, Record]) -> None:
    load, train = passes["load"], passes["train"]
    assert load.status == train.status == "ok", (load.reason, train.reason)
    assert load.facts["reader"] == "torch_pil"
    assert len(train.facts["waited_s"]) > len(train.result.host_s)
    assert "0" * 12 in (passes["gone"].reason or "")


@pytest.mark.parametrize("workload", ["load", "train"])
def test_epochs_count_what_is_read_from_storage(
    forms: dict[str, StoredSet], passes: dict[str, Record], workload: str
) -> None:
    stored = forms["jpeg"]
    if reason := why_not_cold(stored.files[0]):
        pytest.skip(reason)
    record = passes[f"cold {workload}"]
    assert record.status == "ok", record.reason
    reads = record.reads
    assert reads is not None and reads.cached_share_before is not None and reads.cached_share_before < 0.01
    cold, warm = reads.epochs
    assert cold.images == warm.images == IMAGES and cold.steps == IMAGES // 8 and reads.skipped == 0
    assert 0 < cold.waited_s <= cold.seconds and cold.cpu_s and cold.minor_faults
    assert cold.asked_bytes is not None and cold.asked_bytes >= stored.file_bytes
    assert cold.read_bytes is not None and warm.read_bytes is not None
    pages_bytes = sum(-(-file.stat().st_size // 4096) * 4096 for file in stored.files)
    assert pages_bytes <= cold.read_bytes < 1.2 * pages_bytes, "other files may be read as well, once"
    assert warm.read_bytes < 0.02 * stored.file_bytes
    assert cold.read_until_bytes[-1] == cold.timed_read_bytes <= cold.read_bytes, "the rest was read ahead before it"


def test_a_claim_meets_a_trial_that_reads_files_only_if_its_test_names_a_field_of_it() -> None:
    from workbook.claims.evidence import Side, select
    from workbook.results import Results

    plain, cold = replace(TRAIN, form="embedded", reader="own", workers=0), replace(TRAIN, cache="cold", epochs=1)
    sides: list[Any] = [Side(Results([]), trial) for trial in (plain, TRAIN, cold)]

    def met(**wanted: Any) -> list[Trial]:
        return [side.trial for side in select(sides, wanted)]

    assert met() == met(workload="train", image_px=32) == [plain]
    assert met(cache="cold") == [cold]
    assert met(form="jpeg") == [TRAIN, cold]


def test_labels_of_trials_name_what_differs_in_reading() -> None:
    from workbook.words import configuration_name, label, phrase

    others = [LOAD, replace(LOAD, reader="tf_data"), replace(LOAD, workers=2), replace(LOAD, cache="cold", epochs=1)]
    assert len({configuration_name(trial, beside=others) for trial in others}) == len(others)
    assert label("reader", "tf_data") == "tf.data" and phrase("workers", 1) == "1 worker"
    for column in ("reader", "form"):  # also what only earlier records have
        words = WORDS[column]
        assert len({label(column, word) for word in words} - set(words)) == len(words), "each has a name for readers"


@pytest.mark.slow
def test_the_ranks_of_a_training_read_together_and_count_together(
    forms: dict[str, StoredSet], measured: Measured
) -> None:
    of_ranks = {"devices": 2, "readers": 2, "placement": "together", "batch": 4, "epochs": 2, "reader_order": "shared"}
    trial = replace(TRAIN, **of_ranks, data="drawn_jpegs", data_checksum=forms["jpeg"].checksum)
    record = measured([trial])[trial.key]
    assert record.status == "ok", record.reason
    assert record.reads is not None
    first, second = record.reads.epochs
    assert first.images == second.images == IMAGES and first.steps == IMAGES // 8
    assert first.asked_bytes is not None
    assert first.asked_bytes >= forms["jpeg"].file_bytes, "half of the images is read by the other rank"
