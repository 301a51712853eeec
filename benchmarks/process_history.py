"""Does a process launch kernels more slowly after it has traced or compiled a step?

Short runs of launch-bound loops are faster than long ones, and only long runs trace and compile. Each line is a fresh
process: launches/s of tiny operations at its start and after an event, in five bursts each.

    python benchmarks/process_history.py [--processes 3]

`TEARDOWN_CUPTI=1` asks Kineto to detach CUPTI after a trace.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

EVENTS = ("none", "trace", "ten traces", "compile", "trace with TEARDOWN_CUPTI=1")
LAUNCHES, BURSTS = 30_000, 5


def launches_per_s() -> float:
    """Return the median rate of bursts of tiny operations on the GPU."""
    import torch

    value, rates = torch.zeros(1, device="cuda"), []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            value.add_(1)
        torch.cuda.synchronize()
        rates.append(LAUNCHES / (time.perf_counter() - began))
    return statistics.median(rates)


def happen(event: str) -> None:
    """Trace a small step once or ten times, or compile it, as the workbook does; `none` waits as long."""
    import torch

    layer = torch.nn.Linear(64, 64, device="cuda")
    batch = torch.randn(64, 64, device="cuda")
    if "trace" in event:
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        for _ in range(10 if event.startswith("ten") else 1):
            with torch.profiler.profile(activities=kinds):
                layer(batch).sum().backward()
                torch.cuda.synchronize()
    elif event == "compile":
        torch.compile(layer, fullgraph=True)(batch).sum().backward()
        torch.cuda.synchronize()
    else:
        time.sleep(5)


def in_this_process(event: str) -> None:
    """Print the launch rates before and after an event."""
    launches_per_s()  # loads the kernel
    before = launches_per_s()
    happen(event)
    print(before, launches_per_s())


def main() -> None:
    """Print the ratio after over before of each event, a process at a time, the events in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=3, help="of each event")
    parser.add_argument("--event", choices=EVENTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.event:
        return in_this_process(options.event)
    ratios: dict[str, list[float]] = {event: [] for event in EVENTS}
    for _ in range(options.processes):
        for event in EVENTS:
            command = [sys.executable, __file__, "--event", event]
            own = {"TEARDOWN_CUPTI": "1"} if event.endswith("=1") else {}
            said = subprocess.run(command, env={**os.environ, **own}, check=True, capture_output=True, text=True).stdout
            before, after = map(float, said.split()[-2:])
            ratios[event].append(after / before)
            print(f"{event}: {before:,.0f} launches/s before, {after:,.0f} after ({after / before:.3f})", flush=True)
    for event, values in ratios.items():
        print(f"{event}: {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    return None


if __name__ == "__main__":
    main()
