"""Records of steps that a process may have launched more slowly, because it had traced a GPU before.

CUPTI stays attached to a process after PyTorch's profiler (https://github.com/pytorch/pytorch/issues/144455) and slows
each later launch. Until 29 November 2026 a process ran on after a trace, and no record says how many traces it had
taken. On H100s and H200s, 283 steps that waited for launches took 1.25 times as long as before a trace (median; at most
3.2). 268 other steps took 1.002 times as long (at most 1.07).
"""

from __future__ import annotations

from workbook.records.record import Record
from workbook.trials.trial import MESSAGES

TRACES_BEFORE = "gpu_traces_before"  # the fact: how many trials of the process had traced a GPU before this trial
BUSY = 0.9  # kernels run during at least this share of a step that slower launches do not delay
SHORT_MESSAGE_S = 0.5e-3  # after a trace, 0.05 ms become up to 0.08 ms, and messages of 0.9 ms repeat within 1 %


def launched_slowly(record: Record) -> bool | None:
    """Return whether an earlier trace may have delayed a record's steps; None if the record alone can't tell.

    Steps on several GPUs also wait for their exchange. Those of a training run, and some others, have no trace that
    says how long kernels run.
    """
    trial, blocks = record.as_trial, record.blocks
    is_first = not record.process.position or record.short  # processes of short passes trace nothing
    if trial.device != "cuda" or is_first or record.number(TRACES_BEFORE) == 0 or "graph" in trial.engine:
        return False
    if blocks is None:
        return None if record.epochs else False
    if trial.workload in MESSAGES:
        return blocks.step_s < SHORT_MESSAGE_S
    if trial.workload == "launch_rate":
        return True
    if not trial.is_host_bound:
        return False
    return waits_for_launches(record) if trial.devices == 1 else None


def waits_for_launches(record: Record) -> bool | None:
    """Return whether kernels run during less than `BUSY` of a step; None if no trace tells."""
    busy_s = busy_step_s(record)
    return None if busy_s is None or record.blocks is None else busy_s < BUSY * record.blocks.step_s


def busy_step_s(record: Record) -> float | None:
    """Return the seconds of a step in which any kernel ran, by a long or a short trace; None without a trace."""
    trace = record.blocks.trace if record.blocks else None
    if trace and trace.kind == "trace":
        return trace.busy_s / trace.steps if trace.steps else None
    return record.number("busy_step_s")
