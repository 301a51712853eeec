"""Measure the time to read and to analyse a trace: 10,000 steps of AlexNet at batch 4, in pieces of 20 steps.

    python benchmarks/trace_analysis_time.py [--rounds 10]

This script makes the piece, with about the events of such a step: 150 kernels, 300 calls, 300 operators and five
sections, with the arrows between them. It prints the processor seconds of this process for 10,000 steps. The exit code
is 1 if the analysis takes 30 s or more. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from workbook.records.traced import SECTIONS
from workbook.trace import SECTION, STEP, Analysis, read_trace

STEPS, WHOLE, BOUND_S = 20, 10_000, 30.0
KERNELS = (
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_g1_tensor16x8x8_kernel",
    "volta_sgemm_32x128_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> "
    ">(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)",
    "void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float const*, long const*)",
)
OPERATORS = ("aten::conv2d", "aten::cudnn_convolution", "aten::add_", "aten::empty")
CALLS = ("cudaStreamIsCapturing", "cudaLaunchKernel")


def row(name: str, category: str, at_us: float, length_us: float, thread: int = 1, **args: Any) -> dict[str, Any]:
    """Return a row of the profiler's file."""
    about = {"External id": 1, "Ev Idx": 1, **args}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": at_us,
        "dur": length_us,
        "args": about,
    }


def made() -> list[dict[str, Any]]:
    """Return the rows of a piece."""
    rows, at, free, number = [], 1e9, 1e9, 0
    for _ in range(STEPS):
        began = at
        for section in SECTIONS:
            section_began = at
            for _ in range(30):
                number += 1
                outer, inner = OPERATORS[number % 2 * 2 : number % 2 * 2 + 2]
                rows += [row(outer, "cpu_op", at, 12.0), row(inner, "cpu_op", at + 1, 10.0)]
                rows += [
                    row(name, "cuda_runtime", at + 2 + 4 * i, 3.5, correlation=2 * number + i)
                    for i, name in enumerate(CALLS)
                ]
                free = max(free, at + 11)
                launched = {
                    "stream": 7,
                    "device": 0,
                    "correlation": 2 * number + 1,
                    "grid": [12, 1, 1],
                    "block": [256, 1, 1],
                }
                rows.append(row(KERNELS[number % len(KERNELS)], "kernel", free, 8.0, 7, **launched))
                rows += [{"ph": end, "id": number, "ts": at, "cat": "ac2g", "name": "ac2g", "tid": 1} for end in "sf"]
                free, at = free + 9, at + 14
            rows.append(row(SECTION + section, "user_annotation", section_began, at - section_began))
        rows.append(row(STEP, "user_annotation", began, at - began))
        at += 5
    return rows


def main() -> int:
    """Measure and print. Return 1 if the analysis breaks its bound, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        file.write_text(json.dumps({"traceEvents": made()}, indent=1))
        began = time.process_time()
        for _ in range(rounds):
            events = read_trace(file)
        read_s = time.process_time() - began
    analysis = Analysis("kernels")
    analysis.add(events, steps=STEPS)  # a first call, because names are cut and classified only once
    began = time.process_time()
    for _ in range(rounds):
        analysis.add(events, steps=STEPS)
    analysed_s = time.process_time() - began
    times = WHOLE / STEPS / rounds
    print(f"{len(events) / STEPS:.0f} events a step; {WHOLE:,} steps in pieces of {STEPS}:")
    print(f"  reading   {read_s * times:6.1f} s\n  analysing {analysed_s * times:6.1f} s (bound {BOUND_S:.0f} s)")
    return 0 if analysed_s * times < BOUND_S else 1


if __name__ == "__main__":
    sys.exit(main())
