"""Run the tests of this machine in several processes (`make test`, `make test-all`).

    python -m tests [pytest's arguments]

One process runs all tests of a file, and one process runs all of `tests/gpu`, whose tests share the GPU. Without a GPU,
pytest skips those and prints the reason.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence

import psutil

from workbook.hardware.limits import usable_threads
from workbook.paths import ROOT

PROCESS_BYTES = 3 * 2**30  # memory of a pytest process, with PyTorch and the processes that its tests start
MOST_PROCESSES = 8  # the longest file sets the total time, and more processes slow that file down


def main(arguments: Sequence[str]) -> int:
    """Run the tests and return pytest's exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *_side_by_side(), *arguments], cwd=ROOT).returncode


def _side_by_side() -> list[str]:
    """Return options for one process more than usable threads, as tests also wait, or for fewer if memory is short."""
    if importlib.util.find_spec("xdist") is None:
        return []
    number = max(1, min(MOST_PROCESSES, usable_threads() + 1, psutil.virtual_memory().available // PROCESS_BYTES))
    return ["-n", str(number), "--dist", "loadfile", "--no-loadscope-reorder"]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
