"""The processors that this process may use: those of its affinity mask, within its control groups' quota.

A container or batch system leaves a job fewer processors than the machine has. Additional threads take turns on them.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Return how many cores this process may use; an affinity mask or container may allow fewer than there are."""
    allowed = usable_threads()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def usable_threads() -> int:
    """Return how many threads this process can run at once: its affinity mask's processors within the CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def separate_cores(topology: Path = TOPOLOGY) -> list[int]:
    """Return the first processor of each core that the affinity mask allows, grouped by package (socket).

    Hyperthread siblings share a core. A processor of unknown topology counts as a core. Needs Linux.
    """
    first: dict[tuple[int, str], int] = {}
    for number in sorted(os.sched_getaffinity(0)):
        about = topology / f"cpu{number}" / "topology"
        try:
            package = (about / "physical_package_id").read_text("ascii")
            siblings = (about / "thread_siblings_list").read_text("ascii")
            first.setdefault((int(package), siblings), number)
        except (OSError, ValueError):
            first[0, str(number)] = number
    return [number for _, number in sorted((package, number) for (package, _), number in first.items())]


def cpu_quota(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """Return the CPU quota in processors that control groups (version 2 or 1) set; None without a limit."""
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
        # Every parent group limits too. In a container the visible root is the container's own group.
        for folder in (parent for parent in (group, *group.parents) if parent == root or root in parent.parents):
            quotas += [quota] if (quota := read(folder)) else []
    return min(quotas, default=None)


def _quota_2(group: Path) -> float | None:
    """Return quota / period from `cpu.max` (`QUOTA PERIOD` in microseconds); None for the quota `max`."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_1(group: Path) -> float | None:
    """Return quota / period from version 1's files; None for a quota of -1, which means no limit."""
    try:
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text("ascii")) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None
