"""Tests of telemetry through the real sampling process, with fake devices whose true readings are known.

A sensor that a generation lacks is missing and never 0. A reading that the driver does not answer is a gap. A failing
sampling process costs only telemetry. `tests/fake_nvml` makes the devices.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml as real
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.devices import Gpu
from labkit.files import python_path
from labkit.sensors import EXCHANGED_PERIOD_S, GPM_SENSORS, GPU_SENSORS, rate_name
from labkit.telemetry import machine as machine_module
from labkit.telemetry import nvml
from labkit.telemetry import process as process_module
from labkit.telemetry import summary as observed
from labkit.telemetry.channel import Channel, MissingError, ReadingError, Report
from labkit.telemetry.process import MAX_RESTARTS, TelemetryProcess
from labkit.telemetry.series import Series
from labkit.telemetry.windows import Marks, Recording, flagged_blocks, summarise
from tests.fake_nvml import pynvml as fake
from tests.faulty.campaign import HOST, STUDY, records, run, sound, tiny_profile
from tests.processes import eventually
from workbook.hardware.profile import Device
from workbook.paths import ROOT
from workbook.records import Blocks, Record, short_hash
from workbook.records.series_store import SeriesStore
from workbook.records.store import Store
from workbook.runner import watch as watch_module
from workbook.runner.progress import Progress
from workbook.session import Session
from workbook.trials.trial import Trial

FAKE_NVML = ROOT / "tests" / "fake_nvml"
BLOCK_S = 0.1
SECOND_S = 1.1  # a little more than the longest period of 1 s, so that each sensor is read again
LATE_S = 0.2  # a reading is stamped after its call, and a busy machine can stop the process between the two
GPM = {sensor.metric for sensor in GPM_SENSORS}
NVLINK = {"nvlink_received_bytes", "nvlink_sent_bytes"}


def told(error: int) -> str:
    """Return the reason for which a sensor is missing after an error of the driver: the driver's own words."""
    return f"the driver says: {fake.NVMLError(error)}"


NOT_SUPPORTED = told(fake.NVML_ERROR_NOT_SUPPORTED)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # an orphan that is not reaped yet
    except psutil.NoSuchProcess:
        return True


# ---- the fake module against the real one ---------------------------------------------------------------------------


