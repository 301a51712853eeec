"""The processors that this process may use: those of its affinity mask, within its control groups' quota.

A container or batch system leaves a job fewer processors than the machine has. Additional threads take turns on them.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Return how many cores this process may use; an affinity mask or container may allow fewer than there are."""
    allowed = usable_threads()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def usable_threads() -> int:
    """Return how many threads this process can run at once: its affinity mask's processors within the CPU quota.

    The quota is that of the control group at the root, which in a container is the container's own.
    """
    from joblib import cpu_count  # imports multiprocessing, which most uses of this module do without

    return int(cpu_count())


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
