"""Metrics of a trial's trace, as the registry defines them, and a trace's tables of one step for `labkit trace FILE`.

A profiler does not slow a GPU's kernels, only the host that launches them. So the busy time of a traced step is divided
by the time of a *timed* step. On a CPU the profiler slows the operators too, so their share is of the traced time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.statistics import t_quantile
from workbook.records import Record
from workbook.records.after_traces import busy_step_s
from workbook.records.traced import (
    ALGORITHMS_HOLD_SINCE,
    RULES,
    CallClass,
    Copies,
    Direction,
    Piece,
    Total,
    Traced,
    Untraced,
)
from workbook.results.in_time import blocks_in_time
from workbook.results.missing import Missing, present
from workbook.statistics import CONFIDENCE

# What the NYU paper profiled as the backward pass: `zero_grad`, `backward` and the optimiser's step.
WAY_BACK = ("backward", "optimiser")
SORTED_BEFORE = (
    "kernels of these records were sorted by earlier rules, which put part of what an FFT multiplies under Winograd, "
    "implicit matrix product and element-wise, and matrix products of one convolution of a backward pass under the "
    "Winograd of the other; `FORCE=1` measures again"
)
# The parts of a step's memory, in the order of a figure.
MEMORY = ("weights", "gradients", "optimiser", "activations", "inputs", "workspace")
FEWEST_PIECES = 4  # that show how far one of them lies from the others
HOST_COPIES: tuple[Direction, ...] = ("host_to_device", "device_to_host")


def trace_of(record: Record) -> Traced | None:
    """Return the trace of a record; None if it has none."""
    trace = record.blocks.trace if record.blocks else None
    return trace if isinstance(trace, Traced) else None


def _why_none(record: Record) -> str:
    """Return why a record has no trace, or else why its trace lacks something."""
    trace = record.blocks.trace if record.blocks else None
    if trace is None:
        return "no steps were traced"
    if isinstance(trace, Untraced):
        return trace.reason
    return "; ".join(trace.notes) or "nothing of the kind ran in the traced steps"


def kernels_of(record: Record) -> dict[str, tuple[float, float]]:
    """Return kernel class (CPU: operator class) -> (seconds, count) in a step; {} if earlier rules classified them."""
    traced = trace_of(record)
    return _in_a_step(traced, traced.kernels) if traced else {}


def algorithms_of(record: Record) -> dict[str, tuple[float, float]]:
    """Return algorithm -> (seconds, count) of a step's convolution kernels; {} where `kernels_of` is."""
    traced = trace_of(record)
    return _in_a_step(traced, traced.algorithms) if traced else {}


def _in_a_step(traced: Traced, totals: Mapping[Any, Total]) -> dict[str, tuple[float, float]]:
    if (traced.of == "kernels" and traced.rules < RULES) or not traced.steps:
        return {}
    return {kind: (total.seconds / traced.steps, total.count / traced.steps) for kind, total in totals.items()}


def memory_of(record: Record) -> dict[str, int]:
    """Return part -> bytes of a step's memory; unknown parts are left out.

    The workspace is unknown if earlier trials of the process left memory on the device, which it would include.
    """
    traced = trace_of(record)
    if traced is None or traced.memory is None:
        return {}
    is_alone = record.trial["device"] == "cpu" or record.facts.get("memory_left_bytes") == 0
    held = {part: getattr(traced.memory, part) for part in MEMORY if is_alone or part != "workspace"}
    return {part: size for part, size in held.items() if size is not None}


def _active_share(record: Record, traced: Traced, seconds: float) -> float | None:
    """Return `seconds` of all traced steps as a share of as many timed steps; on a CPU, of the traced steps.

    Above 1, the kernels took longer under the profiler than the timed step. The share is not clipped.
    """
    if traced.of == "operators":
        return seconds / traced.elapsed_s
    return _over(seconds / traced.steps, _step_s(record))


def _step_s(record: Record) -> float | None:
    return blocks_in_time(record).step_s if record.blocks else None


