"""What the kernels of a tuned training step do: where its time goes, and what bounds it.

    python benchmarks/step_profile.py [--case resnet50,32,2048] [--engine compile+graph] [--steps 20]

Times the captured step of a workbook's trial, then replays it under `torch.profiler` and sums kernel time by class.
Prints, a step: its time without the profiler, how long at least one kernel runs, and each class's time, share and
longest kernels. Needs a GPU. It explains and has no bound.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

from labkit.data import open_data
from labkit.measure import CudaClock
from labkit.trial import Trial
from labkit.workloads import Prepared, build_workload

# By what a kernel's name holds, the first that fits. Inductor names its kernels after the operators they fuse.
CLASSES = (
    ("update of the weights", ("_update", "multi_tensor_apply", "fused_sgd")),
    ("input: gather, crop, flip, normalise", ("make_batch",)),
    ("batch norm's backward, fused", ("native_batch_norm_backward",)),
    ("batch norm's forward, fused", ("native_batch_norm", "var_mean", "_native_batch_norm_legit")),
    ("batch norm of cuDNN or ATen", ("batch_norm", "bn_fw", "bn_bw")),
    (
        "convolution or matrix product",
        ("gemm", "conv", "cudnn", "cutlass", "xmma", "nvjet", "wgrad", "dgrad", "winograd"),
    ),
    ("pooling", ("pool",)),
    ("loss", ("softmax", "nll_loss")),
    ("copies and fills", ("memcpy", "memset", "copy", "fill", "zero")),
    ("other element-wise", ("triton_poi", "triton_red", "triton_per", "elementwise", "reduce")),
)


def class_of(kernel: str) -> str:
    """The class of a kernel by its name."""
    name = kernel.lower()
    return next((title for title, parts in CLASSES if any(part in name for part in parts)), "other")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="resnet50,32,2048", help="MODEL,PIXELS,BATCH")
    parser.add_argument("--engine", choices=("graph", "compile+graph"), default="compile+graph")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    model, image_px, batch = options.case.split(",")
    data = open_data("synthetic32")
    trial = Trial(
        model=model,
        image_px=int(image_px),
        batch=int(batch),
        precision="bf16",
        engine=options.engine,
        memory_format="channels_last",
        optimizer="sgd_master",
        loader="device",
        augment=True,
        data_checksum=data.checksum,
    )
    workload = build_workload(trial, data)
    assert isinstance(workload, Prepared)
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    clock = CudaClock()
    clock.time_block(workload.step, options.steps)
    seconds, _ = clock.time_block(workload.step, options.steps)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(options.steps):
            workload.step()
        torch.cuda.synchronize()
    print_classes(profiled, seconds / options.steps, options.steps, f"{model} {image_px} px batch {batch}")
    return 0


def print_classes(profiled: profile, step_s: float, steps: int, title: str) -> None:
    """Kernel time a step by class, and the longest kernels of each."""
    times: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    by_name: dict[str, Counter[str]] = {}
    spans = []
    for event in profiled.events() or []:
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        microseconds = event.time_range.elapsed_us()
        kind = class_of(event.name)
        times[kind] += microseconds
        launches[kind] += 1
        by_name.setdefault(kind, Counter())[event.name] += microseconds
        spans.append((event.time_range.start, event.time_range.end))
    total, busy = sum(times.values()), union(spans)
    print(
        f"{title}: step {1e3 * step_s:.2f} ms without the profiler; kernels {total / steps / 1e3:.2f} ms, at least one "
        f"running {busy / steps / 1e3:.2f} ms"
    )
    for kind, microseconds in times.most_common():
        longest = "; ".join(f"{name[:70]} {us / steps / 1e3:.2f}" for name, us in by_name[kind].most_common(3))
        print(
            f"  {microseconds / total:6.1%} {microseconds / steps / 1e3:7.3f} ms {launches[kind] / steps:5.0f} kernels "
            f" {kind}  [{longest}]"
        )


def union(spans: list[tuple[float, float]]) -> float:
    """How long at least one of the spans runs."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


if __name__ == "__main__":
    sys.exit(main())