def names_that_labkit_asks_of_nvml() -> set[str]:
    """Return the attributes and strings of labkit's two NVML modules that look like names of NVML."""
    names: set[str] = set()
    for path in (ROOT / "labkit" / "devices.py", ROOT / "labkit" / "telemetry" / "nvml.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
            if isinstance(name, str) and re.fullmatch(r"(nvml[A-Z]|NVML_|NVMLError|c_nvml)\w*", name):
                names.add(name)
    return names - {"nvmlReturn"}  # a field of a structure


def test_the_fake_has_every_nvml_name_that_labkit_uses() -> None:
    asked = names_that_labkit_asks_of_nvml()
    assert {"nvmlInit", "nvmlGpmSampleGet", "NVML_FI_DEV_POWER_INSTANT", "NVMLError", "c_nvmlGpmMetricsGet_t"} <= asked
    assert {name for name in asked if not hasattr(real, name)} == set()
    assert {name for name in asked if not hasattr(fake, name)} == set()
    assert str(fake.NVMLError(fake.NVML_ERROR_GPU_IS_LOST)) == str(real.NVMLError(real.NVML_ERROR_GPU_IS_LOST))
    assert fake.NVMLError is not real.NVMLError


FUNCTIONS = sorted(name for name in vars(fake) if re.match(r"nvml[A-Z]", name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fake_function_has_the_signature_of_the_real_one(name: str) -> None:
    ours, theirs = (
        [
            (parameter.name, parameter.kind, parameter.default)
            for parameter in inspect.signature(getattr(module, name)).parameters.values()
        ]
        for module in (fake, real)
    )
    assert ours == theirs


def test_the_fake_like_the_real_module_fails_before_nvml_init(monkeypatch) -> None:
    monkeypatch.setenv("FAKE_NVML", '{"chips": ["hopper"]}')
    for module in (fake, real):
        with pytest.raises(module.NVMLError) as caught:
            module.nvmlDeviceGetCount()
        assert caught.value.value == module.NVML_ERROR_UNINITIALIZED


# ---- a trial with fake devices --------------------------------------------------------------------------------------


@dataclass
class Sampled:
    """A trial with its fake devices, marks and telemetry."""

    devices: list[fake.Device]
    marks: Marks
    telemetry: observed.Telemetry
    recording: Recording

    def metrics(self, source: str, window: str = "timed") -> dict[str, observed.Statistic]:
        return self.telemetry.windows[window].sources[source]

    def of(self, why: str) -> dict[str, list[int]]:
        return {flagged.source: flagged.blocks for flagged in self.telemetry.flagged if flagged.why == why}


def marks_of(start_s: float, blocks: int, *, energy: list[tuple[int, int]], idle_s: float = 0.3) -> Marks:
    """Return the marks of a trial with `blocks` blocks from `start_s` on, with idle time before and after."""
    spans = [(start_s + n * BLOCK_S, start_s + (n + 1) * BLOCK_S) for n in range(blocks)]
    end_s = spans[-1][1]
    windows = {"idle_before": (start_s - idle_s, start_s), "timed": (start_s, end_s), "after": (end_s, end_s + 0.2)}
    return Marks(windows, spans, energy, images_per_block=10)


def sampled(
    folder: Path, blocks: int, energy: list[tuple[int, int]], *, after_s: float = 0, **settings: Any
) -> Sampled:
    """Sample a trial that starts `after_s` after the epoch of the fake machine."""
    for lead_s in (1.5, 4.0, 10.0):  # a slow machine needs longer to start a process
        start_s = time.monotonic() + lead_s
        told = json.dumps({**settings, "epoch_s": start_s - after_s})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(FAKE_NVML), prepend=os.pathsep)
            patch.setenv("FAKE_NVML", told)
            with TelemetryProcess(range(len(settings["chips"])), log=folder / "telemetry.log") as process:
                if not process.ready() or time.monotonic() > start_s - 0.4:
                    continue
                marks = marks_of(start_s, blocks, energy=energy)
                time.sleep(max(marks.windows["after"][1] + SECOND_S - time.monotonic(), 0))
                telemetry, recording = process.cut(marks)
        return Sampled(fake.Machine(told).devices, marks, telemetry, recording)
    pytest.fail(f"the sampler did not start: {(folder / 'telemetry.log').read_text()}")


def kind_of(method: str) -> str:
    """Return the kind of an energy method: counter, trapezoid or none. `test_series` tests the words after it."""
    return method.partition(" ")[0].rstrip(":,")


GENERATIONS = {"gpu0": "kepler", "gpu1": "pascal", "gpu2": "volta", "gpu3": "hopper"}


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """Sample four generations in a machine, each busy half of the time. Windows start and end under steady load."""
    load = {"period_s": 1.5, "share": 0.5}
    folder, chips = tmp_path_factory.mktemp("generations"), list(GENERATIONS.values())
    return sampled(folder, 60, [(0, 30), (30, 60)], after_s=0.35, chips=chips, load=load)


@pytest.mark.parametrize(
    ("source", "method"), zip(GENERATIONS, ["trapezoid", "trapezoid", "counter", "counter"], strict=True)
)
def test_the_energy_of_each_generation_is_right_by_its_method(generations: Sampled, source: str, method: str) -> None:
    telemetry, marks = generations.telemetry, generations.marks
    assert telemetry.status == "ok"
    assert kind_of(telemetry.energy_method[source]) == method
    device = generations.devices[int(source[-1])]
    assert len(telemetry.energy) == 2
    for window, (first, after) in zip(telemetry.energy, marks.energy_blocks, strict=True):
        truth_j = device.energy_j(marks.blocks[first][0], marks.blocks[after - 1][1])
        assert window.energy_j[source] == pytest.approx(truth_j, rel=0.05)
        assert window.images == 10 * (after - first)
        assert window.length_s == pytest.approx((after - first) * BLOCK_S)
        assert window.start_s == pytest.approx(first * BLOCK_S)


def periods(chip: str) -> dict[str, float]:
    """Return the planned reading period of each metric of a chip."""
    script = (
        "import json, pynvml; from labkit.telemetry import nvml; pynvml.nvmlInit()\n"
        "print(json.dumps({name: c.period_s for c in nvml.channels(nvml.Device(pynvml, 0)) for name in c.metrics}))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{FAKE_NVML}:{python_path()}",
        "FAKE_NVML": json.dumps({"chips": [chip]}),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_no_sensor_is_read_more_often_than_it_renews() -> None:
    renewed = {sensor.metric: sensor.period_s for sensor in (*GPU_SENSORS, *GPM_SENSORS)}
    assert periods("hopper") == periods("volta") == renewed
    assert periods("kepler") == renewed | {"power_w": 0.02}


def test_gpm_exists_from_hopper_on_and_is_missing_with_a_reason_before(generations: Sampled) -> None:
    missing = generations.telemetry.missing
    for source, chip in GENERATIONS.items():
        metrics = generations.metrics(source)
        if chip == "hopper":
            assert set(metrics) >= GPM
            assert source not in missing
        else:
            assert not GPM & set(metrics)
            assert {name for name, reason in missing[source].items() if "Hopper" in reason} == GPM


def test_counted_bytes_give_a_rate_beside_that_of_gpm_and_are_missing_without_nvlink(
    generations: Sampled,
) -> None:
    start_s, end_s = generations.marks.windows["timed"]
    for source, chip in GENERATIONS.items():
        metrics, missing = generations.metrics(source), generations.telemetry.missing.get(source, {})
        if chip not in ("volta", "hopper"):
            assert {missing[name] for name in NVLINK} == {NOT_SUPPORTED}
            assert not {rate_name(name) for name in NVLINK} & set(metrics)
            continue
        busy_s = generations.devices[int(source[-1])].busy_s(end_s) - generations.devices[int(source[-1])].busy_s(
            start_s
        )
        for name, while_busy in (("nvlink_sent_bytes", 400), ("nvlink_received_bytes", 300)):
            counted = metrics[rate_name(name)]
            assert counted.mean * (end_s - start_s) == pytest.approx(while_busy * 2**20 * busy_s, rel=0.05)
            assert counted.n >= 20
            gpms = metrics.get(f"{name}_per_s")
            assert (gpms is not None) == (chip == "hopper"), "GPM's rate is kept beside the counters'"
    assert gpms is not None and gpms.high == pytest.approx(300 * 2**20)


def test_a_lacking_sensor_is_missing_with_the_drivers_reason_and_never_0(generations: Sampled) -> None:
    missing = generations.telemetry.missing
    for source, chip in GENERATIONS.items():
        lacks_counter = chip in ("kepler", "pascal")
        assert (missing.get(source, {}).get("energy_j") == NOT_SUPPORTED) == lacks_counter
        every = {sensor.metric for sensor in GPU_SENSORS}
        read = {metric for of, metric in generations.recording.series if of == source}
        assert every - set(missing.get(source, {})) <= read
        assert not read & set(missing.get(source, {}))
    for window in generations.telemetry.windows.values():
        for source, metrics in window.sources.items():
            assert not set(metrics) & set(missing.get(source, {}))


def test_readings_are_in_si_units_and_shares(generations: Sampled) -> None:
    for source, device in zip(GENERATIONS, generations.devices, strict=True):
        metrics, chip = generations.metrics(source), device.chip
        busy = device.load(*generations.marks.windows["timed"])
        assert metrics["utilisation"].mean == pytest.approx(busy, abs=0.12)
        assert metrics["power_w"].mean == pytest.approx(chip.idle_w + busy * (chip.busy_w - chip.idle_w), rel=0.12)
        assert (metrics["power_w"].low, metrics["power_w"].high) == (chip.idle_w, chip.busy_w)
        assert metrics["sm_clock_hz"].mean == chip.sm_clock_mhz * 1e6
        assert metrics["memory_clock_hz"].mean == chip.memory_clock_mhz * 1e6
        assert metrics["memory_bytes"].mean == pytest.approx(2**31)
        assert metrics["temperature_c"].mean == 61
    hopper = generations.metrics("gpu3")
    assert 0 < hopper["pcie_sent_bytes_per_s"].high <= 100 * 2**20
    assert hopper["sm_activity"].mean == pytest.approx(0.9 * busy, abs=0.12)
    assert hopper["fp16_activity"].high == 0, "a 0 that the device reports is kept"
    host = generations.metrics("host")
    assert 0 <= host["cpu_utilisation"].low <= host["cpu_utilisation"].high <= 1
    assert host["host_memory_bytes"].mean > 2**20


def test_windows_have_their_lengths_and_count_from_the_first_block(generations: Sampled) -> None:
    windows = generations.telemetry.windows
    places = {name: (window.start_s, window.length_s) for name, window in windows.items()}
    assert places["idle_before"] == pytest.approx((-0.3, 0.3))
    assert places["timed"] == pytest.approx((0, 6.0))
    assert places["after"] == pytest.approx((6.0, 0.2))
    assert set(windows["timed"].sources["gpu3"]) > set(windows["idle_before"].sources["gpu3"]) > {"power_w"}
    assert all(window.gap_s == {} for window in windows.values())
    assert generations.telemetry.gaps == []
    assert generations.telemetry.flagged == []


def test_polling_once_a_second_is_kept_beside_the_mean(generations: Sampled) -> None:
    for source in GENERATIONS:
        polled = generations.telemetry.polled[source]
        assert {name: statistic.n for name, statistic in polled.items()} == dict.fromkeys(
            ("power_smi_w", "utilisation", "temperature_c", "memory_bytes"), 6
        )
    for source, device in zip(GENERATIONS, generations.devices, strict=True):
        seen = generations.telemetry.polled[source]["power_smi_w"]
        whole_swing_w = device.chip.busy_w - device.chip.idle_w
        if device.chip.smi_averages_s:
            assert seen.high - seen.low < 0.6 * whole_swing_w, "nvidia-smi shows a mean over 1 s on this device"
        else:
            assert seen.high - seen.low == whole_swing_w


# ---- failures of the driver -----------------------------------------------------------------------------------------

TROUBLES: list[dict[str, Any]] = [
    {"index": 0, "function": "nvmlDeviceGetFieldValues", "from_s": 1, "to_s": 2.2, "error": "NVML_ERROR_TIMEOUT"},
    {"index": 1, "from_s": 1, "to_s": 1.8, "error": "NVML_ERROR_GPU_IS_LOST"},
    {"index": 2, "from_s": 1, "to_s": 1.8, "error": "NVML_ERROR_GPU_IS_LOST"},
    {"index": 5, "function": "nvmlDeviceGetTemperature", "error": "NVML_ERROR_NO_PERMISSION"},
    {"index": 5, "function": "nvmlDeviceGetClockInfo", "from_s": 1, "error": "NVML_ERROR_NOT_SUPPORTED"},
]
THROTTLES: list[dict[str, Any]] = [
    {"index": 2, "from_s": 2.55, "to_s": 3.15, "bits": 0x40},
    {"index": 4, "from_s": 1.05, "to_s": 2.05, "bits": 0x04 | 0x20 | 0x01, "sm_clock_mhz": 1500},
    {"index": 5, "from_s": 0.45, "to_s": 0.75, "bits": 0x03, "sm_clock_mhz": 1900},
]


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """Sample devices that are always busy, each with another failure."""
    return sampled(
        tmp_path_factory.mktemp("troubled"),
        34,
        [(0, 34)],
        chips=["hopper", "hopper", "kepler", "volta", "hopper", "hopper"],
        faults=TROUBLES,
        throttle=THROTTLES,
        counter_restarts_at_s={"3": 1.5},
        gpm_lacking=[fake.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, fake.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC],
    )


def gaps(sampled_trial: Sampled, source: str) -> dict[str, tuple[float, float, str]]:
    """Return the start, end and reason of a source's only gap in each metric."""
    by_metric: dict[str, tuple[float, float, str]] = {}
    for gap in sampled_trial.telemetry.gaps:
        if gap.source == source:
            for metric in gap.metrics:
                assert metric not in by_metric, "a failure makes a single gap per metric"
                by_metric[metric] = (gap.start_s, gap.start_s + gap.length_s, gap.reason)
    return by_metric


def test_a_reading_that_fails_for_a_while_is_a_gap_and_not_0(troubled: Sampled) -> None:
    assert troubled.telemetry.status == "ok"
    failed = gaps(troubled, "gpu0")
    assert set(failed) == {"power_w"} | NVLINK, "sensors read by other functions went on"
    start, end, reason = failed["power_w"]
    assert 0.5 < start <= 1 + LATE_S < 2.2 <= end < 2.9
    assert reason == "Timeout"
    power = troubled.metrics("gpu0")["power_w"]
    assert power.low == power.mean == power.high == 500
    longest_s = max(there - here for here, there, _ in failed.values())
    assert troubled.telemetry.windows["timed"].gap_s["gpu0"] == pytest.approx(longest_s)
    readings = troubled.recording.series["gpu0", "power_w"]
    assert not [at for at in readings.times_s - troubled.marks.blocks[0][0] if start < at < end]
    assert readings.values.min() == 500


@pytest.mark.parametrize("source", ["gpu1", "gpu2"])
def test_a_gpu_that_is_lost_and_returns_has_a_gap_in_every_metric(troubled: Sampled, source: str) -> None:
    failed = gaps(troubled, source)
    assert {reason for _, _, reason in failed.values()} == {str(fake.NVMLError(fake.NVML_ERROR_GPU_IS_LOST))}
    read = {metric for of, metric in troubled.recording.series if of == source}
    assert {"power_w", "utilisation", "sm_clock_hz", "throttle"} <= set(failed) <= read | {"memory_clock_hz"}
    start, end, _ = failed["power_w"]
    assert 0.5 < start <= 1 + LATE_S < 1.8 <= end < 3.3, "the GPU is opened again after at most about 1 s"
    assert troubled.recording.series[source, "power_w"].times_s[-1] > troubled.marks.blocks[0][0] + end
    chip = troubled.devices[int(source[-1])].chip
    power = troubled.metrics(source)["power_w"]
    assert (power.low, power.mean, power.high) == pytest.approx((chip.busy_w,) * 3)


@pytest.mark.parametrize(
    ("source", "kind", "energy_j"),
    [
        pytest.param("gpu1", "counter", 3.4 * 500, id="it counted on during the loss"),
        pytest.param("gpu2", "none", None, id="the loss is longer than a tenth of the window"),
        pytest.param("gpu3", "trapezoid", 3.4 * 250, id="its counter went back"),
    ],
)
def test_the_energy_of_a_troubled_device_has_the_method_that_is_left(
    troubled: Sampled, source: str, kind: str, energy_j: float | None
) -> None:
    (window,) = troubled.telemetry.energy
    assert kind_of(troubled.telemetry.energy_method[source]) == kind
    assert window.energy_j[source] == (energy_j and pytest.approx(energy_j, rel=0.03))


def test_a_sensor_that_stops_being_supported_has_a_gap_and_is_not_missing(troubled: Sampled) -> None:
    missing = troubled.telemetry.missing["gpu5"]
    assert missing["temperature_c"] == told(fake.NVML_ERROR_NO_PERMISSION), "never readable"
    assert "temperature_c" not in troubled.metrics("gpu5")
    assert not {"sm_clock_hz", "memory_clock_hz"} & set(missing)
    failed = gaps(troubled, "gpu5")
    assert set(failed) == {"sm_clock_hz", "memory_clock_hz"}
    start, end, reason = failed["sm_clock_hz"]
    assert start <= 1 + LATE_S < 3.2 < end, "the gap lasts to the end"
    assert reason == NOT_SUPPORTED


def test_only_the_gpm_metrics_that_a_board_lacks_are_missing(troubled: Sampled) -> None:
    nvlink = {"nvlink_received_bytes_per_s", "nvlink_sent_bytes_per_s"}
    for source in ("gpu0", "gpu4"):
        missing = troubled.telemetry.missing[source]
        assert set(missing) == nvlink
        assert set(missing.values()) == {NOT_SUPPORTED}
        metrics = set(troubled.metrics(source))
        assert GPM - nvlink <= metrics
        assert not nvlink & metrics


def test_blocks_that_were_throttled_or_below_clock_are_flagged(troubled: Sampled) -> None:
    for why in ("throttled: power cap", "throttled: thermal (software)", "below clock"):
        (blocks,) = [blocks for source, blocks in troubled.of(why).items() if source == "gpu4"]
        assert set(range(14, 18)) <= set(blocks) <= set(range(7, 25)), "blocks from 1.05 s to 2.05 s, or next to them"
    assert {flag.source for flag in troubled.telemetry.flagged} == {"gpu2", "gpu4"}, (
        "idling, a user-defined clock and a slightly lower clock are not throttling"
    )


def test_throttling_is_read_from_an_old_driver_by_its_old_function(troubled: Sampled) -> None:
    (blocks,) = troubled.of("throttled: thermal (hardware)").values()
    assert set(range(28, 30)) <= set(blocks) <= set(range(22, 34))
    assert "gpu2" not in troubled.of("below clock")


# ---- windows cut from a recording, without a process ----------------------------------------------------------------


def recording_of(**by_metric: list[tuple[float, float]]) -> Recording:
    """Return a recording of gpu0 with these readings by metric."""
    series = {("gpu0", name): Series(name, *zip(*rows, strict=True)) for name, rows in by_metric.items()}
    return Recording(series)


def test_a_block_is_throttled_by_reasons_at_its_start_or_within_it() -> None:
    marks = marks_of(0.0, 10, energy=[])
    reasons = [(-0.05, 0), (0.25, 0x40), (0.55, 0x08), (0.65, 0x01)]
    by_reason = {flag.why: flag.blocks for flag in flagged_blocks(recording_of(throttle=reasons), marks)}
    assert by_reason == {"throttled: thermal (hardware)": [2, 3, 4, 5], "throttled: hardware slowdown": [5, 6]}


def test_a_block_is_below_clock_relative_to_the_highest_clock_under_load() -> None:
    marks = marks_of(0.0, 10, energy=[])
    clocks = [(-0.25, 2000.0), *((n / 10 + 0.05, 940.0 if n == 6 else 1000.0) for n in range(10))]
    (flag,) = flagged_blocks(recording_of(sm_clock_hz=clocks), marks)
    assert flag.why == "below clock"
    assert 6 in flag.blocks
    assert set(flag.blocks) <= {5, 6, 7}
    assert flagged_blocks(recording_of(sm_clock_hz=[(at, max(clock, 960)) for at, clock in clocks[1:]]), marks) == []


def test_the_named_method_is_the_weakest_of_all_windows() -> None:
    marks = marks_of(0.0, 90, energy=[(0, 30), (30, 60), (60, 90)])
    level = [(n / 10, 100.0) for n in range(-5, 95)]
    counted = [(float(n), 100.0 * n) for n in range(-1, 11)]
    hole = [(at, value) for at, value in level if not 0.5 < at < 2]
    for power, energy_j, method, unknown in (
        (level, counted, "counter", []),
        (level, counted[:8], "trapezoid", []),
        (hole, [(0.0, 5.0)], "none", [0]),
    ):
        telemetry = summarise(recording_of(power_w=power, energy_j=energy_j), marks)
        assert {source: kind_of(words) for source, words in telemetry.energy_method.items()} == {"gpu0": method}
        assert [n for n, window in enumerate(telemetry.energy) if window.energy_j["gpu0"] is None] == unknown


def test_a_counter_becomes_a_rate_unless_it_went_back() -> None:
    recording = Recording(
        {
            ("host", "network_sent_bytes"): Series("network_sent_bytes", [-1, 0, 1, 2], [0, 100, 300, 500]),
            ("host", "network_received_bytes"): Series("network_received_bytes", [-1, 0, 1, 2], [0, 100, 50, 500]),
        }
    )
    host = summarise(recording, marks_of(0.0, 10, energy=[])).windows["timed"].sources["host"]
    assert {name: rate.mean for name, rate in host.items()} == {"network_sent_bytes_per_s": pytest.approx(200)}


@given(
    first_s=st.floats(-EXCHANGED_PERIOD_S, 0),
    late=st.lists(st.floats(0, 0.5), min_size=80, max_size=80),
    blocks=st.integers(8, 60),
)
def test_exchanged_bytes_are_known_to_5_percent_at_any_phase_of_the_readings(
    first_s: float, late: list[float], blocks: int
) -> None:
    """The load is steady from before the window to its end, then 0. Readings are at most half a period late."""
    marks = marks_of(0.0, blocks, energy=[])
    end_s = blocks * BLOCK_S
    times = [first_s + (n - 1 + by) * EXCHANGED_PERIOD_S for n, by in enumerate(late)]
    counted = [1e9 * (1 + min(at, end_s)) for at in times]
    (source,) = (
        summarise(Recording({("gpu0", "nvlink_sent_bytes"): Series("nvlink_sent_bytes", times, counted)}), marks)
        .windows["timed"]
        .sources.values()
    )
    rate = source[rate_name("nvlink_sent_bytes")]
    assert rate.mean * end_s == pytest.approx(1e9 * end_s, rel=0.05)


RESULT = Blocks(
    steps_per_block=4,
    images_per_step=8,
    host_s=[0.5, 0.6],
    began_s=100.0,
    at_s=[0.0, 0.7],
    warmup_s=[1.0],
    warmup_steps=[4],
    energy_blocks=[(0, 2)],
    steady=True,
    stopped_by="time",
)


def test_marks_of_a_result_are_on_the_monotonic_clock() -> None:
    result = RESULT.model_copy(update={"warmup_at_s": -3.0, "warmup_end_s": -0.1})
    marks = Marks.of(result, {"idle_before": (95.0, 96.0)})
    end = pytest.approx(101.3)
    assert marks.windows == {"idle_before": (95.0, 96.0), "warmup": (97.0, 99.9), "timed": (100.0, end)}
    assert marks.blocks == [(100.0, 100.5), (pytest.approx(100.7), end)]
    assert (marks.energy_blocks, marks.images_per_block) == ([(0, 2)], 32)
    assert Marks.of(result.model_copy(update={"images_per_step": None}), {}).images_per_block is None


# ---- a channel ------------------------------------------------------------------------------------------------------


class Script:
    """A sensor that returns or raises the given results in turn. Each call takes 1 s."""

    def __init__(self, *results: Any) -> None:
        self.results, self.now_s = list(results), 0.0

    def read(self) -> Any:
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def now(self) -> float:
        return self.now_s

    def played(self, *metrics: str) -> tuple[Report, Channel]:
        channel, report = Channel("gpu0", metrics or ("power_w",), 1.0, self.read), Report()
        while self.results and not channel.gone:
            channel.sample(self.now, report)
            self.now_s += 1.0
        return report, channel


FAILS, LACKS = ReadingError("silent"), MissingError("lacking")


def test_a_channel_tries_a_failed_reading_once_more() -> None:
    report, channel = Script(
        (1.0,), FAILS, (2.0,), ValueError("what a library raises is a failure too"), (3.0,)
    ).played()
    assert [(at, value) for _, _, at, value in report.readings] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert (report.gaps, report.missing, channel.open_gap(9)) == ([], [], None)


def test_two_failures_make_a_gap_from_the_last_reading_to_the_next() -> None:
    script = Script((1.0,), FAILS, FAILS, FAILS, LACKS, (2.0,), FAILS, FAILS)
    report, channel = script.played()
    assert [(at, value) for _, _, at, value in report.readings] == [(0, 1.0), (3, 2.0)]
    assert report.gaps == [("gpu0", ["power_w"], 0.0, 3.0, "silent")]
    assert channel.open_gap(9.0) == ("gpu0", ["power_w"], 3.0, 9.0, "silent")


def test_a_sensor_that_was_never_there_is_reported_once_and_not_read_again() -> None:
    report, channel = Script(LACKS, (1.0, 2.0)).played("utilisation", "memory_utilisation")
    assert report.missing == [("gpu0", "utilisation", "lacking"), ("gpu0", "memory_utilisation", "lacking")]
    assert channel.gone
    assert report.readings == report.gaps == []


def test_a_call_without_a_value_is_not_a_reading_and_ends_no_gap() -> None:
    report, channel = Script((None,), LACKS).played()
    assert channel.gone, "the sensor had no reading before it was missing"
    report, _ = Script((1.0,), FAILS, (None,), (None,), (2.0,)).played()
    assert report.gaps == [("gpu0", ["power_w"], 0.0, 3.0, "silent")]


def test_a_single_missing_metric_is_reported_once_and_the_others_are_read() -> None:
    report, _ = Script((1.0, LACKS), (2.0, LACKS)).played("sm_activity", "occupancy")
    assert report.missing == [("gpu0", "occupancy", "lacking")]
    assert [(metric, value) for _, metric, _, value in report.readings] == [("sm_activity", 1.0), ("sm_activity", 2.0)]


@pytest.mark.parametrize("period_s", [0.02, 0.25, 2.0])
def test_sensors_are_read_at_multiples_of_their_periods_from_any_start(period_s: float) -> None:
    for began_s in (0.013, 987_654.321, 3e7 + 0.777):
        script = Script(*[(1.0,)] * 50)
        channel = Channel("gpu0", ["power_w"], period_s, script.read)
        script.now_s = began_s
        for _ in range(40):
            channel.sample(script.now, Report())
            assert channel.due_s / period_s == pytest.approx(round(channel.due_s / period_s), abs=1e-6)
            assert 0.499 * period_s <= channel.due_s - script.now_s <= 1.5 * period_s
            script.now_s = channel.due_s + 2e-5  # the process wakes a little late
        assert channel.due_s - script.now_s == pytest.approx(-2e-5, abs=1e-6)
        script.now_s += 0.3 * period_s
        channel.sample(script.now, Report())
        assert channel.due_s - script.now_s == pytest.approx(0.7 * period_s, abs=1e-4), "back at a multiple"
        script.now_s += 7.2 * period_s
        channel.sample(script.now, Report())
        assert 0.5 * period_s <= channel.due_s - script.now_s <= 1.5 * period_s, "missed readings are not made up for"


def test_a_sensor_without_a_first_value_is_read_again_soon() -> None:
    script = Script((None,), (1.0,))
    channel = Channel("host", ["cpu_utilisation"], 2.0, script.read)
    script.now_s = 1001.7
    channel.sample(script.now, Report())
    assert channel.due_s == 1002.0
    script.now_s = 1002.00001
    channel.sample(script.now, Report())
    assert channel.due_s == 1004.0


def test_failing_gpm_metrics_make_a_gap_until_they_return(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = {"function": "nvmlGpmMetricsGet", "error": "NVML_ERROR_TIMEOUT"}
    sound, faulty, once = (
        json.dumps({"chips": ["hopper"], "faults": faults}) for faults in ([], [fault], [{**fault, "times": 1}])
    )
    monkeypatch.setenv("FAKE_NVML", sound)
    fake.nvmlInit()
    (channel,) = [candidate for candidate in nvml.channels(nvml.Device(fake, 0)) if "sm_activity" in candidate.metrics]
    report = Report()
    for second, settings in enumerate([sound, sound, faulty, faulty, sound, sound, once, sound]):
        monkeypatch.setenv("FAKE_NVML", settings)
        channel.sample(lambda at=float(second): at, report)
    fake.nvmlShutdown()
    assert [(start, end) for _, _, start, end, _ in report.gaps] == [(1.0, 4.0), (5.0, 7.0)]
    activity = [(at, value) for _, metric, at, value in report.readings if metric == "sm_activity"]
    assert activity == [(at, pytest.approx(0.9)) for at in (1.0, 4.0, 5.0, 7.0)], "no reading is from between two tries"


# ---- the machine itself ---------------------------------------------------------------------------------------------


def rapl_zone(folder: Path, zone: str, name: str, microjoules: int, largest: int = 1_000_000) -> Path:
    (folder / zone).mkdir(parents=True)
    for file, content in (("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", largest)):
        (folder / zone / file).write_text(f"{content}\n")
    return folder / zone / "energy_uj"


def rapl(folder: Path) -> dict[str, Channel]:
    return {
        channel.source: channel for channel in machine_module.channels(folder) if channel.source.startswith("rapl:")
    }


def test_a_rapl_counter_continues_over_a_wrap_and_has_a_gap_where_it_fails(tmp_path: Path) -> None:
    counter = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 999_000)
    (channel,) = rapl(tmp_path).values()
    report = Report()
    for second, microjoules in enumerate((999_000, 999_900, 400, "", 900_000, 300)):
        counter.write_text(str(microjoules))
        channel.sample(lambda at=float(second): at, report)
    joules = [value for _, _, _, value in report.readings]
    assert joules == pytest.approx([0.999, 0.9999, 1.0004, 1.9, 2.0003])
    assert [(start, end) for _, _, start, end, _ in report.gaps] == [(2.0, 4.0)], "a failed reading is a gap"


def test_rapl_packages_and_their_zones_have_distinct_names(tmp_path: Path) -> None:
    for zone, name in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "dram"), ("intel-rapl:1", "psys")):
        rapl_zone(tmp_path, zone, name, 5)
    (tmp_path / "intel-rapl").mkdir()
    assert set(rapl(tmp_path)) == {"rapl:package-0", "rapl:package-0/dram", "rapl:psys"}


@pytest.mark.parametrize(
    ("other", "counted"),
    [
        ("as the first", {"rapl:package-1-die-0": 45.0}),
        ("a few joules on", {"rapl:package-1-die-0": 45.0, "rapl:package-1-die-1": 45.0}),
        ("faster", {"rapl:package-1-die-0": 45.0, "rapl:package-1-die-1": 90.0}),
    ],
)
def test_a_rapl_counter_that_two_zones_show_counts_once(tmp_path: Path, other: str, counted: dict[str, float]) -> None:
    zones = [rapl_zone(tmp_path, f"intel-rapl:{place}", f"package-1-die-{place}", 0) for place in (0, 1)]
    read, report = rapl(tmp_path).values(), Report()
    for tenth in range(31):
        microjoules = 10**8 + tenth * 1_500_000
        ahead = {"as the first": 900, "a few joules on": 7_000_000, "faster": tenth * 1_500_000}[other]
        for zone, value in zip(zones, (microjoules, microjoules + ahead), strict=True):
            zone.write_text(str(value))
        for channel in read:
            channel.sample(lambda at=tenth / 10: at, report)
    readings: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for source, metric, at, value in report.readings:
        readings.setdefault((source, metric), []).append((at, value))
    recording = Recording({name: Series(name[1], *zip(*rows, strict=True)) for name, rows in readings.items()})
    telemetry = summarise(recording, Marks({"timed": (0.0, 3.0)}, [(0.0, 3.0)], [(0, 1)], 10))
    assert telemetry.energy[0].energy_j == pytest.approx(counted)
    assert set(telemetry.missing) == {source for source, _ in readings} - set(counted)


def test_rapl_without_permission_is_missing_with_the_command_to_allow_it(tmp_path: Path, monkeypatch) -> None:
    counter = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 5)
    read_text = Path.read_text

    def forbidden(path: Path, *arguments: Any, **named: Any) -> str:
        if path == counter:
            raise PermissionError(13, "Permission denied", str(path))  # explicit, because root may run this test
        return read_text(path, *arguments, **named)

    (channel,) = rapl(tmp_path).values()
    monkeypatch.setattr(Path, "read_text", forbidden)
    report = Report()
    channel.sample(time.monotonic, report)
    ((source, metric, reason),) = report.missing
    assert (source, metric) == ("rapl:package-0", "energy_j")
    assert "administrator" in reason and "chmod a+r" in reason
    assert channel.gone and not report.readings


