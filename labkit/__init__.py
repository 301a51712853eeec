"""labkit: networks, images, timers and sensors for scripts and notebooks that measure training and inference.

    model  = labkit.build("resnet50", image_px=32)
    images = labkit.loader("synthetic32", batch=256)
    timing = labkit.time_step(step, images_per_step=256)
    with labkit.sample() as sampled: ...

`labkit.open_data` gives whole data sets as arrays, `labkit.count` the parameters and FLOP of a network. labkit is not
aware of profiles, studies, records, claims and pages. Importing it imports no framework: each name loads its module on
first use.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes 10 ms
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.3.0"  # the middle number is the protocol of records

_PLACES = {
    "build": "labkit.models",
    "count": "labkit.models",
    "loader": "labkit.data.image_loader",
    "open_data": "labkit.data",
    "time_step": "labkit.timing.step",
    "sample": "labkit.telemetry.sampling",
}
__all__ = [*_PLACES, "__version__"]  # noqa: PLE0604 - the names are texts


_ROOMS = ("data", "errors", "models", "telemetry", "timing")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"labkit.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*_PLACES, *_ROOMS])
