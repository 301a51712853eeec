"""`make test`: the tests of this machine, several at a time; those on a GPU by themselves.

    python -m tests [pytest's arguments]

Tests in `tests/gpu` measure time, energy and memory, so nothing else runs beside them. Without a GPU all run together,
and those that need one are skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from labkit.hardware.cpu_limits import usable_threads
from labkit.places import ROOT

PROCESS_BYTES = 3 * 2**30  # of one that tests, with PyTorch and the processes that its tests start
MOST_PROCESSES = 8  # the longest file decides how long the tests take, and more processes slow it down


def main(arguments: Sequence[str]) -> int:
    """Run the tests; the exit code of the part that failed, else 0."""
    if not Path("/dev/nvidia0").exists():
        return _pytest([*_side_by_side(), *arguments])
    apart = _pytest([*_side_by_side(), "--ignore=tests/gpu", *arguments])
    return _pytest(["tests/gpu", *arguments]) or apart


def _side_by_side() -> list[str]:
    """Options for a process more than there are processors, since tests wait too, as far as memory goes."""
    if importlib.util.find_spec("xdist") is None:
        return []
    number = max(1, min(MOST_PROCESSES, usable_threads() + 1, psutil.virtual_memory().available // PROCESS_BYTES))
    return ["-n", str(number), "--dist", "loadfile", "--no-loadscope-reorder"]


def _pytest(arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