def idle_shares(record: Record, traced: Traced) -> tuple[float, float] | None:
    """Return the idle shares of a GPU in a timed step: waiting for a launch, and idle although work was queued.

    The timed step gives the total of both without the profiler; the trace gives the proportion.
    """
    active = _active_share(record, traced, traced.active_s)
    if active is None or traced.launch_gap_s is None or traced.queue_gap_s is None:
        return None
    gaps_s = traced.launch_gap_s + traced.queue_gap_s
    launch, idle = traced.launch_gap_s / gaps_s if gaps_s else 0.0, max(1 - active, 0.0)
    return idle * launch, idle * (1 - launch)


def _launch_gap_share(record: Record, traced: Traced) -> float | None:
    shares = idle_shares(record, traced)
    return shares[0] if shares else None


def _waiting_share(record: Record, traced: Traced) -> float | None:
    if traced.of == "operators":
        return max(1 - traced.busy_s / traced.elapsed_s, 0.0)
    return _launch_gap_share(record, traced)


def _over(part: float, whole: float | None) -> float | None:
    """Return `part / whole`; None if `whole` is 0 or unknown."""
    return part / whole if whole else None


def _of_kernels_and_copies(seconds: float, traced: Traced) -> float | None:
    return _over(seconds, traced.kernel_s + sum(copies.seconds for copies in traced.copies.values()))


def _winograd_share(_: Record, traced: Traced) -> float | None:
    if traced.rules < ALGORITHMS_HOLD_SINCE:
        raise Missing(SORTED_BEFORE)
    winograd = traced.algorithms.get("winograd")
    seconds = winograd.seconds if winograd else 0.0
    return _of_kernels_and_copies(seconds, traced) if traced.algorithms else None  # else no convolution ran


def _share_of_calls(kind: CallClass, parts: Sequence[Mapping[CallClass, Total]]) -> float | None:
    """Return the share of a class of calls in the time of all API calls of these parts of a step."""
    whole = sum(total.seconds for calls in parts for total in calls.values())
    return _over(sum(calls[kind].seconds for calls in parts if kind in calls), whole)


def _way_back(traced: Traced) -> list[Mapping[CallClass, Total]]:
    """Return the calls of the sections that the NYU paper profiled as the backward pass; [] if the trace lacks them."""
    calls = [traced.sections[name].calls for name in WAY_BACK if name in traced.sections]
    return [*calls] if len(calls) == len(WAY_BACK) else []


def _host_copies(traced: Traced) -> list[Copies]:
    return [traced.copies[name] for name in HOST_COPIES if name in traced.copies]


def _piece_deviation(traced: Traced, seconds: Callable[[Piece], float]) -> float | None:
    """Return within what relative distance of the rest of its trace 95 % of the pieces lie: 0.1 for 1/1.1 to 1.1.

    Each piece in turn is a sample of a few steps. The distances of a step's seconds are normal on the logarithm.
    """
    if (pieces := len(traced.pieces)) < FEWEST_PIECES:
        raise Missing(f"the trace has {pieces} of the {FEWEST_PIECES} pieces that show how samples of it differ")
    steps = np.array([piece.steps for piece in traced.pieces])
    spent_s = np.array([seconds(piece) for piece in traced.pieces])
    if not (spent_s > 0).all():
        return None
    over_rest = spent_s / steps * (steps.sum() - steps) / (spent_s.sum() - spent_s)
    return float(np.expm1(t_quantile(CONFIDENCE, np.inf) * np.sqrt(np.mean(np.log(over_rest) ** 2))))


def _copy_bytes(_: Record, traced: Traced) -> float | None:
    """Return the median size of a copy between host and device, in the direction with the most copies."""
    copies = _host_copies(traced)
    return float(max(copies, key=lambda direction: direction.count).median_bytes) if copies else None


