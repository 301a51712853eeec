"""Work of others on a machine around a trial, seen in the pauses before and after the trial, in which labkit sleeps."""

from __future__ import annotations

from labkit.telemetry.summary import Telemetry, Window

# Shares of a processor or GPU that others use. Of 4,500 committed runs on 13 machines, 8 on a machine of two cores
# reach BUSY_PROCESSORS, and none BUSY_GPU. A GPU works longer than its pause before a trial, so only that pause counts.
BUSY_PROCESSORS, BUSY_GPU = 0.5, 0.1


def other_load(telemetry: Telemetry | None) -> str:
    """Return what others used in the pauses around a trial, for readers; empty if it was little or is unknown.

    The processors count if others use half of them, before the trial and after it (if there was a reading).
    """
    if telemetry is None:
        return ""
    before, after = (telemetry.windows.get(name) for name in ("idle_before", "after"))
    used = []
    share = _share(before, "host", "cpu_utilisation") or 0.0
    later = _share(after, "host", "cpu_utilisation")
    share = share if later is None else min(share, later)
    if share >= BUSY_PROCESSORS:
        used.append(f"{share:.0%} of the processors")
    for source in sorted(before.sources) if before else ():
        share = _share(before, source, "utilisation") or 0.0
        if share >= BUSY_GPU:
            used.append(f"{source} for {share:.0%} of the time")
    return " and ".join(used)


def _share(window: Window | None, source: str, metric: str) -> float | None:
    statistic = window.sources.get(source, {}).get(metric) if window else None
    return statistic.mean if statistic else None
