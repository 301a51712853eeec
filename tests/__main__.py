"""`make test`: the tests of this machine, several at a time.

    python -m tests [pytest's arguments]

A file's tests run in one process. So do all of `tests/gpu`, one after another, since they share the GPU. Without a GPU
they are skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence

import psutil

from labkit.hardware.cpu_limits import usable_threads
from labkit.places import ROOT

PROCESS_BYTES = 3 * 2**30  # of one that tests, with PyTorch and the processes that its tests start
MOST_PROCESSES = 8  # the longest file decides how long the tests take, and more processes slow it down


def main(arguments: Sequence[str]) -> int:
    """Run the tests; pytest's exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *_side_by_side(), *arguments], cwd=ROOT).returncode


def _side_by_side() -> list[str]:
    """Options for a process more than there are processors, since tests wait too, as far as memory goes."""
    if importlib.util.find_spec("xdist") is None:
        return []
    number = max(1, min(MOST_PROCESSES, usable_threads() + 1, psutil.virtual_memory().available // PROCESS_BYTES))
    return ["-n", str(number), "--dist", "loadfile", "--no-loadscope-reorder"]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
