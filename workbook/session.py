"""What a report or an open study measures with: the hardware, the folder of its records, and the user's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbook.hardware.environment import recorded_variables
from workbook.hardware.host import Host
from workbook.hardware.matching import device_indices
from workbook.hardware.profile import Profile
from workbook.records.store import Store

OPTIONS = ("weights", "reuters", "network", "batches")  # parameters that only the notebooks have which use them


@dataclass(frozen=True, kw_only=True)
class Session:
    """The settings of a measurement, which reports, notebooks and worker processes receive and never change.

    `weights` is the folder of WEIGHTS=, `reuters` the file of REUTERS=, and `network` the file or name of NETWORK=.
    Paths are absolute. `batches` are the sizes of BATCH=. Each is None without its option.
    `environment` holds the variables that frameworks read and that worker processes inherit.
    """

    profile: Profile
    host: Host
    store: Store
    scale: str = "quick"
    data: str = ""
    weights: Path | None = None
    reuters: Path | None = None
    network: str | None = None
    batches: str | None = None
    keeps_traces: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(recorded_variables()))

    @property
    def devices(self) -> list[int]:
        """The driver's numbers of the GPUs that the profile uses on this host; empty for a CPU."""
        return device_indices(self.profile, self.host) if self.profile.device.kind == "cuda" else []

    def parameters(self, mode: str) -> dict[str, Any]:
        """Return the parameters of a notebook that shows this session. Options that were not given are left out."""
        given = {name: str(path) for name in OPTIONS if (path := getattr(self, name)) is not None}
        return {"hw": self.profile.name, "scale": self.scale, "mode": mode, "data": self.data, **given}
