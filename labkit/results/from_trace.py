"""What a trace says of a trial, in the metrics of the registry.

A GPU's kernels take as long under a profiler as without one; what the profiler slows is the host that launches them. So
the busy time of a traced step is set against the time of a *timed* step. On a CPU the operators themselves are slowed,
and their share is of the traced time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from labkit.records import Record
from labkit.records.traced import (
    ALGORITHMS_HOLD_SINCE,
    RULES,
    CallClass,
    Direction,
    KernelClass,
    Section,
    Total,
    Traced,
    Untraced,
)

# What the NYU paper profiled as the backward pass: `zero_grad`, `backward` and the optimiser's step.
WAY_BACK = ("backward", "optimiser")
SORTED_BEFORE = (
    "kernels of these records were sorted by earlier rules, which put part of what an FFT multiplies under Winograd, "
    "implicit matrix product and element-wise, and matrix products of one convolution of a backward pass under the "
    "Winograd of the other; `FORCE=1` measures again"
)
RENAMED_SINCE = (
    "Kernels of these records were sorted by earlier rules, which put cuDNN's transformations of tensors under layout "
    "and not under convolution, and one of its engines (`convolve_common_engine`) under direct convolution and not "
    "under implicit matrix product; `FORCE=1` measures again."
)
# Of what a step keeps in memory, in the order of a figure.
MEMORY = ("weights", "gradients", "optimiser", "activations", "inputs", "workspace")
HOST_COPIES: tuple[Direction, ...] = ("host_to_device", "device_to_host")


def trace_of(record: Record) -> Traced | None:
    """The trace of a record; None where there is none."""
    found = record.blocks.trace if record.blocks else None
    return found if isinstance(found, Traced) else None


def why_no_trace(record: Record, metric: str = "") -> str:
    """Why a record has no trace, or not what was looked for in it."""
    found = record.blocks.trace if record.blocks else None
    if found is None:
        return "no steps were traced"
    if isinstance(found, Untraced):
        return found.reason
    if metric == "winograd_share" and found.of == "kernels" and found.rules < ALGORITHMS_HOLD_SINCE:
        return SORTED_BEFORE
    if found.of == "operators" and metric in OF_GPUS:
        return "on a CPU operators are traced, which show neither kernels nor copies nor calls of the CUDA API"
    return "; ".join(found.notes) or "nothing of the kind ran in the traced steps"


def kernels_of(record: Record) -> dict[str, tuple[float, float]]:
    """Seconds and number of a step's kernels (of a CPU: operators) by class; empty where earlier rules sorted them."""
    traced = trace_of(record)
    return _in_a_step(traced, traced.kernels) if traced else {}


def algorithms_of(record: Record) -> dict[str, tuple[float, float]]:
    """Seconds and number of a step's convolution kernels by algorithm; empty as `kernels_of`."""
    traced = trace_of(record)
    return _in_a_step(traced, traced.algorithms) if traced else {}


def _in_a_step(traced: Traced, totals: Mapping[Any, Total]) -> dict[str, tuple[float, float]]:
    if (traced.of == "kernels" and traced.rules < RULES) or not traced.steps:
        return {}
    return {kind: (total.seconds / traced.steps, total.count / traced.steps) for kind, total in totals.items()}


def memory_of(record: Record) -> dict[str, int]:
    """Bytes of a step by what they hold, as far as they are known.

    The workspace is unknown where earlier trials of the process have left memory on the device: it is counted in it.
    """
    traced = trace_of(record)
    if traced is None or traced.memory is None:
        return {}
    is_alone = record.trial["device"] == "cpu" or record.facts.get("memory_left_bytes") == 0
    held = {part: getattr(traced.memory, part) for part in MEMORY if is_alone or part != "workspace"}
    return {part: size for part, size in held.items() if size is not None}


def _active_share(record: Record, traced: Traced, seconds: float) -> float | None:
    """Seconds of all traced steps as a share of these steps' time.

    Above 1 kernels took longer under the profiler than the timed step: that is shown, not cut off.
    """
    if traced.of == "operators":
        return seconds / traced.elapsed_s
    step_s = record.blocks.step_s if record.blocks else None
    return seconds / traced.steps / step_s if step_s else None


