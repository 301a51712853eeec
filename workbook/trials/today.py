"""The networks of today, which a trial names like those of the catalogue: their titles, and what builds them.

They run by the workloads of networks that users bring. Their files are the project's own examples, so that records of
others, which may name one, load nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from labkit.models import Network, open_network
from labkit.models.networks import TASKS, is_file
from workbook.paths import ROOT


class Today(NamedTuple):
    """A network of today: its title, its name or file for `labkit.models.open_network`, and which `TASKS` it has.

    A plan reads the tasks here, because executing the file would import PyTorch.
    """

    title: str
    place: str
    tasks: tuple[str, ...] = TASKS

    @property
    def path(self) -> Path | None:
        """The file; None for a name."""
        return Path(self.place).resolve() if is_file(self.place) else None


TODAY: MappingProxyType[str, Today] = MappingProxyType(
    {
        "resnet50": Today("ResNet-50", "torchvision:resnet50"),  # the papers' network, in the same loop
        "vit_b_16": Today("ViT-B/16", "torchvision:vit_b_16"),
        "convnext_tiny": Today("ConvNeXt-T", "torchvision:convnext_tiny"),
        "swin_t": Today("Swin-T", "torchvision:swin_t"),
        "gpt2_124m": Today("GPT-2 124M", str(ROOT / "examples" / "gpt2.py"), ("loss",)),
        "llama_1b": Today("Llama-like 1B", str(ROOT / "examples" / "decode.py"), ("predict",)),
        "llama_8b": Today("Llama-like 8B", str(ROOT / "examples" / "decode_8b.py"), ("predict",)),
    }
)


def open_today(name: str) -> Network:
    """Return a network of today under its name in trials."""
    return replace(open_network(TODAY[name].place), name=name)