# A function returns None if nothing of the kind ran.
_METRICS: dict[str, Callable[[Record, Traced], float | None]] = {
    "compute_utilisation": lambda record, traced: _active_share(record, traced, traced.busy_s),
    "launch_gap_share": _launch_gap_share,
    "waiting_share": _waiting_share,
    "copy_share": lambda _, traced: _of_kernels_and_copies(
        sum(copy.seconds for copy in traced.copies.values()), traced
    ),
    "broadcast_share": lambda _, traced: _of_kernels_and_copies(traced.broadcast_s, traced),
    "winograd_share": _winograd_share,
    "maxpool_backward_share": lambda _, traced: _over(traced.max_pool_backward_s, traced.kernel_s),
    "launch_api_share": lambda _, traced: _share_of_calls("launch", [traced.calls]),
    "cleanup_api_share": lambda _, traced: _share_of_calls("clean_up", [traced.calls]),
    "memory_api_share": lambda _, traced: _share_of_calls("memory", [traced.calls]),
    "backward_launch_api_share": lambda _, traced: _share_of_calls("launch", _way_back(traced)),
    "backward_cleanup_api_share": lambda _, traced: _share_of_calls("clean_up", _way_back(traced)),
    "backward_memory_api_share": lambda _, traced: _share_of_calls("memory", _way_back(traced)),
    "kernel_overlap_share": lambda _, traced: _over(traced.overlapping_s, traced.busy_s),
    "copy_overlap_share": lambda _, traced: _over(traced.copy_beside_kernel_s, traced.copy_s),
    "copy_bytes": _copy_bytes,
    "copy_bytes_per_s": lambda _, traced: _over(
        sum(copy.bytes for copy in _host_copies(traced)), sum(copy.seconds for copy in _host_copies(traced))
    ),
    # As in the CERN paper: over the profiled steps themselves, including the profiler's slowdown.
    "profiled_utilisation": lambda _, traced: traced.busy_s / traced.elapsed_s,
    "busy_step_s": lambda record, _: busy_step_s(record),
    "kernels_per_step": lambda _, traced: sum(total.count for total in traced.kernels.values()) / traced.steps,
    "traced_step_s": lambda _, traced: traced.elapsed_s / traced.steps,
    "piece_busy_deviation": lambda _, traced: _piece_deviation(traced, lambda piece: piece.busy_s),
    "piece_step_deviation": lambda _, traced: _piece_deviation(traced, lambda piece: piece.elapsed_s),
    "trace_slowdown": lambda record, traced: _over(traced.elapsed_s / traced.steps, _step_s(record)),
    "exchange_s": lambda _, traced: traced.exchange_s / traced.steps,
    "exposed_exchange_s": lambda _, traced: traced.exposed_exchange_s / traced.steps,
    "hidden_exchange_share": lambda _, traced: traced.hidden_exchange_share,
}
METRICS = frozenset(_METRICS)
OF_PIECES = ("piece_busy_deviation", "piece_step_deviation")
OF_SHORT_TRACES = ("busy_step_s", "kernels_per_step")
OVER_STEP = {"compute_utilisation", "launch_gap_share", "waiting_share", "trace_slowdown"}  # over the timed step
_ON_CPUS = {
    *("compute_utilisation", "waiting_share", "profiled_utilisation", "maxpool_backward_share"),
    *("busy_step_s", "traced_step_s", "trace_slowdown", *OF_PIECES),
}
OF_GPUS = METRICS - _ON_CPUS - {"exchange_s", "exposed_exchange_s", "hidden_exchange_share"}


def value(record: Record, metric: str) -> float:
    """Return a metric of a record's trace in SI units. Raise Missing without a trace or without events of the kind.

    Those of `OF_SHORT_TRACES` may also be facts, of a short trace of which nothing else is kept.
    """
    traced = trace_of(record)
    if traced is None:
        return present(record.number(metric) if metric in OF_SHORT_TRACES else None, _why_none(record))
    if traced.of == "operators" and metric in OF_GPUS:
        raise Missing("on a CPU operators are traced, which show neither kernels nor copies nor calls of the CUDA API")
    return present(_METRICS[metric](record, traced) if traced.steps else None, _why_none(record))


