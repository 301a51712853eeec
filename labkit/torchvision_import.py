"""Import torchvision. No other module of labkit imports torchvision directly.

torchvision's wheel from the public index is compiled against a CUDA build of torch. With a CPU build of torch, its
compiled operators don't load, and `import torchvision` fails with "operator torchvision::nms does not exist". Models
and transforms need none of these operators. Declaring the two missing schemas first makes the import succeed.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[Any] = []  # keeps the Library alive, because its garbage collection removes the operators


def import_torchvision() -> ModuleType:
    """Return the torchvision module, with its models and transforms."""
    import torch

    if torch.version.cuda is None and not _declared:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(schema)
        _declared.append(library)
    return importlib.import_module("torchvision")


def why_no_decoder() -> str | None:
    """Return why torchvision cannot decode JPEG files, as a sentence without a full stop; None if it can."""
    import torch

    import_torchvision()
    importlib.import_module("torchvision.io")  # loads the library with the decoders, if it can
    if hasattr(torch.ops.image, "decode_jpeg"):
        return None
    return (
        f"torchvision's JPEG decoder does not load beside torch {torch.__version__}: install both packages from the "
        "same index"
    )
