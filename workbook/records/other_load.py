"""Work of others on a machine around a trial, seen in the pauses before and after the trial, in which labkit sleeps."""

from __future__ import annotations

from labkit.sensors import BUSY_GPU, HELD_BYTES
from labkit.telemetry.summary import Telemetry, Window

# The share of the processors that others use. Of 4,500 committed runs on 13 machines, 8 on a machine of two cores reach
# it, and none reaches BUSY_GPU. A GPU works longer than its pause before a trial, so only that pause counts.
BUSY_PROCESSORS = 0.5


def other_load(telemetry: Telemetry | None, *, first: bool = False) -> str:
    """Return what others used in the pauses around a trial, for readers; empty if it was little or is unknown.

    The processors count if others use half of them, before the trial and after it (if there was a reading). Memory
    counts only before the `first` trial of a process: later it may be the process's own. No list of processes is read,
    because a container shows none of others.
    """
    if telemetry is None:
        return ""
    before, after = (telemetry.windows.get(name) for name in ("idle_before", "after"))
    used = []
    share = _mean(before, "host", "cpu_utilisation") or 0.0
    later = _mean(after, "host", "cpu_utilisation")
    share = share if later is None else min(share, later)
    if share >= BUSY_PROCESSORS:
        used.append(f"{share:.0%} of the processors")
    for source in sorted(before.sources) if before else ():
        share = _mean(before, source, "utilisation") or 0.0
        if share >= BUSY_GPU:
            used.append(f"{source} for {share:.0%} of the time")
        held = (_mean(before, source, "memory_bytes") or 0.0) if first else 0.0
        if held >= HELD_BYTES:
            used.append(f"{held / 2**30:.0f} GiB of {source}")
    return " and ".join(used)


def _mean(window: Window | None, source: str, metric: str) -> float | None:
    statistic = window.sources.get(source, {}).get(metric) if window else None
    return statistic.mean if statistic else None
