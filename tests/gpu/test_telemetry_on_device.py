"""Telemetry of a real NVIDIA GPU is consistent and agrees with the known facts of the chip."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from labkit.data import open_data
from labkit.telemetry.process import TelemetryProcess
from labkit.telemetry.series import energy
from tests.gpu.test_on_device import profile_of_this_gpu
from workbook.hardware.host import this_host
from workbook.records.series_store import SeriesStore
from workbook.records.store import Store
from workbook.runner import measure
from workbook.session import Session
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import build_workload

pytestmark = pytest.mark.gpu


def test_energy_of_ten_seconds_agrees_with_the_integral_of_polled_power(tmp_path: Path) -> None:
    workload = build_workload(Trial(workload="matmul", size=4096, data=NO_DATA), None)
    with TelemetryProcess([0], log=tmp_path / "log") as telemetry:
        assert telemetry.ready()
        spin(workload, 2.0)
        began = time.monotonic()
        spin(workload, 10.0)
        ended = time.monotonic()
        spin(workload, 0.5)
        recording = telemetry.recording(began, ended)
    counter, power = recording.get("gpu0", "energy_j"), recording.get("gpu0", "power_w")
    if counter is None:
        pytest.skip("this device has no energy counter: its energy is the integral")
    counted, integrated = energy(counter, power, began, ended), energy(None, power, began, ended)
    assert counted.method == "counter" and integrated.method.startswith("trapezoid")
    assert counted.energy_j == pytest.approx(integrated.energy_j, rel=0.03)
    assert recording.cpu_share is not None and recording.cpu_share < 0.05  # of one core


def test_an_energy_trial_records_the_device_in_each_of_its_windows(tmp_path: Path) -> None:
    images = open_data("digits")
    of_images = {"data": images.name, "data_checksum": images.checksum, "classes": 10}
    trials = [
        Trial(model="vgg16", batch=256, energy_windows=1, **of_images),
        Trial(workload="idle", data=NO_DATA, energy_windows=1),
    ]
    host, store = this_host(), Store(tmp_path)
    measure(
        trials, study="04_power", session=Session(scale="smoke", profile=profile_of_this_gpu(), host=host, store=store)
    )
    by_workload = {record.trial["workload"]: record for record in store.read("04_power", host.id)}
    busy, idle = by_workload["train"].telemetry, by_workload["idle"].telemetry
    assert busy is not None and idle is not None and busy.status == idle.status == "ok"
    assert set(busy.windows) == {"idle_before", "warmup", "timed", "after"}
    source = next(name for name in busy.windows["timed"].sources if name.startswith("gpu"))
    power = {name: telemetry.mean("timed", source, "power_w") for name, telemetry in (("busy", busy), ("idle", idle))}
    assert power["busy"] is not None and power["idle"] is not None and power["busy"] > 1.2 * power["idle"]
    (window,) = busy.energy
    joules = window.energy_j[source]
    assert joules is not None and joules / window.length_s == pytest.approx(power["busy"], rel=0.05)
    utilisation, active = (busy.mean("timed", source, name) for name in ("utilisation", "sm_activity"))
    assert utilisation is not None and 0 < utilisation <= 1
    if active is not None:
        assert 0 < active <= 1 and (idle.mean("timed", source, "sm_activity") or 0) < 0.02
    else:
        assert busy.missing[source]["sm_activity"]
    series = SeriesStore(tmp_path, host.id, "04_power").read()
    assert {"power_w", "utilisation", "sm_clock_hz"} <= set(series["metric"])


def spin(workload: object, seconds: float) -> None:
    import torch

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            workload.step()  # type: ignore[attr-defined]
        torch.cuda.synchronize()
