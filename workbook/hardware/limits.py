"""The processors and memory that this process may use: those of its affinity mask, within its control groups' limits.

A container or batch system leaves a job fewer processors than the machine has. Additional threads take turns on them.
A process that takes more memory than its group may have is killed, however much the machine has.

Control groups are Linux's cgroups, versions 1 and 2. A group's limit also binds the groups within it. So the least
limit counts, from the process's own group up to the root. A container sees its own group as the root, or by a path
that it cannot open.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

PROCESSORS = Path("/sys/devices/system/cpu")
OWN = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 2**60  # version 1 writes a number near 2^63 for no limit


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


def cpu_quota() -> float | None:
    """Return how many processors' time the groups allow at most, such as 1.5; None without a limit."""
    quotas = []
    for folder in _folders("cpu"):
        version_1 = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        match _words(folder / "cpu.max") or version_1:
            case [allowed, period] if allowed not in ("max", "-1"):
                quotas.append(int(allowed) / int(period))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Return how many bytes of memory the groups allow at most; None without a limit."""
    names = ("memory.max", "memory.limit_in_bytes")  # of versions 2 and 1
    texts = [text for folder in _folders("memory") for name in names for text in _words(folder / name)]
    limits = [int(text) for text in texts if text != "max"]
    return min((limit for limit in limits if limit < UNLIMITED_BYTES), default=None)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of a controller's groups, from this process's own group to the root."""
    for line in _lines(OWN):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            roots = [GROUPS, GROUPS / "unified"]  # mixed systems mount version 2 as `unified`
        elif controller in controllers.split(","):
            roots = [GROUPS / controllers, GROUPS / controller]  # the second may be a link to the first
        else:
            continue
        own = PurePosixPath(path)
        for group in (own, *own.parents):
            yield from (root / group.relative_to("/") for root in roots if ".." not in group.parts)


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(encoding="utf-8").splitlines()
    return []
