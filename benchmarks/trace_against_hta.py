"""Compare labkit's analysis of a trace with Holistic Trace Analysis (HTA), on the same file.

    python benchmarks/trace_against_hta.py [TRACE.json.gz ...]

Needs `pip install HolisticTraceAnalysis` in a Python that also has labkit's packages, best a separate virtual
environment. Without files, a trace made here is read, with two streams, gaps, copies and an exchange. Steps are
ignored, because HTA leaves out the last one. For each file, three times of both tools are printed with their ratio: the
time in which the device worked, computed, and stood still between its first and its last event. The exit code is 1 if
a ratio differs from 1 by more than 0.1 %. Printed without a bound: the time the device waited for the host. HTA looks
at each stream alone and counts a whole gap if the next call *began* in it. labkit takes all streams together and counts
the part of a gap before that call had *ended*.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # otherwise HTA truncates times to microseconds

from hta.trace_analysis import TraceAnalysis

from workbook.records.traced import Traced
from workbook.trace import Analysis, read_trace
from workbook.trace.events import ON_DEVICE

BOUND = 1e-3
STEPS = ("ProfilerStep", "labkit step")
# Categories of rows that carry a stream but are no device events: waiting, and ranges as seen by the device.
NO_WORK = ("cuda_sync", "gpu_user_annotation")


def made_here() -> list[dict[str, Any]]:
    """Return rows of 400 kernels, copies and exchanges on two streams. Every tenth is launched late."""
    rows: list[dict[str, Any]] = []
    at, free = 1_000.0, {7: 0.0, 20: 0.0}
    for number in range(1, 401):
        name, category, stream, length = {
            0: ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel", 20, 30.0),
            1: ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 7, 4.0),
        }.get(number % 8, ("ampere_sgemm_128x64_nn", "kernel", 7, 6.0 + number % 5))
        at += 90.0 if number % 10 == 0 else 5.0
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at, "dur": 4.0}
        begun = max(at + 5.0, free[stream])
        free[stream] = begun + length
        launch = {"stream": stream, "device": 0, "context": 1, "correlation": number}
        event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": begun, "dur": length}
        rows += [{**call, "args": {"correlation": number}}, {**event, "args": launch}]
    return rows


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, without steps and rows that are no device work."""
    read = file.read_bytes()
    rows = json.loads(gzip.decompress(read) if file.suffix == ".gz" else read)["traceEvents"]
    return [row for row in rows if not str(row.get("name", "")).startswith(STEPS) and row.get("cat") not in NO_WORK]


def by_hta(file: Path) -> dict[str, float]:
    """Return the times of HTA in seconds, by part."""
    analysis = TraceAnalysis(trace_files={0: str(file)}, trace_dir=str(file.parent))
    breakdown = analysis.get_temporal_breakdown(visualize=False).iloc[0] * 1e-6
    idle = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    waited = idle[idle["idle_category"] == "host_wait"]["idle_time"].sum() * 1e-6
    return {
        "working": breakdown["kernel_time(us)"] - breakdown["idle_time(us)"],
        "computing": breakdown["compute_time(us)"],
        "standing still": breakdown["idle_time(us)"],
        "waiting for the host": waited,
    }


def by_labkit(file: Path) -> tuple[dict[str, float], Traced]:
    """Return the times of labkit in seconds by part, and the traced record."""
    events = read_trace(file)
    analysis = Analysis("kernels")
    analysis.add(events)
    traced = analysis.traced()
    works = events.are(*ON_DEVICE)
    span_s = float(events.ended_s[works].max() - events.began_s[works].min())
    outside_s = traced.elapsed_s - span_s  # before the first kernel and after the last; it counts as host time
    return {
        "working": traced.active_s,
        "computing": traced.busy_s - traced.exposed_exchange_s,
        "standing still": span_s - traced.active_s,
        "waiting for the host": (traced.launch_gap_s or 0.0) - outside_s,
    }, traced


def main() -> int:
    """Compare and print. Return 1 if a ratio breaks its bound, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    broken = 0
    for given in options.files or [None]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rank-0.json"
            rows = rows_of(given) if given else made_here()
            file.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": rows}))
            theirs, (ours, traced) = by_hta(file), by_labkit(file)
        print(f"{given.name if given else 'made here'}: kernels {traced.kernel_s * 1e3:.3f} ms")
        for part, seconds in ours.items():
            ratio = seconds / theirs[part] if theirs[part] else float("nan")
            bound = part != "waiting for the host"
            broken += bound and not abs(ratio - 1) < BOUND
            print(f"  {part:22s} {seconds * 1e3:12.3f} ms, HTA {theirs[part] * 1e3:12.3f} ms, ratio {ratio:.4f}")
        other = traced.kernels.get("other")
        share = other.seconds / traced.kernel_s if other else 0.0
        print(f"  other                  {share:12.2%} of kernel time")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
