"""The workbook: runs studies on a machine, keeps raw records, and tests published claims against them.

    import workbook as wb

    frame = wb.load("h200", "training").frame()
    wb.estimate(frame.query("model == 'vgg16'"), "images_per_s", by=["mode", "batch"])

The helpers for any script are in `labkit`, which does not know this package. Importing it imports no framework: each
name loads its module on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # importing typing takes 10 ms, in which Ctrl-C prints a traceback: workbook.cli is not there yet
if TYPE_CHECKING:
    from typing import Any

_PLACES = {
    "load": "workbook.results",
    "describe": "workbook.results",
    "estimate": "workbook.results",
    "ratio": "workbook.results",
    "difference": "workbook.results",
    "predict": "workbook.prediction",
    "table": "workbook.show",
    "setup_line": "workbook.show",
    "label": "workbook.words",
    "number": "workbook.words",
    "plots": "workbook.show",
    "open_study": "workbook.study",
    "Workload": "workbook.workloads",
}
__all__ = list(_PLACES)

if "ipykernel" in sys.modules:
    from workbook.paths import warn_of_other_checkout

    warn_of_other_checkout()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'workbook' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
