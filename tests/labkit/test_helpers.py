"""The helpers on their own: an epoch of batches, a step's time on a simulated clock, sensors beside a block."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, repeat
from pathlib import Path

import psutil
import pytest

import labkit
from labkit import devices
from labkit.data import image_loader as loading
from labkit.data import open_data
from labkit.data.image_loader import loader
from labkit.errors import UserError
from labkit.telemetry import nvml, sampling
from labkit.telemetry.channel import ReadingError
from labkit.telemetry.sampling import Sampled, sample
from labkit.telemetry.series import Series
from labkit.telemetry.windows import Marks, Recording, summarise
from labkit.timing import step as timing
from labkit.timing.step import StepTiming, time_step
from tests.archives import write_npz
from tests.fake_nvml import pynvml as fake
from tests.labkit.test_timing import SimulatedClock
from tests.processes import alive, command, eventually, frameworks_after

torch = pytest.importorskip("torch")

FAKE_NVML = Path(fake.__file__).parent
FEW = {"train_images": 160, "val_images": 40}


def test_importing_the_helpers_imports_no_framework() -> None:
    assert not frameworks_after("labkit.telemetry.sampling", "labkit.timing.step", "labkit.data.image_loader")


@pytest.mark.parametrize("module", [loading, timing, sampling], ids=lambda module: module.__name__)
def test_the_examples_of_the_docstrings_run(module) -> None:
    done = doctest.testmod(module, extraglobs={"labkit": labkit}, optionflags=doctest.ELLIPSIS)
    assert done.attempted
    assert not done.failed


# ---- loader ---------------------------------------------------------------------------------------------------------


def labels_of(batches: loading.ImageLoader) -> list[int]:
    return [int(label) for _, labels in batches for label in labels]


def test_a_loop_is_one_epoch_of_full_batches_and_the_next_has_another_order() -> None:
    batches = loader(batch=40, device="cpu", **FEW)
    assert len(batches) == 4
    first, second = labels_of(batches), labels_of(batches)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(open_data(**FEW).train.labels.tolist())


def test_training_batches_stay_full_where_they_do_not_divide_the_images() -> None:
    batches = loader(batch=50, device="cpu", **FEW)
    assert [len(labels) for _, labels in batches] == [50] * len(batches) == [50, 50, 50]


def test_a_loop_over_the_validation_split_has_each_image_once_and_repeats() -> None:
    batches = loader(batch=16, device="cpu", split="val", **FEW)
    assert [len(images) for images, _ in batches] == [16, 16, 8]
    assert labels_of(batches) == labels_of(batches)
    assert sorted(labels_of(batches)) == sorted(open_data(**FEW).val.labels.tolist())


def test_next_batch_continues_past_the_end_of_an_epoch() -> None:
    batches = loader(batch=160, device="cpu", **FEW)
    images = [batches.next_batch()[0] for _ in range(3)]
    batches.rewind()
    assert torch.equal(batches.next_batch()[0], images[0])
    assert not torch.equal(images[0], images[1])


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_images_have_the_requested_precision_and_size(precision: str, dtype: torch.dtype) -> None:
    images, labels = loader(batch=8, device="cpu", image_px=64, precision=precision, **FEW).next_batch()
    assert (images.shape, images.dtype, labels.dtype) == ((8, 3, 64, 64), dtype, torch.int64)


def test_augmented_images_differ_and_keep_their_labels() -> None:
    plain, moved = (loader(batch=32, device="cpu", augment=augment, **FEW).next_batch() for augment in (False, True))
    assert torch.equal(plain[1], moved[1])
    assert not torch.equal(plain[0], moved[0])


def test_a_folder_with_imagenet32_is_loaded_like_a_named_data_set(tmp_path: Path) -> None:
    batches = loader(write_npz(tmp_path / "imagenet32"), batch=5, device="cpu", split="val")
    assert len(labels_of(batches)) == batches.images == 15


def few(**options: object) -> object:
    return loader(**{"batch": 8, "device": "cpu", **FEW, **options})


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda: few(name_or_folder="cifar10"), "valid: .*synthetic32"),
        (lambda: few(split="test"), "valid: train, val"),
        (lambda: few(precision="int8"), "valid: .*fp32"),
        (lambda: few(device="gpu"), "valid: .*cuda"),
        (lambda: few(device="cuda:99"), "device='cpu'"),
        (lambda: few(batch=161), "160 images"),
        (lambda: few(batch=0), "at least 1"),
        (lambda: few(batch="8"), "batch is '8'"),
        (lambda: few(image_px=16), "scaled up"),
        (lambda: few(image_px=64.5), "image_px is 64.5"),
        (lambda: few(seed=-1), "at least 0"),
        (lambda: time_step(torch.zeros(1)), "give a function"),
        (lambda: time_step(int, timed_s=0), "timed_s is 0"),
        (lambda: time_step(int, timed_s="2"), "timed_s is '2'"),
        (lambda: time_step(int, block_s=float("nan")), "block_s is nan"),
        (lambda: time_step(int, warmup_s=-1), "warmup_s is -1"),
        (lambda: time_step(int, images_per_step=0), "images_per_step is 0"),
        (lambda: time_step(int, images_per_step=2.5), "images_per_step is 2.5"),
        (lambda: time_step(int, device="tpu"), "valid: cpu"),
        (lambda: time_step(int, clock="cuda"), "clock is 'cuda'"),
        (lambda: labkit.open_data(train_images="64"), "training images is '64'"),
        (lambda: labkit.open_data(32), "data set is 32"),
        (lambda: labkit.build(None), "name is None"),
        (lambda: labkit.count(torch.nn.ReLU, image_px=32), "torch.nn.Module"),
        (lambda: sample(0).__enter__(), "gpus is 0"),
        (lambda: sample(["gpu0"]).__enter__(), r"gpus is \['gpu0'\]"),
    ],
)
def test_a_mistake_is_answered_with_its_value_or_with_what_is_valid(call: Callable[[], object], fact: str) -> None:
    with pytest.raises(UserError, match=fact):
        call()


# ---- time_step ------------------------------------------------------------------------------------------------------


def timed(step_s: Iterator[float], *, device_share: float | None = None, **options: float) -> StepTiming:
    clock = SimulatedClock(step_s, device_share=device_share)
    return time_step(lambda: None, clock=clock, images_per_step=32, **options)


def test_the_summary_describes_the_blocks_that_were_kept() -> None:
    result = timed(0.001 * (1 + 0.02 * (n // 100 % 3)) for n in count())
    per_step = result.blocks["step_s"]
    assert list(result.blocks) == ["block", "start_s", "step_s", "device_step_s"]
    assert len(per_step) == len(result.raw.host_s)
    assert result.median_s == pytest.approx(per_step.median())
    assert result.quartiles_s == pytest.approx(tuple(per_step.quantile([0.25, 0.75])))
    assert result.images_per_s == pytest.approx(32 / result.median_s)
    assert result.blocks["start_s"].is_monotonic_increasing


def test_a_step_of_constant_time_is_steady_and_has_no_warning() -> None:
    result = timed(repeat(0.002))
    assert result.steady
    assert result.warnings == []
    assert "2 ms" in repr(result) and "16,000 images/s" in repr(result)


def test_a_step_that_never_settles_is_timed_with_warnings() -> None:
    restless = timed(0.01 if n // 10 % 2 else 0.03 for n in count())
    assert not restless.steady
    assert ["steady" in warning or "vary" in warning for warning in restless.warnings] == [True, True]
    assert all(warning in repr(restless) and warning in restless._repr_html_() for warning in restless.warnings)


def test_too_few_blocks_for_quartiles_give_a_warning() -> None:
    assert any("few blocks" in warning for warning in timed(repeat(3.0)).warnings)


def test_device_time_comes_from_events_or_is_nan_with_a_reason() -> None:
    with_events, without = timed(repeat(0.002), device_share=0.5), timed(repeat(0.002))
    assert with_events.blocks["device_step_s"].tolist() == pytest.approx([0.001] * len(with_events.blocks))
    assert "1 ms" in repr(with_events)
    assert without.blocks["device_step_s"].isna().all()
    assert "CUDA" in repr(without)


# ---- sample ---------------------------------------------------------------------------------------------------------


def samplers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if alive(child) and "labkit.telemetry.sampler" in command(child)]


def made(readings: dict[tuple[str, str], list[tuple[float, float]]], end_s: float) -> Sampled:
    """Return the samples of a block from 100 s to `end_s` with these readings."""
    series = {name: Series(name[1], *zip(*rows, strict=True)) for name, rows in readings.items()}
    span, recording = (100.0, end_s), Recording(series)
    sampled = Sampled()
    sampled._keep(*span, summarise(recording, Marks({"timed": span}, [span], [(0, 1)], None)), recording)
    return sampled


def test_the_frame_has_the_readings_inside_the_block_and_joules_are_derived() -> None:
    power = [(99 + n / 10, 200.0) for n in range(41)]
    sampled = made({("gpu0", "power_w"): power, ("host", "cpu_utilisation"): [(101.0, 0.5)]}, end_s=102.0)
    frame = sampled.frame()
    assert list(frame) == ["time_s", "device", "metric", "value", "unit"]
    assert frame["time_s"].is_monotonic_increasing
    assert frame["time_s"].between(0, 2).all()
    assert set(frame.query("metric == 'power_w'")["unit"]) == {"W"}
    energy = sampled.summary().query("metric == 'energy_j'")
    assert energy["total"].tolist() == pytest.approx([400])
    assert energy["method"].str.startswith("trapezoid").all()
    assert "energy_j 400" in repr(sampled)


def test_a_block_shorter_than_a_period_may_have_no_readings_and_says_why_it_has_no_energy() -> None:
    between = made({("gpu0", "temperature_c"): [(99.9, 60.0), (100.4, 61.0)]}, end_s=100.1)
    assert between.frame().empty
    assert between.summary()["readings"].tolist() == [0]
    assert between.reasons().query("metric == 'energy_j'")["reason"].str.contains("neither").all()


def test_without_a_gpu_a_block_that_raises_keeps_the_hosts_readings_and_its_sampler_ends(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("FAKE_NVML", '{"chips": []}')
    with pytest.raises(KeyError), sample() as sampled:
        assert len(samplers()) == 1
        with pytest.raises(UserError, match="has not ended"):
            sampled.frame()
        time.sleep(1.2)
        raise KeyError
    assert samplers() == []
    assert "host" in set(sampled.summary()["device"])
    device, metric, reason = sampled.reasons().iloc[0]
    assert (device, metric) == ("gpu", "*") and reason in repr(sampled)
    with pytest.raises(UserError, match="GPU 0 was asked for; none is visible here"), sample(gpus=[0]):
        pass


@pytest.fixture
def _two_gpus(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # for this process; PYTHONPATH is for the sampler
    monkeypatch.setenv("PYTHONPATH", str(FAKE_NVML), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_NVML", json.dumps({"chips": ["kepler", "hopper"]}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("_two_gpus")
def test_every_gpu_is_sampled_and_metrics_that_a_generation_lacks_have_a_reason() -> None:
    with sample() as sampled:
        time.sleep(1.2)
    summary = sampled.summary().set_index(["device", "metric"])
    for device in fake.Machine(json.dumps({"chips": ["kepler", "hopper"]})).devices:
        name = f"gpu{device.index}"
        assert summary.loc[(name, "power_w"), "mean"] == pytest.approx(device.chip.busy_w)
        assert summary.loc[(name, "energy_j"), "total"] > 0
    assert "sm_activity" in set(sampled.reasons().query("device == 'gpu0'")["metric"])
    assert "gpu1" not in set(sampled.reasons()["device"])


@pytest.mark.usefixtures("_two_gpus")
def test_a_gpu_that_works_before_the_block_and_throttles_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    thermal = {"index": 1, "from_s": -9, "to_s": 9, "bits": 0x40, "sm_clock_mhz": 1200}
    busy = {"chips": ["pascal", "volta"], "used_bytes": {"1": 5 * 2**30}, "throttle": [thermal]}
    monkeypatch.setenv("FAKE_NVML", json.dumps(busy))
    with sample(gpus=[1]) as sampled:
        time.sleep(0.3)
    for fact in ("gpu1 for 100%", "5.0 GiB", "thermal (hardware) for 100%", "1,200 MHz"):
        assert fact in repr(sampled)
    monkeypatch.setenv("FAKE_NVML", json.dumps(busy | {"load": {"period_s": 1.0, "share": 0.0}}))
    with sample(gpus=[1]) as idle:
        pass
    assert idle.used_before() == [], "memory may be the caller's own"
    assert len(idle.used_before(4 * 2**30)) == 1


def test_a_device_that_throttles_for_a_part_of_the_block_is_told_its_share() -> None:
    times = [0.1 * n for n in range(41)]
    throttle = Series("throttle", times, [0x80 if n < 10 else 0 for n in range(41)])
    recording, block = Recording({("gpu0", "throttle"): throttle}), (0.0, 4.0)
    sampled = Sampled()
    sampled._keep(*block, summarise(recording, Marks({"timed": block}, [block], [(0, 1)], None)), recording)
    assert "brake for 24%" in repr(sampled)


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize(("chosen", "visible"), [("1", [1]), ("0,1", [0, 1]), ("", [])])
def test_gpus_that_cuda_hides_are_not_sampled(monkeypatch, chosen: str, visible: list[int]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    gpus, why_none = devices.visible_gpus()
    assert gpus == visible
    assert bool(why_none) == (not visible)


def test_a_sampler_that_dies_loses_telemetry_and_gives_the_reason() -> None:
    with sample(gpus=[]) as sampled:
        for child in samplers():
            child.kill()
        assert eventually(lambda: not samplers())
    assert "SIGKILL" in sampled.reasons().set_index("device").loc["sampler", "reason"]
    assert "SIGKILL" in repr(sampled)
    assert sampled.summary().empty


def test_the_rooms_of_labkit_need_no_import_of_their_own() -> None:
    script = "import labkit; print(len(labkit.models.MODELS), labkit.errors.UserError.exit_code)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["12", "2"]


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (35, "signal 35")])
def test_a_real_time_signal_has_a_number_in_place_of_a_name(number: int, name: str) -> None:
    assert labkit.errors.signal_name(number) == name


def test_no_power_is_no_reading() -> None:
    for watts, plausible in ((0.0, False), (4_294_967.295, False), (35.0, True), (1_000.0, True)):
        if plausible:
            assert nvml._plausible(watts) == watts
        else:
            with pytest.raises(ReadingError, match="which no running card draws"):
                nvml._plausible(watts)