def label(record: Record, name: str) -> str:
    """Return a label of a record, from its trace (`convolution_kernel`) or its facts. Raise Missing without it."""
    traced = trace_of(record)
    if name != "convolution_kernel" or traced is None:
        return str(present(record.facts.get(name), _why_none(record)))
    if traced.of == "operators":
        raise Missing("on a CPU operators are traced, and an operator's name does not say what it runs")
    return present(traced.convolution_kernel, _why_none(record))


def sentence(traced: Traced) -> str:
    """Return a sentence on the traced steps: their number, device and time."""
    device = "a CPU" if traced.of == "operators" else "a GPU" if traced.devices == 1 else f"{traced.devices} GPUs"
    steps = f"{traced.steps} step{'' if traced.steps == 1 else 's'}"
    return f"{steps} of {device}, {traced.elapsed_s / traced.steps * 1e3:.4g} ms each under the profiler."


def tables(traced: Traced) -> dict[str, pd.DataFrame]:
    """Return title -> table, in ms of a step; empty tables are left out."""
    longest = {f"{kernel.name} ({kernel.algorithm or kernel.kind})": kernel for kernel in traced.longest}
    by_title = {
        "Time of a step (parts overlap)": _time(traced),
        f"What the {traced.of} do": _totals(traced, traced.kernels),
        "Algorithms of convolutions": _totals(traced, traced.algorithms),
        f"Longest {traced.of}": _totals(traced, longest, of_s=traced.kernel_s),
        "Copies": _copies(traced),
        "Calls of CUDA by class": _totals(traced, traced.calls),
        "Longest calls": _totals(traced, traced.calls_by_name),
        "Sections of a step": _sections(traced),
    }
    return {title: table for title, table in by_title.items() if len(table)}


def _time(traced: Traced) -> pd.DataFrame:
    parts = {
        f"any of the {traced.of} ran": traced.busy_s,
        "only copies and fills": traced.active_s - traced.busy_s,
        "waiting for a launch": traced.launch_gap_s,
        "waiting though launched": traced.queue_gap_s,
        "before the first and after the last": traced.edge_gap_s,
        f"two {traced.of} or more at once": traced.overlapping_s,
        "copies": traced.copy_s,
        "copies beside kernels": traced.copy_beside_kernel_s,
        "collectives": traced.exchange_s,
        "collectives alone": traced.exposed_exchange_s,
    }
    rows = [(name, *_share(traced, seconds, traced.elapsed_s)) for name, seconds in parts.items() if seconds]
    return pd.DataFrame(rows, columns=["", "ms", "%"])


def _totals(traced: Traced, totals: Mapping[Any, Total], of_s: float = 0.0) -> pd.DataFrame:
    """Return each total with its share of `of_s`, by default of their sum."""
    whole_s = of_s or sum(total.seconds for total in totals.values())
    rows = [
        (_words(name), *_share(traced, total.seconds, whole_s), total.count / traced.steps)
        for name, total in totals.items()
    ]
    return pd.DataFrame(rows, columns=["", "ms", "%", "count"])


def _copies(traced: Traced) -> pd.DataFrame:
    sizes = [(copies.bytes / traced.steps / 1e6, copies.median_bytes) for copies in traced.copies.values()]
    return _totals(traced, traced.copies).join(pd.DataFrame(sizes, columns=["MB", "median bytes"]))


def _sections(traced: Traced) -> pd.DataFrame:
    step_ms = 1e3 / traced.steps
    rows = [
        (name, section.host_s * step_ms, section.kernel_s * step_ms, section.busy_s * step_ms)
        for name, section in traced.sections.items()
    ]
    return pd.DataFrame(rows, columns=["", "host ms", f"{traced.of} ms", "any of them ms"])


def _share(traced: Traced, seconds: float, of_s: float) -> tuple[float, float]:
    return seconds / traced.steps * 1e3, 100 * seconds / of_s if of_s else float("nan")


def _words(name: str) -> str:
    """Return a class of the code (`matrix_product`) in words; names of kernels and calls stay unchanged."""
    return name.replace("_", " ") if name.replace("_", "").isalpha() and name.islower() else name
