"""Models by name: builders, parameter counts, FLOP. Importing the package imports no framework; calls may do so."""

from labkit.models.catalogue import (
    MODELS,
    ModelEntry,
    ModelFacts,
    find_model,
    input_sizes,
)
from labkit.models.facts import count, known_count
from labkit.models.networks import Network, open_network
from labkit.models.torch_models import build, classifiers

__all__ = [
    "MODELS",
    "ModelEntry",
    "ModelFacts",
    "Network",
    "build",
    "classifiers",
    "count",
    "find_model",
    "input_sizes",
    "known_count",
    "open_network",
]