def test_a_machine_without_rapl_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "no such folder"):
        (channel,) = rapl(folder).values()
        report = Report()
        channel.sample(time.monotonic, report)
        assert [reason.partition(":")[0] for _, _, reason in report.missing] == ["no RAPL"]


def played(metric: str, infiniband: Path) -> Report:
    """Return the report of a reading of the channel with this metric, on a machine with these adapters."""
    (channel,) = [channel for channel in machine_module.channels(infiniband=infiniband) if metric in channel.metrics]
    report = Report()
    channel.sample(lambda: 0.0, report)
    return report


def values_of(report: Report) -> dict[str, float]:
    return {metric: value for _, metric, _, value in report.readings}


def test_loopback_is_counted_in_the_total_and_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, received = {"lo": 700, "eth0": 20, "lowpan0": 3}, {"lo": 700, "eth0": 50, "lowpan0": 0}
    interfaces = {name: SimpleNamespace(bytes_sent=sent[name], bytes_recv=received[name]) for name in sent}
    total = SimpleNamespace(bytes_sent=sum(sent.values()), bytes_recv=sum(received.values()))
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic=False: interfaces if pernic else total)
    assert values_of(played("network_sent_bytes", tmp_path)) == {
        "network_sent_bytes": 723,
        "network_received_bytes": 750,
    }
    assert values_of(played("loopback_sent_bytes", tmp_path)) == {"loopback_sent_bytes": 700}
    del interfaces["lo"]
    assert [metric for _, metric, _ in played("loopback_sent_bytes", tmp_path).missing] == ["loopback_sent_bytes"]


