"""Write a params/<name>.yaml for the hardware of this machine (`make profile`)."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from labkit.devices import Gpu, visible
from labkit.errors import UserError
from workbook.hardware.host import Host
from workbook.hardware.matching import detect
from workbook.hardware.profile import PARAMS


def write_profile(host: Host, params: Path = PARAMS) -> Path:
    """Write a profile for this machine's GPUs and return its path.

    Nominal peaks are left out: a data sheet has them, the driver does not, and the report measures its own ceilings.
    Raise UserError if a profile matches this machine already, or if the file exists.
    """
    profile = detect(host, params)
    if profile is not None:
        raise UserError(
            f"this machine ({host.summary()}) is known already, as {profile.name!r}: params/{profile.name}.yaml. "
            f"`make report` uses it."
        )
    here = [host.gpus[index] for index in visible(host.gpus)]
    gpu = max(here, key=_capability)  # on a mixed machine the first of the most capable cards
    count = sum(candidate.name == gpu.name for candidate in here)
    slug = re.sub(r"[^a-z0-9]+", "_", gpu.name.lower().removeprefix("nvidia").removeprefix(" ")).strip("_") or "gpu"
    path = params / f"{slug}{f'_x{count}' if count > 1 else ''}.yaml"
    device: dict[str, object] = {"pattern": f"^{re.escape(gpu.name)}$", "count": count}
    if gpu.memory_bytes:
        source = "NVML on the machine that wrote this profile"
        device["memory_bytes"] = {"value": float(gpu.memory_bytes), "source": source}
    if gpu.compute_capability:
        device["compute_capability"] = gpu.compute_capability
    if gpu.power_limit_w:
        device["board_power_w"] = {"value": gpu.power_limit_w, "source": "NVML's enforced power limit on that machine"}
    values = {
        "title": f"{count} x {gpu.name}" if count > 1 else gpu.name,
        "description": "Written by `make profile`. Add the nominal peaks, with their source, from the data sheet.",
        "extends": "base/gpu",
        "device": device,
    }
    try:
        with path.open("x", encoding="utf-8") as file:  # never overwrites a file
            yaml.safe_dump(values, file, sort_keys=False, allow_unicode=True)
    except FileExistsError:
        raise UserError(
            f"params/{path.name} exists but does not match {host.summary()}: mend its `device`, or move it "
            f"away and run this again."
        ) from None
    return path


def _capability(gpu: Gpu) -> tuple[tuple[int, ...], int]:
    return tuple(map(int, (gpu.compute_capability or "0.0").split("."))), gpu.memory_bytes or 0
