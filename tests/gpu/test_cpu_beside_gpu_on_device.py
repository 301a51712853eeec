"""On a machine with a GPU, trials on its CPU run in the same process and have no data of the GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.data import open_data
from tests.gpu.test_on_device import run
from workbook.hardware.limits import usable_threads
from workbook.trials.trial import NO_DATA, Trial

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_cpu_and_gpu_trials_run_in_one_pass_and_only_gpu_trials_have_gpu_sensors(tmp_path: Path) -> None:
    images = open_data("digits")
    on_gpu = Trial(model="resnet18", batch=16, classes=10, data=images.name, data_checksum=images.checksum)
    on_cpu = replace(on_gpu, device="cpu")
    threads = sorted({1, usable_threads()})
    swept = [replace(on_cpu, threads=number) for number in threads]
    ceilings = [Trial(workload="matmul", size=1024, data=NO_DATA, device=device) for device in ("cuda", "cpu")]
    by_key = {record.key: record for record in run([on_gpu, on_cpu, *swept, *ceilings], tmp_path)}
    assert {(record.status, record.reason) for record in by_key.values()} == {("ok", None)}
    assert len({record.process.id for record in by_key.values()}) == 1
    for record in by_key.values():
        assert record.telemetry is not None and record.blocks is not None
        sensors = {source[:3] for window in record.telemetry.windows.values() for source in window.sources}
        assert ("gpu" in sensors) == (record.trial["device"] == "cuda")
        assert (record.blocks.device_s is not None) == (record.trial["device"] == "cuda"), "only the GPU has events"
    assert [by_key[trial.key].facts["threads"] for trial in swept] == threads
    rates = [by_key[trial.key].blocks.rate(trial.batch) for trial in (on_gpu, on_cpu)]  # type: ignore[union-attr]
    assert rates[0] and rates[1] and rates[0] > rates[1], "any GPU trains faster than the CPU beside it"
