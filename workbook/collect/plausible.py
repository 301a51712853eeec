"""Whether the times of a record fit what else it holds: clocks, device time, traces, energy and the hardware's peaks.

Times that were divided by ten contradict at least one of these. Beside each limit stands the largest value of the
committed records, which is below it, or for `QUERIES` the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from labkit.sensors import GPU
from workbook.hardware.profile import Profile
from workbook.records import Blocks, Record
from workbook.results.roofline import nominal_of
from workbook.words import number, quantity

CLOCKS = 1.05  # two clocks of one process (1.00)
WINDOW = 2.0  # the timed part with the bursts between its blocks, over the blocks (1.40)
BUSY = {"kernels": 1.5, "operators": 4.0}  # time under a profiler over time without it (1.19 and 2.14)
POWER = 1.25  # over the boards' limit (1.07: a window of bursts is longer than its blocks)
RATE = 1.05  # of a matrix product or a copy, over the peak (0.91)
QUERIES = 0.25  # at least: latencies of queries, one after the other, over the time of all (smallest 0.49)
CONVOLUTIONS = 2.5  # Winograd's convolutions need 2.25 times fewer FLOP than are counted (0.90)
APART, LONG_S, FEWEST = 2.0, 5.0, 3  # time between starts over what the first took (1.03), where it is long


def contradictions(record: Record, profile: Profile) -> list[str]:
    """Return what the times of a record contradict, in numbers, as parts of a sentence; [] if they fit."""
    if record.status != "ok":
        return []
    blocks = record.blocks
    return [*(_of_blocks(record, blocks, profile) if blocks else ()), *_of_clock(record)]


def contradiction_of_starts(records: Sequence[Record]) -> str:
    """Return what the starts of runs contradict, as part of a sentence: a process begins a trial when one has ended.

    The median decides, because somebody may set the clock of a machine. An empty text means that nothing contradicts.
    """
    rows = [(record.process.id, record.process.position, record.started_at, record.wall_s) for record in records]
    frame = pd.DataFrame(rows, columns=["process", "position", "started_at", "wall_s"])
    frame = frame.sort_values(["process", "position"], ignore_index=True)
    started = pd.to_datetime(frame["started_at"], errors="coerce", format="ISO8601", utc=True)
    apart_s = -started.diff(-1).dt.total_seconds()
    following = frame.shift(-1)
    follows = (following["process"] == frame["process"]) & (following["position"] == frame["position"] + 1)
    long = follows & (apart_s > LONG_S)
    if long.sum() < FEWEST or not (apart_s[long] / frame["wall_s"][long]).median() > APART:
        return ""
    return (
        f"runs that began {number(apart_s[long].median())} s apart in one process take "
        f"{number(frame['wall_s'][long].median())} s (medians)"
    )


def _of_blocks(record: Record, blocks: Blocks, profile: Profile) -> Iterator[str]:
    step_s, trace = blocks.step_s, blocks.trace
    step = f"a step takes {quantity(step_s, 'step_s')}"
    if trace and trace.kind == "trace" and trace.steps and trace.busy_s > BUSY[trace.of] * step_s * trace.steps:
        yield f"{trace.of} ran for {quantity(trace.busy_s / trace.steps, 'step_s')} of a traced step, and {step}"
    for power_w in _powers_w(record, blocks) if profile.power_limit_w and record.trial["device"] == "cuda" else ():
        if power_w > POWER * (profile.power_limit_w or 0):
            yield f"energy over time is {number(power_w)} W, and the boards' limit is {number(profile.power_limit_w)} W"
            break
    peaks = nominal_of(profile, record.as_trial)
    margin = RATE if record.trial["workload"] == "matmul" else CONVOLUTIONS
    rate, peak = blocks.rate(blocks.flop_per_step), (peaks.flop_per_s or 0) * record.devices_used
    if rate and peak and rate > margin * peak:
        yield f"{step} with {quantity(rate, 'flop_per_s')}, and the peak is {quantity(peak, 'flop_per_s')}"
    copied = blocks.rate(blocks.bytes_per_step) if record.trial["workload"] == "memory_copy" else None
    memory = peaks.bytes_per_s
    if copied and memory and copied > RATE * memory:
        yield f"a copy has {quantity(copied, 'bytes_per_s')}, and the peak is {quantity(memory, 'bytes_per_s')}"
    if blocks.device_s and sum(blocks.device_s) > CLOCKS * blocks.timed_s:
        yield f"the device's clock says {number(sum(blocks.device_s))} s, and the host's {number(blocks.timed_s)} s"
    queries_s = record.phases_s.get("queries", 0.0)
    answered_s = sum(blocks.queries.latency_ns) / 1e9 if blocks.queries else queries_s
    if answered_s < QUERIES * queries_s:
        yield f"queries take {number(answered_s)} s, and the process's clock says {number(queries_s)} s"
    window = record.telemetry and record.telemetry.windows.get("timed")
    if window and not blocks.timed_s / CLOCKS <= window.length_s <= WINDOW * blocks.timed_s:
        yield f"telemetry covers {number(window.length_s)} s of blocks that last {number(blocks.timed_s)} s"


def _powers_w(record: Record, blocks: Blocks) -> Iterator[float]:
    """Yield the power of all GPUs by the energy windows and by the sampled power, over the time of the blocks.

    A counter without a value is left out, so the power is then too low and contradicts nothing by itself.
    """
    telemetry, images_per_s = record.telemetry, blocks.rate(blocks.images_per_step)
    if telemetry is None or record.trial.get("nodes", 1) > 1:  # telemetry is of the first node alone
        return
    joules = sum(j for of in telemetry.energy for source, j in of.energy_j.items() if j and source.startswith(GPU))
    images = sum(of.images or 0 for of in telemetry.energy)
    if images and images_per_s:
        yield joules / images * images_per_s
    if window := telemetry.windows.get("timed"):
        read = [
            of["power_w"].mean for source, of in window.sources.items() if source.startswith(GPU) and "power_w" in of
        ]
        yield sum(read) * window.length_s / blocks.timed_s


def _of_clock(record: Record) -> Iterator[str]:
    """Yield what contradicts the clock of the process, which times a trial's phases apart from its steps."""
    seconds = record.blocks.timed_s if record.blocks else 0.0
    seconds += sum(epoch.train_s + epoch.val_s for epoch in record.epochs.epochs) if record.epochs else 0.0
    seconds += sum(epoch.seconds for epoch in record.reads.epochs) if record.reads else 0.0
    timed_s = record.phases_s.get("timed", seconds)
    if timed_s > CLOCKS * seconds or seconds > CLOCKS * record.wall_s:
        yield (
            f"the process's clock says {number(timed_s)} s for the timed part and {number(record.wall_s)} s for all, "
            f"and the times add up to {number(seconds)} s"
        )
