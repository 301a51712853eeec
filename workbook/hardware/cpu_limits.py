"""The processors and memory that this process may use: those of its affinity mask, within its control groups' limits.

A container or batch system leaves a job fewer processors than the machine has. Additional threads take turns on them.
A process that takes more memory than its group may have is killed, however much the machine has.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

from workbook.hardware.control_groups import cpu_quota

PROCESSORS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Return how many cores this process may use; an affinity mask or container may allow fewer than there are.

    Two hyper-threads of one core are one core.
    """
    allowed = usable_threads()
    return min(allowed, _cores_of_mask() or psutil.cpu_count(logical=False) or allowed)


def _cores_of_mask() -> int | None:
    """Return the number of cores of the affinity mask's processors; None where the system does not tell."""
    try:
        mask = os.sched_getaffinity(0)
        return len({(PROCESSORS / f"cpu{number}/topology/thread_siblings_list").read_text() for number in mask})
    except (AttributeError, OSError):  # a system without affinity masks, a container without this folder
        return None


def usable_threads() -> int:
    """Return how many threads this process can run at once: its affinity mask's processors within the CPU quota."""
    from joblib import cpu_count  # imports multiprocessing, which most uses of this module do without

    quota = cpu_quota()  # of all groups around this process: joblib reads the quota of the outermost only
    return int(cpu_count()) if quota is None else min(int(cpu_count()), max(1, math.ceil(quota)))
