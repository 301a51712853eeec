"""labkit: measures how hardware trains and runs neural networks, and tests published claims against the measurements.

Helpers for any script or notebook:

    model  = labkit.build("resnet50", image_px=32)
    images = labkit.loader("synthetic32", batch=256)
    timing = labkit.time_step(step, images_per_step=256)
    with labkit.sample() as sampled: ...

Recorded results:

    frame = labkit.load("h200", "training").frame()
    labkit.estimate(frame.query("model == 'vgg16'"), "images_per_s", by=["mode", "batch"])

Importing labkit imports no framework: each name loads its module on first use.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes 10 ms, in which Ctrl-C prints a traceback: labkit.cli is not there yet
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "build": "labkit.models",
    "loader": "labkit.helpers",
    "time_step": "labkit.helpers",
    "sample": "labkit.helpers",
    "load": "labkit.results",
    "describe": "labkit.results",
    "estimate": "labkit.results",
    "ratio": "labkit.results",
    "difference": "labkit.results",
    "table": "labkit.show",
    "setup_line": "labkit.show",
    "label": "labkit.show",
    "number": "labkit.show.quantities",
    "plots": "labkit.show",
    "open_study": "labkit.study",
}
__all__ = [*_PLACES, "__version__"]  # noqa: PLE0604 - the names are texts


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
