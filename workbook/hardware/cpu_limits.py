"""The processors and memory that this process may use: those of its affinity mask, within its control groups' limits.

A container or batch system leaves a job fewer processors than the machine has. Additional threads take turns on them.
A process that takes more memory than its group may have is killed, however much the machine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


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


def usable_memory_bytes(own: Path = OWN_GROUPS, groups: Path = GROUPS) -> int:
    """Return how much memory this process may use: the machine's, or the least limit of its control groups, in bytes.

    A group is limited by those above it too. A container may show only the groups from its own on.
    """
    return min([psutil.virtual_memory().total, *_memory_limits(own, groups)])


def _memory_limits(own: Path, groups: Path) -> Iterator[int]:
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "memory" not in controllers.split(","):
            continue
        # Version 1 names the controller; version 2 does not, and stands in a folder of its own beside version 1.
        roots = [groups / controllers, groups / "memory"] if controllers else [groups, groups / "unified"]
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        group = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
        for place in (root / above / file for root in roots for above in (group, *group.parents)):
            try:
                text = place.read_text(encoding="ascii").strip()
            except OSError:
                continue
            if text.isdecimal():  # else "max"
                yield int(text)
