"""Trials on the CPU in a report about a GPU have neither the GPU's power nor its peaks."""

from __future__ import annotations

import pytest

from labkit.telemetry.summary import EnergyWindow, Statistic, Telemetry, Window
from tests.workbook.made_records import NOISE, PASSES, blocks, of_records
from workbook.records import Blocks, Record
from workbook.results import Results as Recorded
from workbook.results import roofline
from workbook.results.exchange import numbers
from workbook.results.metrics import metric_of, why_missing
from workbook.results.study_records import StudyRecords as Results
from workbook.studies.rooflines import predicted
from workbook.trials.trial import Trial

STUDY = "06_cpu_vs_gpu"
GPU, CPU = Trial(), Trial(device="cpu")
NO_RAPL = "no RAPL here"


def level(mean: float) -> Statistic:
    return Statistic(mean=mean, low=mean, high=mean, n=10)


def watched(trial: Trial) -> Telemetry:
    """Return the telemetry of a trial: of the board only if the trial ran there, of the processors always."""
    sources = {"host": {"cpu_utilisation": level(0.9 if trial.device == "cpu" else 0.1)}}
    if trial.device == "cuda":
        sources["gpu0"] = {"power_w": level(400.0), "sm_activity": level(0.5), "utilisation": level(0.8)}
    joules = {"gpu0": 2000.0} if trial.device == "cuda" else {}
    return Telemetry(
        status="ok",
        windows={"timed": Window(start_s=0, length_s=5, sources=sources)},
        energy=[EnergyWindow(start_s=0, length_s=5, images=1000, energy_j=joules)],
        energy_method=dict.fromkeys(joules, "counter"),
        missing={"rapl:package-0": {"energy_j": NO_RAPL}},
    )


def ceiling(workload: str, device: str, number: int) -> Record:
    """Return a matrix product or a copy of 1 ms per step. The GPU does a hundred times the work of the CPU."""
    work = 10**12 if device == "cuda" else 10**10
    result = Blocks(
        steps_per_block=1,
        flop_per_step=work if workload == "matmul" else None,
        bytes_per_step=work if workload == "memory_copy" else None,
        host_s=[1e-3] * 10,
        warmup_s=[1e-3],
        warmup_steps=[1],
        steady=True,
        stopped_by="time",
    )
    return blocks(STUDY, Trial(workload=workload, device=device, data="none"), number, 1.0, result=result)


def both() -> Results:
    facts = {"flop_training": 10**9, "weight_traffic_bytes_per_step": 10**6, "image_bytes": 3072}
    records = [
        ceiling(name, trial.device, n) for name in ("matmul", "memory_copy") for trial in (GPU, CPU) for n in PASSES
    ]
    for trial, rate in ((GPU, 5000.0), (CPU, 50.0)):
        for n in PASSES:
            made = blocks(STUDY, trial, n, rate * NOISE[n - 1], telemetry=watched(trial))
            records.append(made.model_copy(update={"facts": {**made.facts, **facts}}))
    return of_records(STUDY, records)


def test_a_cpu_trial_has_neither_the_gpus_power_nor_its_limit() -> None:
    results = both()
    (gpu, cpu) = (results.ok(trial)[0] for trial in (GPU, CPU))
    assert metric_of(results, gpu, "power_w") == 400 and metric_of(results, gpu, "energy_per_image_j") == 2
    assert metric_of(results, gpu, "power_fraction") == 400 / 700
    for metric in ("power_w", "energy_per_image_j", "images_per_s_per_w", "power_fraction"):
        assert metric_of(results, cpu, metric) is None, metric
    assert why_missing(results, cpu, "energy_per_image_j") == NO_RAPL


def test_a_cpu_trial_is_compared_with_the_ceilings_of_the_cpu() -> None:
    results = both()
    assert roofline.measured(results, GPU).flop_per_s == pytest.approx(1e15)
    assert roofline.measured(results, CPU).flop_per_s == pytest.approx(1e13)
    assert roofline.measured(results, CPU).bytes_per_s == pytest.approx(1e13)
    assert roofline.measured(results, GPU, 99) == roofline.measured(results, GPU), "a pass without ceilings"
    shares = [metric_of(results, results.ok(trial)[0], "roofline_fraction") for trial in (GPU, CPU)]
    assert shares == pytest.approx([5000 / (1e15 / 1e9), 50 / (1e13 / 1e9)])


@pytest.mark.parametrize(("precision", "named"), [("fp16", "FP16"), ("default", "TF32 in convolutions")])
def test_a_share_of_a_peak_that_was_not_measured_is_missing_with_its_precision(precision: str, named: str) -> None:
    other = Trial(precision=precision)
    results = of_records(STUDY, [ceiling("matmul", "cuda", 1), blocks(STUDY, other, 1, 9e3)])
    (record,) = results.ok(other)
    assert metric_of(results, record, "roofline_fraction") is None
    assert named in why_missing(results, record, "roofline_fraction")


def test_a_cpu_trial_has_no_nominal_peaks_in_a_profile_of_a_gpu() -> None:
    profile = both().profile
    assert roofline.nominal_of(profile, GPU).flop_per_s == profile.peaks.flop_per_s["fp32"].value
    assert roofline.nominal_of(profile, CPU) == roofline.Ceilings(None, None)
    assert len(predicted(profile, [GPU, CPU])) == 1


def test_captions_name_both_devices() -> None:
    assert "NVIDIA H200 beside a CPU" in both().describe()
    only_gpu = of_records(STUDY, [blocks(STUDY, GPU, n, 100.0) for n in PASSES])
    assert "beside" not in only_gpu.describe()


def test_numbers_for_other_programs_name_the_device_of_each_trial() -> None:
    frame = numbers(Recorded([both()]))
    rates = frame[(frame["metric"] == "images_per_s") & (frame["workload"] == "train")]
    assert dict(zip(rates["device"], rates["device_name"], strict=True)) == {
        "cuda": "NVIDIA H200",
        "cpu": "a CPU",
    }
    assert set(frame[frame["metric"] == "power_w"]["device"]) == {"cuda"}
