"""Versions that only the frameworks themselves can tell."""

from __future__ import annotations

from typing import Any


def framework_details(trials: list[dict[str, Any]]) -> dict[str, str]:
    """Versions that only the frameworks themselves can tell."""
    if not any(values.get("framework", "torch") == "torch" for values in trials):
        return {}
    import torch

    details = {"torch_build": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if torch.version.cuda and torch.distributed.is_nccl_available():
        details["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {name: str(value) for name, value in details.items() if value is not None}