def _compute_utilisation(record: Record, traced: Traced) -> float | None:
    return _active_share(record, traced, traced.busy_s)


def idle_shares(record: Record, traced: Traced) -> tuple[float, float] | None:
    """Shares of a timed step in which a GPU did nothing: waiting for a launch, and though one was queued.

    How the time without work divides is the trace's; how much of it there is without the profiler is the timed step's.
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


def _of_kernels_and_copies(seconds: float, traced: Traced) -> float | None:
    whole = traced.kernel_s + sum(one.seconds for one in traced.copies.values())
    return seconds / whole if whole and traced.of == "kernels" else None


def _copy_share(_: Record, traced: Traced) -> float | None:
    return _of_kernels_and_copies(sum(one.seconds for one in traced.copies.values()), traced)


def _broadcast_share(_: Record, traced: Traced) -> float | None:
    return _of_kernels_and_copies(traced.broadcast_s, traced)


def _winograd_share(_: Record, traced: Traced) -> float | None:
    # No convolution ran, or its time stands elsewhere too.
    if not traced.algorithms or traced.rules < ALGORITHMS_HOLD_SINCE:
        return None
    found = traced.algorithms.get("winograd")
    return _of_kernels_and_copies(found.seconds if found else 0.0, traced)


def _maxpool_backward_share(_: Record, traced: Traced) -> float | None:
    return traced.max_pool_backward_s / traced.kernel_s if traced.kernel_s else None


def _api_share(kind: CallClass) -> Callable[[Record, Traced], float | None]:
    def of(_: Record, traced: Traced) -> float | None:
        whole = sum(one.seconds for one in traced.calls.values())
        return traced.calls[kind].seconds / whole if whole and kind in traced.calls else 0.0 if whole else None

    return of


def _way_back(traced: Traced) -> list[Section]:
    """The sections that the NYU paper profiled as the backward pass; [] where the trace has none."""
    found = [traced.sections[name] for name in WAY_BACK if name in traced.sections]
    return found if len(found) == len(WAY_BACK) else []


def _way_back_share(kind: CallClass) -> Callable[[Record, Traced], float | None]:
    def of(_: Record, traced: Traced) -> float | None:
        sections = _way_back(traced)
        whole = sum(one.seconds for section in sections for one in section.calls.values())
        part = sum(section.calls[kind].seconds for section in sections if kind in section.calls)
        return part / whole if whole else None

    return of


def _kernel_overlap_share(_: Record, traced: Traced) -> float | None:
    return traced.overlapping_s / traced.busy_s if traced.busy_s and traced.of == "kernels" else None


def _copy_overlap_share(_: Record, traced: Traced) -> float | None:
    return traced.copy_beside_kernel_s / traced.copy_s if traced.copy_s else None


def _copy_bytes(_: Record, traced: Traced) -> float | None:
    """The median of the direction between host and device that has most copies."""
    found = [traced.copies[name] for name in HOST_COPIES if name in traced.copies]
    return float(max(found, key=lambda one: one.count).median_bytes) if found else None


def _copy_bytes_per_s(_: Record, traced: Traced) -> float | None:
    found = [traced.copies[name] for name in HOST_COPIES if name in traced.copies]
    seconds = sum(one.seconds for one in found)
    return sum(one.bytes for one in found) / seconds if seconds else None


def _profiled_utilisation(_: Record, traced: Traced) -> float | None:
    """As the CERN paper takes it: over the very steps that were profiled, however long the profiler made them."""
    return traced.busy_s / traced.elapsed_s


def _busy_step_s(_: Record, traced: Traced) -> float | None:
    return traced.busy_s / traced.steps


def _traced_step_s(_: Record, traced: Traced) -> float | None:
    return traced.elapsed_s / traced.steps


def _trace_slowdown(record: Record, traced: Traced) -> float | None:
    step_s = record.blocks.step_s if record.blocks else None
    return traced.elapsed_s / traced.steps / step_s if step_s else None


def _exchange_s(_: Record, traced: Traced) -> float | None:
    return traced.exchange_s / traced.steps


def _exposed_exchange_s(_: Record, traced: Traced) -> float | None:
    return traced.exposed_exchange_s / traced.steps


def _hidden_exchange_share(_: Record, traced: Traced) -> float | None:
    return traced.hidden_exchange_share


_METRICS: dict[str, Callable[[Record, Traced], float | None]] = {
    "compute_utilisation": _compute_utilisation,
    "launch_gap_share": _launch_gap_share,
    "waiting_share": _waiting_share,
    "copy_share": _copy_share,
    "broadcast_share": _broadcast_share,
    "winograd_share": _winograd_share,
    "maxpool_backward_share": _maxpool_backward_share,
    "launch_api_share": _api_share("launch"),
    "cleanup_api_share": _api_share("clean_up"),
    "memory_api_share": _api_share("memory"),
    "backward_launch_api_share": _way_back_share("launch"),
    "backward_cleanup_api_share": _way_back_share("clean_up"),
    "backward_memory_api_share": _way_back_share("memory"),
    "kernel_overlap_share": _kernel_overlap_share,
    "copy_overlap_share": _copy_overlap_share,
    "copy_bytes": _copy_bytes,
    "copy_bytes_per_s": _copy_bytes_per_s,
    "profiled_utilisation": _profiled_utilisation,
    "busy_step_s": _busy_step_s,
    "traced_step_s": _traced_step_s,
    "trace_slowdown": _trace_slowdown,
    "exchange_s": _exchange_s,
    "exposed_exchange_s": _exposed_exchange_s,
    "hidden_exchange_share": _hidden_exchange_share,
}
METRICS = frozenset(_METRICS)
_ON_CPUS = {
    *("compute_utilisation", "waiting_share", "profiled_utilisation", "maxpool_backward_share"),
    *("busy_step_s", "traced_step_s", "trace_slowdown"),
}
OF_GPUS = METRICS - _ON_CPUS - {"exchange_s", "exposed_exchange_s", "hidden_exchange_share"}


def value(record: Record, metric: str) -> float | None:
    """A metric of a record's trace in SI units; None where there is no trace, or nothing of the kind in it."""
    traced = trace_of(record)
    return None if traced is None or not traced.steps else _METRICS[metric](record, traced)


