"""Models by name: builders, parameter counts, FLOP. Importing the package imports no framework; calls may do so."""

from labkit.models.catalogue import (
    MODELS,
    ModelEntry,
    ModelFacts,
    check_data,
    find_model,
    input_bytes,
    input_sizes,
)
from labkit.models.facts import count, known_count
from labkit.models.torch_models import build

__all__ = [
    "MODELS",
    "ModelEntry",
    "ModelFacts",
    "build",
    "check_data",
    "count",
    "find_model",
    "input_bytes",
    "input_sizes",
    "known_count",
]
