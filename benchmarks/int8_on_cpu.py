"""OpenVINO's INT8 on a CPU is at least 1.5x as fast as its FP32, and PyTorch's FP32 is not faster than OpenVINO's.

    python benchmarks/int8_on_cpu.py [--rounds 8] [--threads 2] [--case 32:16 ...]

Predicts with ResNet-50, its batch norms set by real images, in four legs: OpenVINO INT8 and FP32, eager PyTorch, and
tuned PyTorch (batch norm folded, channels last, compiled with frozen weights). Legs run in turns, in both orders, in
one process. Prints ratios with the 95 % interval over the rounds. Bound one: INT8 over OpenVINO's FP32 is at least 1.5,
judged if the CPU has AVX512-VNNI or AMX. Bound two: either PyTorch leg over OpenVINO's FP32 is at most 1.1; otherwise
PyTorch would have to be the tuned FP32 path. The exit code is 1 if a whole interval lies beyond its bound.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch.fx.experimental.optimization import fuse
from torch.nn import functional

from labkit.data import open_data
from labkit.models import build
from workbook.engines.openvino_on_cpu import compile_converted, convert, missing, quantise
from workbook.hardware.host import this_host
from workbook.statistics import log_interval

Predict = Callable[[torch.Tensor], torch.Tensor]
CASES = ("32:1", "32:16", "32:64", "224:1", "224:16")  # image side, pixels : batch
INT8_AT_LEAST, PYTORCH_AT_MOST = 1.5, 1.1
LEG_S = 0.7
CALIBRATION = {32: (50, 25), 224: (4, 25)}  # batches, images per batch; the speed does not depend on them


def main() -> int:
    """Measure and print every case. Return 1 if a bound is missed or OpenVINO is unsupported, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--case", nargs="*", default=CASES, metavar="PX:BATCH")
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(reason)
        return 1
    torch.set_num_threads(options.threads)
    multiplies_bytes = has_vnni_or_amx()
    missed = 0
    for case in options.case:
        px, batch = map(int, case.split(":"))
        speeds = measure(px, batch, options.rounds, options.threads)
        means = ", ".join(f"{name} {log_interval(values).point:,.0f}" for name, values in speeds.items())
        print(f"ResNet-50 {px} px batch {batch}, images/s: {means}")
        missed += judged("OpenVINO INT8", speeds, at_least=INT8_AT_LEAST if multiplies_bytes else None)
        missed += judged("PyTorch eager", speeds, at_most=PYTORCH_AT_MOST)
        missed += judged("PyTorch tuned", speeds, at_most=PYTORCH_AT_MOST)
    return 1 if missed else 0


def measure(px: int, batch: int, rounds: int, threads: int) -> dict[str, list[float]]:
    """Return images/s of each leg in each round."""
    model = settled_model(px)
    images = images_of(px, batch, first=20_000)
    calibration = list(calibration_batches(px))
    network = convert(model, calibration[0])
    quantised = quantise(network, calibration)  # before compilation fixes the batch
    legs: dict[str, Predict] = {
        "OpenVINO FP32": compile_converted(network, precision="fp32", batch=batch, threads=threads),
        "OpenVINO INT8": compile_converted(quantised, precision="int8", batch=batch, threads=threads),
        "PyTorch eager": model,
        "PyTorch tuned": tuned(model),
    }
    speeds: dict[str, list[float]] = {name: [] for name in legs}
    with torch.no_grad():
        calls = {name: max(1, round(LEG_S / seconds(leg, images, 2))) for name, leg in legs.items()}
        for number in range(rounds):
            for name in list(legs)[:: 1 if number % 2 else -1]:
                speeds[name].append(batch * calls[name] / seconds(legs[name], images, calls[name]))
    return speeds


def seconds(predict: Predict, images: torch.Tensor, calls: int) -> float:
    """Return the seconds of `calls` predictions, after one untimed prediction."""
    predict(images)
    began = time.perf_counter()
    for _ in range(calls):
        predict(images)
    return time.perf_counter() - began


def judged(
    name: str, speeds: dict[str, list[float]], *, at_least: float | None = None, at_most: float | None = None
) -> bool:
    """Print a leg's ratio to OpenVINO's FP32 within rounds, and its verdict. Return whether the bound was missed."""
    ratio = log_interval([a / b for a, b in zip(speeds[name], speeds["OpenVINO FP32"], strict=True)])
    assert ratio.low is not None and ratio.high is not None
    verdict, missed = "not judged on this CPU", False
    if at_least is not None:
        missed = ratio.high < at_least
        verdict = f"at least {at_least}: {'MISSED' if missed else 'met' if ratio.low >= at_least else 'undecided'}"
    if at_most is not None:
        missed = ratio.low > at_most
        verdict = f"at most {at_most}: {'MISSED' if missed else 'met' if ratio.high <= at_most else 'undecided'}"
    interval = f"{ratio.point:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}], n = {ratio.n}"
    print(f"    {name} over OpenVINO FP32 {interval}; {verdict}", flush=True)
    return missed


def tuned(model: torch.nn.Module) -> Predict:
    """Return tuned PyTorch: batch norm folded into convolutions, channels last, compiled with frozen weights."""
    folded = fuse(copy.deepcopy(model)).to(memory_format=torch.channels_last)
    compiled = torch.compile(folded, options={"freezing": True})
    return lambda images: compiled(images.contiguous(memory_format=torch.channels_last))


def settled_model(px: int) -> torch.nn.Module:
    """Return ResNet-50 in evaluation mode with batch norms set by images, as initial ones let activations explode."""
    torch.manual_seed(0)
    model = build("resnet50", image_px=px)
    batch = 64 if px == 32 else 16
    with torch.no_grad():
        for number in range(4):
            model(images_of(px, batch, first=10_000 + batch * number))
    return model.eval()


def calibration_batches(px: int) -> Iterator[torch.Tensor]:
    """Return the batches of images from which INT8's ranges are calibrated."""
    batches, batch = CALIBRATION[px]
    return (images_of(px, batch, first=batch * number) for number in range(batches))


def images_of(px: int, count: int, *, first: int) -> torch.Tensor:
    """Return normalised training images of synthetic32, float32 (count, 3, px, px), enlarged if px is not 32."""
    pixels = torch.from_numpy(open_data("synthetic32").train.images[first : first + count].copy())
    images = (pixels.float() / 255 - 0.5) / 0.25
    return images if px == 32 else functional.interpolate(images, size=px, mode="bilinear")


def has_vnni_or_amx() -> bool:
    """Print the CPU's features and return whether it multiplies bytes, which the bound on INT8 requires."""
    host = this_host()
    print("CPU:", host.cpu, *host.cpu_features)
    return any(name in host.cpu_features for name in ("avx512_vnni", "amx_int8"))


if __name__ == "__main__":
    sys.exit(main())
