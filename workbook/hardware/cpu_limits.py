"""The processors that this process may use: those of its affinity mask, within its control groups' quota.

A container or batch system leaves a job fewer processors than the machine has. Additional threads take turns on them.
"""

from __future__ import annotations

import psutil


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
