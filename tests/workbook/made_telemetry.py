"""Hand-made records with telemetry: boards of several generations, CPUs with and without counters, lost telemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.telemetry.summary import EnergyWindow, Metrics, Statistic, Telemetry, Window
from tests.workbook.made_records import of_records, record_of
from workbook.claims.papers import load_papers
from workbook.hardware.profile import load_profile
from workbook.records import Blocks, Planned, Record, short_hash
from workbook.results.study_records import StudyRecords as Results
from workbook.trials.trial import NO_DATA, Trial

R50 = Trial(model="resnet50", batch=64, energy_windows=3)
VGG = Trial(model="vgg16", batch=64, energy_windows=3)
IDLE = Trial(workload="idle", data=NO_DATA, energy_windows=3)
TRIALS = (R50, VGG, IDLE)
WATTS = {"resnet50": 400.0, "vgg16": 500.0, "googlenet": 300.0, "idle": 100.0}
WINDOW_S, IMAGES = 5.0, 1000  # so ResNet-50 costs 2 J an image, 1.5 J above idle
NO_RAPL = "no RAPL: this kernel shows no energy counter"
KILLED = "the telemetry process was killed by signal SIGKILL"
PAPERS = load_papers()

Tell = Callable[[Trial, int], Telemetry | None]


def watts(trial: Trial) -> float:
    return WATTS[trial.model if trial.workload == "train" else "idle"]


def on(trial: Trial, device: str) -> Trial:
    return Trial(**(trial.as_dict() | {"device": device}))


def read(**means: float) -> Metrics:
    """Return statistics of ten readings, the lowest 10 % below the mean, the highest 10 % above it."""
    return {name: Statistic(mean=value, low=0.9 * value, high=1.1 * value, n=10) for name, value in means.items()}


def made(trial: Trial, pass_number: int, telemetry: Telemetry | None, **other: Any) -> Record:
    """Return a record of ten blocks of half a second, with 1,000 images each if the trial trains."""
    blocks = Blocks(
        steps_per_block=10,
        images_per_step=100 if trial.workload == "train" else None,
        host_s=[0.5] * 10,
        warmup_s=[1.0],
        warmup_steps=[10],
        steady=True,
        stopped_by="time",
    )
    values: dict[str, Any] = {
        "planned": Planned(passes={short_hash(planned.key): 3 for planned in TRIALS}, order_seed=1),
        "wall_s": 8.0,
        "phases_s": {"idle": 0.5, "build": 0.25, "first_step": 0.25, "warmup": 1.0, "timed": 5.0, "blocks": 6.0},
        "facts": {"cpu_cores_used": 1.5, "threads": 4, "data_description": "Made up."},
        "result": blocks,
        "telemetry": telemetry,
    }
    return record_of("04_power", trial, pass_number, **(values | other))


def shown(*records: Record, hw: str = "h200") -> Results:
    return of_records("power", records, hw)


def told(
    sources: dict[str, Metrics], energy: dict[str, float | None], *, images: int | None = IMAGES, **other: Any
) -> Telemetry:
    """Return telemetry: the metrics of each source in the timed part, and the joules of three long windows."""
    gpus = {name: metrics for name, metrics in sources.items() if name.startswith("gpu")}
    polled = {
        name: {metric: metrics[metric] for metric in ("utilisation", "power_smi_w") if metric in metrics}
        for name, metrics in gpus.items()
    }
    values: dict[str, Any] = {
        "status": "ok",
        "windows": {
            "timed": Window(start_s=0.0, length_s=15.0, sources=sources),
        },
        "polled": polled,
        "energy": [
            EnergyWindow(start_s=WINDOW_S * place, length_s=WINDOW_S, images=images, energy_j=energy)
            for place in range(3)
        ],
        "energy_method": dict.fromkeys(energy, "counter"),
        "missing": {"rapl:package-0": {"energy_j": NO_RAPL}},
        "sampler_cpu_share": 0.01,
    }
    return Telemetry(**(values | other))


def board(trial: Trial) -> Metrics:
    """Return the metrics that NVML has for any generation of boards."""
    used = 0.9 if trial.workload == "train" else 0.1
    return read(
        power_w=watts(trial),
        power_smi_w=watts(trial),
        utilisation=used,
        memory_bytes=2.0**30,
        temperature_c=50.0,
        sm_clock_hz=1.5e9,
    )


def processor(trial: Trial) -> Metrics:
    return read(cpu_utilisation={"resnet50": 0.25, "vgg16": 0.5}.get(trial.model, 0.1), cpu_clock_hz=2e9)


def images_of(trial: Trial) -> int | None:
    return IMAGES if trial.workload == "train" else None


def hopper(trial: Trial, _: int = 1) -> Telemetry:
    units = read(sm_activity=0.5, fp32_activity=0.4, tensor_activity=0.01, dram_activity=0.2, occupancy=0.3)
    sources = {"gpu0": board(trial) | units, "host": processor(trial)}
    return told(sources, {"gpu0": watts(trial) * WINDOW_S}, images=images_of(trial))


def two_gpus(trial: Trial, _: int = 1) -> Telemetry:
    second = board(trial) | read(power_w=0.5 * watts(trial), utilisation=0.5)
    sources = {"gpu0": board(trial), "gpu1": second}
    joules: dict[str, float | None] = {"gpu0": watts(trial) * WINDOW_S, "gpu1": 0.5 * watts(trial) * WINDOW_S}
    return told(sources, joules, images=images_of(trial))


def with_rapl(trial: Trial, _: int = 1) -> Telemetry:
    joules = {"rapl:package-0": 200.0, "rapl:package-1": 300.0, "rapl:package-0/dram": 50.0}
    if trial.workload == "idle":
        joules = {"rapl:package-0": 50.0, "rapl:package-1": 50.0, "rapl:package-0/dram": 5.0}
    return told({"host": processor(trial)}, {**joules}, images=images_of(trial), missing={})


def lost_once(trial: Trial, pass_number: int) -> Telemetry:
    return Telemetry(status="lost", reason=KILLED) if pass_number == 2 else hopper(trial)


def of(tell: Tell, hw: str = "h200", passes: int = 3) -> Results:
    """Return every trial in every pass, on all devices of the profile, with the telemetry that `tell` returns."""
    device = load_profile(hw).device
    trials = [on(trial, device.kind) for trial in TRIALS]
    used = device.count
    return shown(
        *[made(one, n, tell(one, n), devices_used=used) for n in range(1, passes + 1) for one in trials], hw=hw
    )
