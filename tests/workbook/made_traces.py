"""Hand-made traces for the pages of 09_profile: steps of any length, kernels of any class, with and without gaps."""

from __future__ import annotations

from typing import Any

from labkit.models import count
from labkit.telemetry.summary import Metrics, Statistic, Telemetry, Window
from tests.workbook.made_records import NOISE, blocks
from workbook.records import Record
from workbook.records.traced import (
    RULES,
    Algorithm,
    CallClass,
    Copies,
    KernelClass,
    Piece,
    Section,
    Total,
    Traced,
    Untraced,
)
from workbook.trials.trial import Trial

STUDY = "09_profile"
# Shares of a step's kernel time by network, as a trace of an H200 may show.
MIXES: dict[str, dict[KernelClass, float]] = {
    "alexnet": {"convolution": 0.3, "matrix_product": 0.25, "pooling": 0.05, "element_wise": 0.1, "optimiser": 0.3},
    "resnet18": {"convolution": 0.55, "batch_norm": 0.2, "element_wise": 0.15, "optimiser": 0.06, "layout": 0.04},
    "resnet50": {"convolution": 0.5, "batch_norm": 0.28, "element_wise": 0.14, "optimiser": 0.06, "other": 0.02},
    "vgg16": {"convolution": 0.62, "matrix_product": 0.1, "pooling": 0.04, "element_wise": 0.14, "optimiser": 0.1},
}
PEAK = 40e12  # FLOP/s that kernels reach
LAUNCH_S = {"alexnet": 1.4e-3, "resnet18": 4.4e-3, "resnet50": 9.5e-3, "vgg16": 2.6e-3}  # host time of an eager step
KERNELS = {"alexnet": 160, "resnet18": 480, "resnet50": 1250, "vgg16": 330}
TRACED_IS_SLOWER = 1.6  # on the host


def kernel_s(trial: Trial) -> float:
    """Return the seconds of a step's kernels: arithmetic at a fixed rate, and passes over the weights."""
    facts = count(trial.model, image_px=trial.image_px)
    work = facts.flop_training * trial.batch_of_device / PEAK / (1 if trial.precision == "fp32" else 4)
    return work + 8 * facts.parameter_bytes / 4e12 + KERNELS[trial.model] * 2e-6


def step_s(trial: Trial) -> float:
    """Return the seconds of a step: the host's launches or the device's kernels, whichever take longer."""
    launch = LAUNCH_S[trial.model] if trial.engine == "eager" else 0.0
    return max(kernel_s(trial) * 1.02, launch)


def algorithms(trial: Trial, seconds: float) -> dict[Algorithm, Total]:
    """Return the totals by algorithm. The share of Winograd grows with the batch, up to a point."""
    if trial.device == "cpu":
        return {"library": Total(seconds=seconds, count=16)}
    if trial.precision != "fp32":
        return {"tensor_core": Total(seconds=seconds, count=16)}
    winograd = {4: 0.1, 8: 0.25, 16: 0.5, 32: 0.45}.get(trial.batch, 0.3)
    return {
        "implicit_gemm": Total(seconds=(0.9 - winograd) * seconds, count=20),
        "winograd": Total(seconds=winograd * seconds, count=12),
        "helper": Total(seconds=0.1 * seconds, count=8),
    }


def calls(seconds: float, launches: int, clean_up: float) -> dict[CallClass, Total]:
    """Return totals of CUDA API calls: launches, some clean-up, and a few others."""
    return {
        "launch": Total(seconds=(0.9 - clean_up) * seconds, count=launches),
        "clean_up": Total(seconds=clean_up * seconds, count=20),
        "memory": Total(seconds=0.06 * seconds, count=12),
        "wait": Total(seconds=0.04 * seconds, count=2),
    }


