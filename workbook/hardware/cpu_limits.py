"""The processors and memory that this process may use: those of its affinity mask, within its control groups' limits.

A container or batch system leaves a job fewer processors than the machine has. Additional threads take turns on them.
A process that takes more memory than its group may have is killed, however much the machine has.
"""

from __future__ import annotations

import math

import psutil

from workbook.hardware.control_groups import cpu_quota


def usable_cores() -> int:
    """Return how many cores this process may use; an affinity mask or container may allow fewer than there are."""
    allowed = usable_threads()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def usable_threads() -> int:
    """Return how many threads this process can run at once: its affinity mask's processors within the CPU quota."""
    from joblib import cpu_count  # imports multiprocessing, which most uses of this module do without

    quota = cpu_quota()  # of all groups around this process: joblib reads the quota of the outermost only
    return int(cpu_count()) if quota is None else min(int(cpu_count()), max(1, math.ceil(quota)))
