"""How busy the units of a GPU are in single kernels, by Nsight Compute (`ncu`), where it is installed and permitted.

`ncu` runs every kernel several times, to count one thing after the other, so it is given a process of its own that
takes a few steps, and never the one that is timed. Clocks stay as they are (`--clock-control none`): they are part of
what was measured. Caches are not emptied before each kernel (`--cache-control none`), as they are not in a step.
Metrics and options as Nsight Compute's documentation names them (Kernel Profiling Guide; CLI).
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil

from labkit.measure.trace.names import short_name

LIMIT_S = 120.0
NAMED = 10  # of the kernels that are counted
MOST_KERNELS = 300  # of those that the process launches between start and stop of the profiler
TIME = "gpu__time_duration.sum"
# Percent of the most that a unit can do, over all cycles of a kernel.
METRICS = {
    "fp32_activity": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "fp16_activity": "sm__inst_executed_pipe_fp16.avg.pct_of_peak_sustained_elapsed",
    "tensor_activity": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "dram_activity": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
NO_PERMISSION = "ERR_NVGPUCTRPERM"


def counters(command: Sequence[str], environment: Mapping[str, str], *, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Activities of the kernels that a command launches between `cudaProfilerStart` and `cudaProfilerStop`.

    Fractions of 1, weighted by the kernels' times; how many `kernels` they are of, of `most_kernels` that it would have
    counted, and the `longest` by name; or the `reason` why there are none.
    """
    ncu = shutil.which("ncu", path=environment.get("PATH"))
    if ncu is None:
        return {"reason": "Nsight Compute (ncu) is not installed"}
    options = ["--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    options += ["--target-processes", "application-only"]
    options += ["--launch-count", str(MOST_KERNELS), "--metrics", ",".join([TIME, *METRICS.values()])]
    options += ["--csv", "--print-units", "base"]
    # In this process's own session: whoever ends that ends ncu too.
    try:
        process = subprocess.Popen(
            [ncu, *options, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            text=True,
            errors="replace",
        )
    except OSError as error:
        return {"reason": f"ncu could not be started: {error.strerror or error}"}
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"reason": f"ncu was not done within {limit_s:g} s"}
    finally:
        _end(process)
    return what_was_said(said, process.returncode)


def what_was_said(said: str, code: int = 0) -> dict[str, Any]:
    """The activities in what `ncu` printed, or the reason why there are none."""
    if NO_PERMISSION in said:
        return {"reason": f"counters need permission ({NO_PERMISSION}): the driver keeps them for administrators"}
    kernels, names = _kernels(said)
    whole = {one: values for one, values in kernels.items() if values.get(TIME, 0) > 0}
    if not whole:
        errors = [line.removeprefix("==ERROR==").strip() for line in said.splitlines() if line.startswith("==ERROR==")]
        return {"reason": f"ncu counted no kernel: {errors[0] if errors else f'it ended with exit code {code}'}"[:300]}
    found: dict[str, Any] = {
        "kernels": len(whole),
        "most_kernels": MOST_KERNELS,
        "kernel_s": sum(values[TIME] for values in whole.values()) * 1e-9,
        "longest": _longest({one: values[TIME] for one, values in whole.items()}, names),
    }
    for name, metric in METRICS.items():
        of = [(values[metric], values[TIME]) for values in whole.values() if metric in values]
        # A device without such a unit has no number for it.
        found[name] = sum(share * time for share, time in of) / sum(time for _, time in of) / 100 if of else None
    return found


def _longest(times_ns: Mapping[str, float], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The kernels that took most time, by name: this process's own choice of algorithms, which may be another one."""
    together: dict[str, list[float]] = {}
    for one, time in times_ns.items():
        together.setdefault(names[one], []).append(time)
    ordered = sorted(together.items(), key=lambda pair: -sum(pair[1]))[:NAMED]
    return [{"name": name, "count": len(times), "seconds": sum(times) * 1e-9} for name, times in ordered]


def _kernels(said: str) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Numbers by metric of each kernel, and its name.

    `ncu` prints a row a metric, beside lines of its own and of the process.
    """
    lines = iter(said.splitlines())
    header = next((line for line in lines if line.startswith('"ID"')), "")
    rows: Iterable[dict[str, str]] = csv.DictReader(
        (line for line in lines if line.startswith('"')), fieldnames=next(csv.reader([header]), [])
    )
    kernels: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    for row in rows:
        try:
            value = float((row.get("Metric Value") or "").replace(",", ""))
        except ValueError:
            continue  # "n/a"
        kernels.setdefault(row["ID"], {})[row.get("Metric Name") or ""] = value
        names[row["ID"]] = short_name(row.get("Kernel Name") or "")
    return kernels, names


def _end(process: subprocess.Popen[str]) -> None:
    """Nothing of it is left."""
    try:
        started = [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
    except psutil.NoSuchProcess:
        started = []
    for one in started:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            pass
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()
