"""The one place that imports torchvision.

torchvision's wheel from the public index is compiled against a CUDA build of torch. Beside a CPU build its compiled
operators don't load, and `import torchvision` fails with "operator torchvision::nms does not exist", although models
and transforms need none of them. Declaring the two operators' schemas first, where they are missing, lets it import.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[Any] = []  # a Library that is collected takes its operators with it


def import_torchvision() -> ModuleType:
    """torchvision, with its models and transforms."""
    import torch

    if torch.version.cuda is None and not _declared:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(schema)
        _declared.append(library)
    return importlib.import_module("torchvision")