def label(record: Record, name: str) -> str | None:
    """What a record says in words, of its trace (`convolution_kernel`) or by its workload; None where it doesn't."""
    traced = trace_of(record)
    if name == "convolution_kernel" and traced is not None:
        return traced.convolution_kernel if traced.of == "kernels" else None
    said = record.facts.get(name)
    return None if said is None else str(said)


def why_no_label(record: Record) -> str:
    """Why a record does not say `convolution_kernel`."""
    traced = trace_of(record)
    if traced is not None and traced.of == "operators":
        return "on a CPU operators are traced, and an operator's name does not say what it runs"
    return why_no_trace(record)


def earlier_rules(records: Iterable[Record]) -> str:
    """A sentence where kernels were sorted by rules that were changed since; empty where none were."""
    records = list(records)
    if not algorithms_hold(records):
        return f"K{SORTED_BEFORE[1:]}."
    return RENAMED_SINCE if any(rules < RULES for rules in _rules(records)) else ""


def algorithms_hold(records: Iterable[Record]) -> bool:
    """Whether no kernel was sorted by rules that told algorithms of convolutions wrongly."""
    return all(rules >= ALGORITHMS_HOLD_SINCE for rules in _rules(records))


def _rules(records: Iterable[Record]) -> list[int]:
    found = [trace for record in records if (trace := trace_of(record))]
    return [trace.rules for trace in found if trace.of == "kernels"]


def class_shares(traced: Traced) -> dict[KernelClass, float]:
    """Each class's share of the kernels' time; of a CPU, of the operators'. They add up to 1."""
    whole = traced.kernel_s
    return {name: total.seconds / whole for name, total in traced.kernels.items()} if whole else {}
