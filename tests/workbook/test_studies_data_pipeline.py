"""Tests of study 12_data_pipeline: its trials, the images in files, needs and losses, and what an epoch reads."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest

from labkit.data import OWN_JPEGS
from labkit.errors import UserError
from tests.archives import CLASS_FOLDERS, write_jpegs, write_validation_set
from tests.workbook.made_records import NOISE, PASSES, blocks, failed, of_records, record_of
from tests.workbook.test_claims_can_be_tested import Planned, each_test, has_case
from workbook.claims.evidence import Side
from workbook.datasets import DRAWN, check_use, described, stored_by_checksum, stored_set
from workbook.errors import Unsupported
from workbook.hardware.profile import load_profile
from workbook.records import Record
from workbook.records.record import ReadEpoch, Reads
from workbook.registry import SCALES, STUDIES
from workbook.results import Results, estimate
from workbook.storage import images, make_set
from workbook.storage.readers import READS
from workbook.studies import data_pipeline as pipeline
from workbook.study import OpenStudy, open_study
from workbook.trials.trial import Trial, grid, thread_counts

STUDY = "12_data_pipeline"
IMAGE_BYTES = 110_000
SET_IMAGES = 1_000
NEED = {"alexnet": 6_000.0, "resnet50": 1_000.0}
ALONE = {"torch_pil": 200.0, "tf_data": 300.0}  # images/s of a worker
NO_WEBDATASET = "the reader webdataset needs webdataset, which is not installed"


class Lab:
    """The part of an open study that the trials need."""

    cpu = type("Cpu", (), {"cores": 16})
    threads_of_each = 0

    def __init__(self, hw: str, scale: str = "quick", nodes: int = 1) -> None:
        self.profile, self.nodes = load_profile(hw), nodes
        self.sweep: dict[str, Any] = dict(self.profile.sweep(STUDY, scale))

    @property
    def device_counts(self) -> list[int]:
        return OpenStudy.device_counts.fget(self)  # type: ignore[attr-defined, no-any-return]

    def thread_counts(self, asked: object) -> list[int]:
        return thread_counts(asked, self.cpu.cores)

    def stored(self, images: int, forms: list[str]) -> dict[str, Any]:
        return {"data": DRAWN, "data_checksum": f"{images:012}"}

    def trials(self, **axes: Any) -> list[Trial]:
        return grid(**{"device": self.profile.device.kind, **axes})


def planned(hw: str, scale: str = "quick", nodes: int = 1) -> list[Trial]:
    lab: Any = Lab(hw, scale, nodes)
    of = pipeline.sets(lab)
    trials = pipeline.alone(lab, of.many) + pipeline.fed(lab, of) + pipeline.epochs(lab, of)
    return trials + pipeline.several(lab, of) + pipeline.over_nodes(lab, of.few)


def images_per_s(trial: Trial) -> float:
    if trial.reader in ("mapped", "resident") and trial.workload == "load":
        return 50_000.0
    delivered = ALONE.get(trial.reader, 100.0) * trial.workers
    if trial.workload == "load":
        return delivered
    needed = NEED[trial.model] * (2 if trial.precision == "bf16" else 1)
    return needed if trial.reader == "resident" else min(needed, delivered)


def record(trial: Trial, number: int) -> Record:
    if trial.reader == "webdataset":
        return failed(STUDY, trial, number, "unsupported", NO_WEBDATASET)
    rate = images_per_s(trial)
    if not trial.epochs:
        made = blocks(STUDY, trial, number, rate * NOISE[number - 1])
        assert made.result is not None
        per_step = IMAGE_BYTES * trial.batch if trial.form == "jpeg" else 200_000 * trial.batch
        return made.model_copy(update={"result": made.result.model_copy(update={"bytes_per_step": per_step})})
    size = SET_IMAGES * IMAGE_BYTES
    read = {"cold": size, "warm": 0}[trial.cache] // (2 if trial.reader_order == "own" and trial.readers > 1 else 1)
    first = an_epoch(rate, read_bytes=read, read_at_s=[1.0, 2.0], read_until_bytes=[read // 4, read])
    second = an_epoch(rate * 2, read_bytes=0, read_at_s=[1.0], read_until_bytes=[0])
    reads = Reads(file_bytes=size, cached_share_before=0.0, skipped=0, peak_memory_bytes=1, epochs=[first, second])
    return record_of(STUDY, trial, number, result=reads)


def an_epoch(rate: float, **counts: Any) -> ReadEpoch:
    seconds = SET_IMAGES / rate
    about = {"steps": 10, "images": SET_IMAGES, "parts_s": [seconds / 2] * 2, "waited_s": seconds / 4, "cpu_s": 4.0}
    return ReadEpoch(**about | counts)


def results(hw: str = "h200") -> Results:
    return Results([of_records(STUDY, [record(trial, n) for trial in planned(hw) for n in PASSES], hw)])


def table(hw: str = "h200") -> pd.DataFrame:
    return pipeline.named(results(hw).frame())


# ---- the trials -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hw", ["cpu", "h200", "h200_x4", "p100_16gb"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_loader_exists_and_every_fed_training_has_one_on_images_in_memory(hw: str, scale: str) -> None:
    trials = planned(hw, scale)
    assert len({trial.key for trial in trials}) == len(trials) > 0
    assert all(trial.form in READS[trial.reader] for trial in trials)

    def network(trial: Trial) -> Trial:
        return replace(trial, reader="resident", form="cache", workers=0)

    fed = {trial for trial in trials if trial.workload == "train" and not trial.epochs}
    assert {network(trial) for trial in fed} < fed


@pytest.mark.parametrize("hw", ["cpu", "h200"])
def test_epochs_are_cold_and_long_enough_to_read_again(hw: str) -> None:
    epochs = [trial for trial in planned(hw) if trial.epochs]
    assert {trial.epochs for trial in epochs} == {2}
    alone = [trial for trial in epochs if trial.workload == "load" and trial.readers == 1]
    assert {(t.reader, t.cache) for t in alone} >= {("torch_pil", "cold"), ("torch_pil", "warm")}
    together = [trial for trial in epochs if trial.workload == "load" and trial.readers > 1]
    assert {(trial.reader_order, trial.readers, trial.cache) for trial in together} == {
        ("own", 4, "cold"),
        ("shared", 4, "cold"),
    }
    assert {t.model for t in epochs if t.workload == "train"} == {"resnet50"}


def test_only_a_job_over_several_nodes_has_trials_over_nodes() -> None:
    assert {trial.nodes for trial in planned("h200_x4")} == {1}
    over = [trial for trial in planned("h200_x4", nodes=2) if trial.nodes == 2]
    assert {(trial.devices, trial.readers) for trial in over} == {(8, 8)}
    assert {trial.cache for trial in over} == {"cold", "warm"}


def test_every_claim_about_several_nodes_has_a_case_in_a_job_over_two() -> None:
    study = Results([cast(Any, Planned(load_profile("h200_x4"), STUDIES[STUDY]))])
    sides = [Side(study, trial) for trial in planned("h200_x4", nodes=2)]
    tests = [(claim, place, test) for claim, place, test in each_test() if STUDY in claim.studies_of(test)]
    assert tests and [(claim.id, place) for claim, place, test in tests if not has_case(test, sides)] == [
        ("dell_p100-ethernet-io", 0)  # names GoogLeNet and Inception-BN; the plan trains Dell's ResNet-50
    ]


# ---- the images -----------------------------------------------------------------------------------------------------


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's folder with six images of two classes, and one that looks like a validation set."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "own" / "train" / name).mkdir(parents=True)
        for index in range(3):
            (tmp_path / "own" / "train" / name / f"{index}.JPEG").write_bytes(images.jpeg(label, index))
    return tmp_path / "own"


def test_a_users_folder_gives_images_evenly_over_its_classes(user: Path) -> None:
    name, made = stored_set(str(user), 2, forms=["cache"])
    assert name == OWN_JPEGS and set(made) == {"jpeg", "cache"}
    assert [sample.path for sample in made["jpeg"].samples] == ["train/cat/0.JPEG", "train/dog/0.JPEG"]
    assert (made["jpeg"].classes, made["cache"].images) == (2, 2)
    assert stored_set(str(user), 100, forms=[])[1]["jpeg"].images == 6


def test_each_study_says_whether_it_can_use_a_folder_and_why(user: Path) -> None:
    write_validation_set(user)
    check_use(str(user), [STUDY, "08_quantization"])
    with pytest.raises(UserError, match=r"^01_training can't use DATA=.* Only 08_quantization, 12_data_pipeline can"):
        check_use(str(user), [STUDY, "01_training"])
    of_images, classes, of_files, *answers = described(str(user))
    assert "validation set" in of_images and "1,000 classes" in classes and "2 classes: 6 images" in of_files
    assert answers[0] == "yes: 08_quantization, 12_data_pipeline."
    assert answers[1].startswith("no: 01_training, 02_batch_size") and "2,000 of ImageNet's validation" in answers[1]
    assert len(answers) == 2


def test_a_part_of_imagenet_is_not_imagenet(user: Path) -> None:
    some = user.parent / "some"
    write_jpegs(some / "train", CLASS_FOLDERS[:3], "{c}_{}.JPEG", each=4)
    write_jpegs(some / "val", CLASS_FOLDERS[:3], "ILSVRC2012_val_{:08}.JPEG")
    name, made = stored_set(str(some), 9, forms=[])
    assert (name, made["jpeg"].classes, made["jpeg"].images) == (OWN_JPEGS, 3, 9)
    with pytest.raises(UserError, match=r"08_quantization can't use .* has 1,000 classes .*, and this folder 3"):
        check_use(str(some), ["08_quantization"])


def test_embedded_images_are_described_with_the_studies(user: Path) -> None:
    assert described("digits")[1].startswith("yes: 01_training, 02_batch_size")


def test_a_folder_without_any_images_is_refused_and_draws_none(user: Path) -> None:
    with pytest.raises(UserError, match=r"DATA=.*cat: .* holds 3 files \.JPEG, such as 0\.JPEG \(a JPEG image\)\."):
        stored_set(str(user / "train" / "cat"), 4, forms=[])


def test_without_tensorflow_the_form_that_it_writes_is_left_out_and_its_trials_say_why(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbook.storage.pack.find_spec", lambda _: None)
    made = stored_set(str(user), 2, forms=["shards", "tfrecord"])[1]
    assert set(made) == {"jpeg", "shards"}
    with pytest.raises(Unsupported, match="TensorFlow writes the form tfrecord, and it is not installed"):
        stored_by_checksum("tfrecord", made["jpeg"].checksum)
    with pytest.raises(UserError, match=r"`pip install tensorflow-cpu`, or ask for other forms\.$"):
        make_set(user.parent / "set", images=2, classes=1)
    assert [path.name for path in (user.parent / "set").rglob("*")] == [".lock"], "nothing is begun"


def test_an_open_study_makes_its_images_only_where_it_measures(user: Path) -> None:
    given = {"scale": "smoke", "mode": "plan", "data": str(user)}
    here = open_study(STUDY, hw="cpu", **given).stored(4, ["jpeg"])
    assert (here["data"], here["classes"]) == (OWN_JPEGS, 1000) and len(here["data_checksum"]) == 12
    assert open_study(STUDY, hw="k80", **given).stored(4, ["jpeg"]) == {}


# ---- the rules ------------------------------------------------------------------------------------------------------


def alone(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.query("workload == 'load' and epochs == 0")


def fed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.query("workload == 'train' and epochs == 0")


def test_a_stall_is_what_a_training_loses_against_images_in_memory() -> None:
    losses = pipeline.losses(fed(table())).set_index("setting")
    waiting = losses.loc[losses["loader"] == "DataLoader, Pillow (JPEG files)", ["value", "low", "high"]]
    alexnet, resnet = waiting.loc["AlexNet, FP32, eager"], waiting.loc["ResNet-50, FP32, eager"]
    assert alexnet["value"] == pytest.approx(1 - 16 * 200 / 6_000)
    assert alexnet["low"] <= alexnet["value"] <= alexnet["high"]
    assert resnet["value"] == resnet["low"] == 0
    of_loader = losses[losses["loader"] == "DataLoader, Pillow (JPEG files)"].reset_index()
    assert pipeline.share_of(of_loader, "AlexNet, FP32, eager") == "46.7 %"
    assert pipeline.share_of(of_loader, "ResNet-50, FP32, eager").startswith("at most ")


def test_a_loader_that_is_not_installed_is_a_row_with_its_reason() -> None:
    loads = alone(table())
    lacking = loads[loads["reader"] == "webdataset"]
    assert set(lacking["reason"]) == {NO_WEBDATASET} and lacking["images_per_s"].isna().all()


def test_the_smallest_and_the_largest_need_are_marked_beside_loaders_that_ran() -> None:
    needed = pd.DataFrame({"setting": ["AlexNet", "VGG-16", "ResNet-50"], "value": [6_000.0, 300.0, 1_000.0]})
    ticks = pipeline.as_ticks(needed, alone(table()))
    assert dict(ticks[["label", "value"]].itertuples(index=False, name=None)) == {"AlexNet": 6_000, "VGG-16": 300}
    assert "torch_pil" in set(ticks["reader"]) and "webdataset" not in set(ticks["reader"])


def test_the_fewest_workers_that_deliver_enough_are_named_else_the_fastest_loader() -> None:
    frame = table()
    loads, jpeg_bytes = alone(frame), IMAGE_BYTES
    assert pipeline.bytes_per_image(loads) == pytest.approx(jpeg_bytes)
    needs = fed(frame).query("reader == 'resident'")
    rates = estimate(loads[loads["form"] != "cache"], "images_per_s", by=["loader", "workers"])
    enough = pipeline.enough(rates, estimate(needs, "images_per_s", by=["setting"]))
    assert (
        pipeline.of_setting(enough, "ResNet-50, FP32, eager")
        == "tf.data (TFRecord) with 4 workers delivers what the step needs"
    )
    said = pipeline.of_setting(enough, "AlexNet, BF16, CUDA graph")
    assert said == "tf.data (TFRecord) with 16 workers delivers 40 % of what the step needs"


def test_an_epoch_is_compared_with_the_set_and_the_roof_is_the_largest_cold_read() -> None:
    found = results()
    frame = pipeline.named(found.frame())
    epochs = pipeline.of_epochs(found.read_epochs(), frame)
    alone = epochs[(epochs["readers"] == 1) & (epochs["reader"] == "torch_pil") & (epochs["workload"] == "load")]
    shares = alone.groupby(["cache", "epoch"])["read_share"].first()
    assert shares.to_dict() == {("cold", 1): 1.0, ("cold", 2): 0.0, ("warm", 1): 0.0, ("warm", 2): 0.0}
    assert pipeline.largest_cold(epochs) == pytest.approx(50_000 * IMAGE_BYTES)


def test_an_epoch_that_could_not_be_cold_is_a_row_with_its_reason() -> None:
    why = "the page cache cannot be made cold: tmpfs keeps its files in memory"
    cold = [trial for trial in planned("cpu") if trial.cache == "cold"]
    found = Results([of_records(STUDY, [failed(STUDY, trial, 1, "unsupported", why) for trial in cold], "cpu")])
    frame = pipeline.named(found.frame())
    epochs = pipeline.of_epochs(found.read_epochs(), frame)
    assert set(epochs["reason"]) == {why} and len(epochs) == len(cold)
    assert pd.isna(pipeline.largest_cold(epochs))
    assert pipeline.course(found.reads(), frame).attrs["reason"] == why


def test_no_step_gets_more_than_it_needs_or_than_the_storage_reads() -> None:
    roof = pipeline.roof(300e6, pd.DataFrame({"value": [100e6, 900e6]}))
    assert roof["value"].max() == 300
    assert (roof["value"] <= roof["needed_mb_per_s"] * 1.001).all() and roof["value"].is_monotonic_increasing


def test_the_course_of_reads_has_a_rate_for_each_reading_of_one_run() -> None:
    found = results()
    course = pipeline.course(found.reads(), pipeline.named(found.frame()).query("cache == 'cold'"))
    cold = course[course["run"] == "DataLoader, Pillow (JPEG files) alone"]
    size = SET_IMAGES * IMAGE_BYTES
    assert cold["time_s"].tolist() == [0, 1, 2, 3]
    assert cold["value"].tolist() == [size / 4, size * 3 / 4, 0, 0]


def test_without_records_every_rule_gives_an_empty_table() -> None:
    nothing = Results([of_records(STUDY, [])])
    frame = pipeline.named(nothing.frame())
    trained, loads = fed(frame), alone(frame)
    assert pipeline.losses(trained).empty
    needs = trained.query("reader == 'resident'").assign(read_bytes_per_s=pipeline.bytes_per_image(loads))
    read = estimate(needs, "read_bytes_per_s", by=["setting"])
    assert pipeline.as_ticks(estimate(needs, "images_per_s", by=["setting"]), loads).empty
    epochs = pipeline.of_epochs(nothing.read_epochs(), frame)
    rate = pipeline.largest_cold(epochs)
    assert pd.isna(rate) and pipeline.roof(rate, read).empty
    assert pipeline.got(trained, needs, float("nan")).empty
    assert pipeline.course(nothing.reads(), frame).empty


def test_the_time_in_which_a_gpu_idles_beyond_that_of_images_in_memory_is_waiting() -> None:
    rows = [
        {"reader": reader, "loader": reader, "step_s": step_s, "busy_step_s": 0.010, "stall_share": math.nan}
        for reader, step_s in (("resident", 0.012), ("torch_pil", 0.020))
    ]
    frame = pd.DataFrame(
        [{**row, "setting": "AlexNet", "device": "cuda", "host": "a", "pass_number": 1} for row in rows]
    )
    found = pipeline.waited(frame)
    assert found["loader"].tolist() == ["torch_pil"] and found["value"].tolist() == pytest.approx([0.4])
    on_cpu = pipeline.waited(frame.assign(device="cpu", stall_share=0.25))
    assert on_cpu["value"].tolist() == [0.25], "the loop itself waits"
