"""What this process may use of the machine's processors: those of its affinity mask, within its control groups' quota.

A container or a batch system leaves a job fewer than the machine has, and more threads than these take turns.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores this process may run on (an affinity mask or container may allow fewer than the machine has)."""
    allowed = usable_threads()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def usable_threads() -> int:
    """Threads this process can run at once: processors of its affinity mask, no more than its control groups allow."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_quota(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """Processors' worth of time that control groups (version 2, or 1) leave this process; None without a limit."""
    try:
        lines = own.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    quotas = []
    for hierarchy, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if hierarchy == "0":
            root, read = cgroups, _quota_2
        elif "cpu" in controllers.split(","):
            root, read = cgroups / "cpu", _quota_1
        else:
            continue
        group = root / path.lstrip("/")
        # Every group above limits too; in a container the root that it sees is its own.
        for folder in (one for one in (group, *group.parents) if one == root or root in one.parents):
            quotas += [quota] if (quota := read(folder)) else []
    return min(quotas, default=None)


def _quota_2(group: Path) -> float | None:
    """Of `cpu.max`: microseconds of processor time in a period, or `max`, and the period."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_1(group: Path) -> float | None:
    """The same of version 1, where -1 is no limit."""
    try:
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text("ascii")) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None