def test_the_total_of_this_machine_includes_loopback(tmp_path: Path) -> None:
    before = values_of(played("network_sent_bytes", tmp_path)) | values_of(played("loopback_sent_bytes", tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(bytes(2**16))
            assert len(accepted.recv(2**16, socket.MSG_WAITALL)) == 2**16
    after = values_of(played("network_sent_bytes", tmp_path)) | values_of(played("loopback_sent_bytes", tmp_path))
    assert {name: after[name] - before[name] >= 2**16 for name in after} == {
        "network_sent_bytes": True,
        "network_received_bytes": True,
        "loopback_sent_bytes": True,
    }


def adapter(folder: Path, port: str, received: str, sent: str) -> Path:
    counters = folder / port / "counters"
    counters.mkdir(parents=True)
    for name, words in (("port_rcv_data", received), ("port_xmit_data", sent)):
        (counters / name).write_text(f"{words}\n")
    return counters


def test_infiniband_ports_count_words_of_four_bytes(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0/ports/1", "10", "20")
    counters = adapter(tmp_path, "mlx5_1/ports/2", "100", "5000000000")
    values = values_of(played("infiniband_sent_bytes", tmp_path))
    assert values == {"infiniband_received_bytes": 440, "infiniband_sent_bytes": 20_000_000_080}
    (counters / "port_rcv_data").write_text("")
    assert not played("infiniband_sent_bytes", tmp_path).readings, "without all ports there is no total"
    (counters / "port_rcv_data").unlink()
    assert all("data counters" in reason for *_, reason in played("infiniband_sent_bytes", tmp_path).missing)


def test_a_machine_without_infiniband_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "no such folder"):
        missing = {metric: reason for _, metric, reason in played("infiniband_sent_bytes", folder).missing}
        assert set(missing) == {f"infiniband_{way}_bytes" for way in ("sent", "received")}
        assert all("no InfiniBand" in reason for reason in missing.values())


# ---- the process ----------------------------------------------------------------------------------------------------


ENVIRONMENT = {
    "PYTHONPATH": f"{FAKE_NVML}:{python_path()}",
    "FAKE_NVML": json.dumps({"chips": ["hopper", "kepler"]}),
}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give processes that the test starts two fake devices."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def test_the_sampler_imports_little_reports_missing_sensors_once_and_ends_with_stdin(devices: None) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "labkit.telemetry.sampler", "--gpu", "0", "--gpu", "1"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        events = [json.loads(process.stdout.readline()) for _ in range(6)]
        process.stdin.close()
        log = process.stderr.read().decode()
    assert process.returncode == 0
    assert [event["event"] for event in events] == ["hello", *["sampled"] * 5]
    assert [event["at_s"] for event in events] == sorted(event["at_s"] for event in events)
    missing = [(source, metric) for event in events[1:] for source, metric, _ in event["missing"]]
    assert ("gpu1", "energy_j") in missing
    assert len(missing) == len(set(missing))
    assert all(event["readings"] for event in events[1:])
    imported = {line.rpartition("|")[2].strip() for line in log.splitlines() if "|" in line}
    assert {"labkit.telemetry.machine", "psutil", "pynvml"} <= imported
    tops = {name.partition(".")[0] for name in imported}
    assert not tops & {"numpy", "pandas", "pyarrow", "scipy", "torch", "pydantic", "matplotlib", "IPython"}
    assert {name for name in imported if re.fullmatch(r"labkit\.\w+", name)} == {"labkit.sensors", "labkit.telemetry"}


PARENT = """
import sys, time
from pathlib import Path
from labkit.telemetry.process import TelemetryProcess
process = TelemetryProcess([0], log=Path(sys.argv[1])).__enter__()
assert process.ready()
print(process.pid, flush=True)
time.sleep(600)
"""


def test_the_sampler_ends_after_its_parent_is_killed(devices: None, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not has_ended(pid)
        parent.send_signal(signal.SIGKILL)
    assert eventually(lambda: has_ended(pid))


@pytest.fixture
def process(devices: None, tmp_path: Path) -> Iterator[TelemetryProcess]:
    with TelemetryProcess([0], log=tmp_path / "telemetry.log") as started:
        assert started.ready()
        yield started


def trial_from_now(process: TelemetryProcess, meanwhile: Callable[[], object] = lambda: None) -> observed.Telemetry:
    """Return the telemetry of a trial of five blocks, and call `meanwhile` in the middle of the trial."""
    marks = marks_of(time.monotonic(), 5, energy=[(0, 5)], idle_s=0.0)
    time.sleep(0.3)
    meanwhile()
    time.sleep(max(marks.windows["after"][1] - time.monotonic(), 0))
    return process.cut(marks)[0]


def kill(process: TelemetryProcess) -> None:
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: process.pid is None)


def test_a_sampler_killed_in_mid_trial_loses_only_that_trials_telemetry(process: TelemetryProcess) -> None:
    before = process.pid
    assert trial_from_now(process).status == "ok"
    began_s = time.monotonic()
    lost = trial_from_now(process, lambda: kill(process))
    assert lost.status == "lost"
    after_s = re.search(r"SIGKILL during .*, (\S+) s after it began", lost.reason or "")
    assert after_s and 0.0 <= float(after_s[1]) <= time.monotonic() - began_s, lost.reason
    assert (lost.windows, lost.energy) == ({}, []), "telemetry of a part of a trial is not kept"
    while_dead = trial_from_now(process)
    assert while_dead.status == "lost" and (while_dead.reason or "").endswith("SIGKILL")
    process.revive()
    assert process.pid not in (None, before)
    marks = marks_of(time.monotonic(), 3, energy=[], idle_s=0.0)
    time.sleep(1.0)
    kill(process)
    again, _ = process.cut(marks)
    assert again.status == "ok", "a sampler that died after a trial has reported all of it"
    assert again.windows["timed"].sources["gpu0"]["power_w"].mean == 500


def test_a_stopped_sampler_leaves_a_gap(process: TelemetryProcess) -> None:
    marks = marks_of(time.monotonic() - 0.1, 25, energy=[(0, 25)], idle_s=0.0)
    pid = process.pid
    assert pid is not None
    time.sleep(0.3)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    time.sleep(max(marks.windows["after"][1] - time.monotonic(), 0))
    telemetry, _ = process.cut(marks)
    assert telemetry.status == "ok"
    timed = telemetry.windows["timed"]
    for source in ("gpu0", "host"):
        assert 1.0 < timed.gap_s[source] < timed.length_s
    assert timed.sources["gpu0"]["power_w"].mean == 500
    assert telemetry.energy_method["gpu0"] == "counter", "the counter went on counting"
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.6)
    frozen = trial_from_now(process)
    assert frozen.status == "lost"
    assert "silent" in (frozen.reason or "")
    os.kill(pid, signal.SIGCONT)


def broken_python(folder: Path) -> Path:
    """Make a folder with a psutil that counts its imports and fails. The sampler needs psutil."""
    folder.mkdir()
    (folder / "psutil.py").write_text(
        f"open({str(folder / 'tries')!r}, 'a').write('x')\nraise ImportError('of another build')\n"
    )
    return folder


def test_a_sampler_that_dies_at_once_is_restarted_only_a_few_times(tmp_path: Path, monkeypatch) -> None:
    folder = broken_python(tmp_path / "broken")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    with TelemetryProcess([], log=tmp_path / "telemetry.log") as process:
        assert not process.ready()
        for _ in range(MAX_RESTARTS + 2):
            process.revive()
        assert (folder / "tries").read_text() == "x" * (1 + MAX_RESTARTS)
        assert process.pid is None
        telemetry, recording = process.cut(marks_of(time.monotonic(), 1, energy=[]))
        assert telemetry.status == "lost" and (telemetry.reason or "").endswith("code 1")
        assert recording.series == {}
    assert "of another build" in (tmp_path / "telemetry.log").read_text()


def test_a_restarted_process_reads_the_same_card_or_none(
    devices: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chips = ["volta", "kepler"]
    monkeypatch.setenv("FAKE_NVML", json.dumps({"chips": chips}))
    with TelemetryProcess([0, 1], log=tmp_path / "telemetry.log") as process:
        assert process.ready()
        gone = {"index": 0, "from_s": -1}
        monkeypatch.setenv("FAKE_NVML", json.dumps({"chips": chips, "gone": gone}))
        kill(process)
        process.revive()
        began_s = time.monotonic()
        telemetry = trial_from_now(process)
        series = process.recording(began_s, time.monotonic()).series
    assert "*" in telemetry.missing["gpu0"]
    for source, chip in zip(("gpu0", "gpu1"), chips, strict=True):  # gpu0 has readings from before its loss
        assert set(series[source, "sm_clock_hz"].values) == {fake.CHIPS[chip].sm_clock_mhz * 1e6}
    assert series["gpu0", "sm_clock_hz"].times_s.max() < began_s < series["gpu1", "sm_clock_hz"].times_s.max()


def test_an_absent_device_is_missing_and_a_single_device_has_no_traffic_counters(
    devices: None, tmp_path: Path, generations: Sampled
) -> None:
    with TelemetryProcess([0, 5], log=tmp_path / "telemetry.log", one_device=True) as process:
        assert process.ready()
        began_s = time.monotonic()
        telemetry = trial_from_now(process)
        read = {metric for _, metric in process.recording(began_s, time.monotonic()).series}
    assert telemetry.missing["gpu5"] == {"*": told(fake.NVML_ERROR_INVALID_ARGUMENT)}
    assert set(telemetry.windows["timed"].sources) == {"gpu0", "host"}
    assert set(telemetry.energy[0].energy_j) == {"gpu0"}
    between_devices = NVLINK | {"loopback_sent_bytes"}
    assert {"power_w", "cpu_utilisation", "network_sent_bytes"} <= read and not read & between_devices
    assert between_devices <= {metric for _, metric in generations.recording.series}


# ---- the runner's side of telemetry ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def started_watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[watch_module.Watch]:
    """Yield a watch on the fake H200 of a profile."""
    gpu = Gpu(name="NVIDIA H200", uuid_hash="", memory_bytes=2**37, compute_capability="9.0")
    profile = tiny_profile().model_copy(update={"device": Device(kind="cuda", pattern="H200")})
    store = Store(tmp_path_factory.mktemp("watched"))
    started = watch_module.Watch(STUDY, Session(profile=profile, host=replace(HOST, gpus=(gpu,)), store=store))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        started.__enter__()
    yield started
    started.__exit__()


@pytest.fixture
def watch(started_watch: watch_module.Watch, devices: None) -> Iterator[watch_module.Watch]:
    """Yield the shared watch, with its process alive."""
    started_watch.begin_pass()
    yield started_watch


@pytest.mark.parametrize("one_device", [True, False])
def test_a_watch_tells_its_process_whether_there_is_a_single_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_device: bool
) -> None:
    told = []
    monkeypatch.setattr(watch_module, "TelemetryProcess", lambda *_, one_device, **__: told.append(one_device))
    session = Session(profile=tiny_profile(), host=HOST, store=Store(tmp_path))
    watch_module.Watch(STUDY, session, one_device=one_device)
    assert told == [one_device]


METERED = Trial(energy_windows=1)


def ended(watch: watch_module.Watch, result: Blocks | None, trial: Trial = METERED) -> observed.Telemetry | None:
    windows = {"idle_before": (time.monotonic() - 0.4, time.monotonic() - 0.3)} if result else {}
    telemetry = watch.of_trial(trial, result=result, windows=windows)
    watch.keep(trial, scale="smoke", pass_number=1)
    return telemetry


def blocks_until_now() -> Blocks:
    return RESULT.model_copy(update={"began_s": time.monotonic() - 0.25, "host_s": [0.1, 0.1], "at_s": [0.0, 0.1]})


def test_a_trial_on_the_cpu_of_a_gpu_host_has_no_telemetry_of_the_gpu(watch: watch_module.Watch) -> None:
    telemetry = ended(watch, blocks_until_now(), Trial(device="cpu", energy_windows=1))
    assert telemetry is not None and telemetry.status == "ok"
    sources = {source for window in telemetry.windows.values() for source in window.sources} | set(telemetry.polled)
    assert "host" in sources and not [source for source in sources if source.startswith("gpu")]
    assert not [source for source in telemetry.energy_method if source.startswith("gpu")]


@pytest.mark.parametrize(
    ("part", "method", "status"), [("_process", "cut", "lost"), ("_series", "put", "ok")], ids=["readings", "series"]
)
def test_a_fault_in_telemetry_costs_only_telemetry_and_a_fault_of_the_series_not_even_that(
    watch: watch_module.Watch, monkeypatch: pytest.MonkeyPatch, capsys, part: str, method: str, status: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "FULL")

    monkeypatch.setattr(getattr(watch, part), method, fails)
    telemetry = ended(watch, blocks_until_now())
    assert telemetry is not None and telemetry.status == status
    assert "FULL" in (telemetry.reason or capsys.readouterr().err)


def test_an_unused_device_is_not_in_the_telemetry_of_a_trial() -> None:
    recording = Recording(
        {("gpu0", "power_w"): Series("power_w", [0], [1]), ("gpu1", "power_w"): Series("power_w", [0], [1])}
    )
    assert recording.of_gpus(["gpu0"]).sources() == ["gpu0"]


def test_the_sampler_is_restarted_after_a_trial_without_a_result(watch: watch_module.Watch) -> None:
    kill(watch._process)
    assert ended(watch, None) is None
    assert watch._process.pid is not None


def test_a_sampler_that_is_stopped_is_replaced(watch: watch_module.Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "SILENT_S", 0.5)
    before = watch._process.pid
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    time.sleep(1.0)
    watch._process.revive()
    assert watch._process.pid not in (None, before) and has_ended(before)


# ---- through the runner ---------------------------------------------------------------------------------------------


def test_a_record_carries_telemetry_and_its_series_are_kept(tmp_path: Path) -> None:
    run(sound(1), tmp_path / "cpu")
    (record,) = records(tmp_path / "cpu")
    telemetry = record.telemetry
    assert telemetry is not None
    assert (telemetry.status, telemetry.reason) == ("ok", None)
    assert list(telemetry.windows) == ["idle_before", "warmup", "timed", "after"]
    assert record.result is not None
    assert telemetry.windows["timed"].start_s == 0
    end = record.result.at_s[-1] + record.result.host_s[-1]
    assert telemetry.windows["timed"].length_s == pytest.approx(end)
    ordered = list(telemetry.windows.values())
    for before, after in pairwise(ordered):
        assert before.start_s + before.length_s <= after.start_s + 1e-6
    shares = [telemetry.mean(window, "host", "cpu_utilisation") for window in telemetry.windows]
    assert any(share is not None for share in shares), "on a busy machine a window of 0.2 s may have no reading"
    assert telemetry.energy == [], "the trial has no energy windows"
    rows = SeriesStore(tmp_path / "cpu", HOST.id, STUDY).read()
    assert set(rows["key"]) == {short_hash(record.key)}
    assert "host" in set(rows["source"])


def kill_the_sampler() -> None:
    """Kill the sampler started last, found by its command line among this process's children."""
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    samplers = [child for child in children if "labkit.telemetry.sampler" in child.cmdline()]
    max(samplers, key=lambda child: child.create_time()).kill()


def test_a_sampler_killed_during_a_trial_costs_no_trial_and_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, killed = Progress.show, []

    def shown(progress: Progress, what: str, remaining_s: float) -> None:
        if not killed and "preparing" in what:
            time.sleep(0.25)  # the trial has begun, and the sampler has sent readings since
            kill_the_sampler()
            killed.append(what)
        show(progress, what, remaining_s)

    monkeypatch.setattr(Progress, "show", shown)
    outcome = run(sound(12), tmp_path / "cpu")  # the new process needs a second before it can be used, and may wait
    assert killed and outcome.failed == 0
    first, *_, last = made = records(tmp_path / "cpu")
    assert [record.status for record in made] == ["ok"] * 12
    assert lost(first)
    assert "SIGKILL" in (first.telemetry.reason or "")  # type: ignore[union-attr]
    why = (last.telemetry.reason or "") if last.telemetry else "no telemetry"
    assert why == "" or "was silent" in why, "on a busy machine the new process may get no processor for a second"
    kept = set(SeriesStore(tmp_path / "cpu", HOST.id, STUDY).read()["key"])
    assert short_hash(last.key) in kept


def lost(record: Record) -> bool:
    assert record.telemetry is not None
    return record.telemetry.status == "lost"


def test_trials_are_measured_although_nothing_can_be_sampled(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("labkit.telemetry.process.sys", SimpleNamespace(executable="/no such python"))
    run(sound(1), tmp_path / "cpu")
    (record,) = records(tmp_path / "cpu")
    assert record.status == "ok"
    assert lost(record)
    assert "started" in (record.telemetry.reason or "")  # type: ignore[union-attr]