def trace(trial: Trial, number: int = 1, **other: Any) -> Traced:
    """Return the trace of a trial's steps: of kernels on a GPU, or of operators on a CPU."""
    steps, noise, on_cpu = trial.traced_iterations or 5, NOISE[number - 1], trial.device == "cpu"
    ran = kernel_s(trial) * noise * (400 if on_cpu else 1)
    launch = 0.0 if on_cpu else (LAUNCH_S[trial.model] * TRACED_IS_SLOWER if trial.engine == "eager" else 0.0)
    elapsed, mix = max(ran * 1.06, launch), dict(MIXES[trial.model])
    broadcast = 0.0
    if trial.devices > 1:
        broadcast = 0.4 * 4 / trial.batch**0.5
        mix = {kind: share * (1 - broadcast) for kind, share in mix.items()} | {"collective": broadcast}
    idle, launches = elapsed - ran, KERNELS[trial.model]
    part = 10 if steps >= 50 else steps  # steps of a piece
    of_class = {kind: Total(seconds=share * ran * steps, count=launches * steps // 5) for kind, share in mix.items()}
    captured = "graph" in trial.engine
    values: dict[str, Any] = {
        "of": "operators" if on_cpu else "kernels",
        "rules": RULES,
        "steps": steps,
        "asked_for": steps,
        "steps_before": trial.steps_before,
        "pieces": [Piece(steps=part, elapsed_s=elapsed * part, busy_s=ran * part, kernel_s={})] * (steps // part),
        "elapsed_s": elapsed * steps,
        "busy_s": ran * steps,
        "active_s": (ran + min(2e-6, idle / 10)) * steps,
        "launch_gap_s": None if on_cpu else 0.9 * idle * steps,
        "queue_gap_s": None if on_cpu else 0.1 * idle * steps - min(2e-6, idle / 10) * steps,
        "kernels": of_class,
        "algorithms": algorithms(trial, mix["convolution"] * ran * steps),
        "longest": [],
        "convolution_kernel": "aten::mkldnn_convolution" if on_cpu else f"sm80_xmma_fprop_{trial.batch}x128",
        "max_pool_backward_s": 0.01 * ran * steps,
        "broadcast_s": broadcast * ran * steps,
        "sections": {} if captured else sections(trial, ran * steps, elapsed * steps, on_cpu=on_cpu),
    }
    if not on_cpu:
        values |= {
            "copies": {
                "host_to_device": Copies(seconds=2e-6 * steps, count=steps, bytes=512 * steps, median_bytes=512)
            },
            "copy_s": 2e-6 * steps,
            "copy_beside_kernel_s": 0.5e-6 * steps,
            "overlapping_s": 0.002 * ran * steps,
            "calls": calls(0.6 * elapsed * steps, (1 if captured else launches) * steps, 0.02),
        }
    return Traced(**(values | other))


def sections(trial: Trial, ran: float, elapsed: float, *, on_cpu: bool) -> dict[str, Section]:
    """Return the sections of a step: a third forward, half backward, and most of the rest in the optimiser."""
    parts = {"load": 0.02, "forward": 0.32, "loss": 0.02, "backward": 0.5, "optimiser": 0.14}
    return {
        name: Section(
            host_s=share * elapsed,
            kernel_s=share * ran,
            busy_s=share * ran,
            calls={} if on_cpu else calls(share * elapsed, KERNELS[trial.model], 0.05 if trial.batch >= 64 else 0.01),
        )
        for name, share in parts.items()
    }


def activity(trial: Trial) -> Telemetry:
    """Return telemetry of the timed part, as GPM and the driver measure it."""
    busy = min(kernel_s(trial) / step_s(trial), 1.0)
    fp32 = (0.75 if trial.batch * trial.image_px**2 > 8 * 224**2 else 0.4) * busy if trial.precision == "fp32" else 0.05
    means = {
        "utilisation": min(busy + 0.1, 1.0),
        "sm_activity": 0.8 * busy,
        "fp32_activity": fp32,
        "tensor_activity": 0.0 if trial.precision == "fp32" else 0.3 * busy,
        "dram_activity": (0.7 if trial.model == "alexnet" else 0.35) * busy,
    }
    metrics: Metrics = {name: Statistic(mean=m, low=0.9 * m, high=1.1 * m, n=10) for name, m in means.items()}
    return Telemetry(status="ok", windows={"timed": Window(start_s=0, length_s=2, sources={"gpu0": metrics})})


def traced(trial: Trial, number: int, *, found: Traced | Untraced | None = None, **facts: Any) -> Record:
    """Return a timed training with its trace and its work, and on a GPU with the activity of the units."""
    on_cpu, noise = trial.device == "cpu", NOISE[number - 1]
    rate = trial.batch_of_step / step_s(trial) / noise / (400 if on_cpu else 1)
    made = blocks(STUDY, trial, number, rate)
    network = count(trial.model, image_px=trial.image_px)
    result = made.blocks
    assert result is not None
    update = {"trace": found or trace(trial, number), "flop_per_step": network.flop_training * trial.batch_of_step}
    about = {
        **made.facts,
        "flop_training": network.flop_training,
        "flop_forward": network.flop_forward,
        "weight_traffic_bytes_per_step": 8 * network.parameter_bytes,
        "image_bytes": 3072,
        **({} if on_cpu else {"memory_left_bytes": 0}),
        **facts,
    }
    telemetry = None if on_cpu else activity(trial)
    return made.model_copy(update={"result": result.model_copy(update=update), "facts": about, "telemetry": telemetry})


def ceiling(trial: Trial, number: int) -> Record:
    """Return a matrix product or a memory copy at a fixed rate."""
    made = blocks(STUDY, trial, number, 1000.0)
    result = made.blocks
    assert result is not None
    slower = 400 if trial.device == "cpu" else 1
    seconds = result.step_s
    assert seconds is not None
    work = (
        {"flop_per_step": int(50e12 / slower * seconds)}
        if trial.workload == "matmul"
        else {"bytes_per_step": int(4e12 / slower * seconds)}
    )
    return made.model_copy(update={"result": result.model_copy(update={**work, "images_per_step": None})})
