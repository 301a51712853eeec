"""The names of PyTorch's modules as those of Keras's layers. Needs no framework.

Keras on PyTorch keeps a layer's weights under its name in a module of PyTorch's, where a name holds no point.
"""

from __future__ import annotations


def layer_name(module: str) -> str:
    """The layer's name: `layer1-0-conv1` of `layer1.0.conv1`."""
    return module.replace(".", "-")


def module_name(layer: str) -> str:
    """The module's name again."""
    return layer.replace("-", ".")
