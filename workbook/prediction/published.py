"""Read `published/*.yaml`: times that others measured on several devices, with repository, commit and licence.

A row is one workload, a column one device. Published numbers are drawn and fitted, and never pooled with records.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import BaseModel, Field, ValidationError, model_validator

from labkit.errors import UserError
from workbook.hardware.profile import Profile, load_profile, profile_names, read_yaml
from workbook.paths import ROOT
from workbook.registry import METRICS

PUBLISHED = ROOT / "published"
COLUMNS = [
    "table",
    "workload",
    "device",
    "profile",
    "year",
    "precision",
    "value",
    "seconds",
    "flop_per_s",
    "bytes_per_s",
]


class _Part(BaseModel, extra="forbid", frozen=True):
    """A part of a public table, immutable after reading. Unknown keys are errors."""


class Source(_Part):
    """The place of a table: title, repository with commit, path, and licence."""

    title: str
    repository: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    place: str
    licence: Literal["MIT", "Apache-2.0", "BSD-3-Clause", "CC-BY-4.0"]


class PublishedDevice(_Part):
    """A device of a table: a profile, or its nominal peaks with their source; `year` is of its launch."""

    name: str
    year: int
    profile: str | None = None
    flop_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    source: str = ""

    @model_validator(mode="after")
    def _has_peaks(self) -> PublishedDevice:
        own = self.flop_per_s and self.memory_bytes_per_s and self.source
        if bool(own) == bool(self.profile):
            raise ValueError(f"{self.name}: give either a profile, or peaks with their source")
        if self.profile and self.profile not in profile_names():
            raise ValueError(f"{self.name}: there is no profile {self.profile}")
        return self

    @cached_property
    def _profile(self) -> Profile:
        return load_profile(self.profile or "")

    def peaks(self, precision: str) -> tuple[float, float]:
        """Return FLOP/s in a precision and bytes/s; NaN where the profile has no such peak."""
        if not self.profile:
            return float(self.flop_per_s or math.nan), float(self.memory_bytes_per_s or math.nan)
        peaks = self._profile.peaks
        compute, memory = peaks.flop_per_s.get(precision), peaks.memory_bytes_per_s  # type: ignore[call-overload]
        return compute.value if compute else math.nan, memory.value if memory else math.nan


class Network(_Part):
    """What a row measured, in the words of records: its set-up is another, and no record has its numbers."""

    workload: Literal["train", "infer"]
    model: str
    image_px: int


class PublishedSet(_Part):
    """A table of one source. `precision` is of all rows, or `precisions` has that of each.

    `networks` says which rows are of networks that are recorded too.
    """

    id: str
    source: Source
    set_up: str
    comparable: str
    metric: Literal["step_s", "samples_per_s"]
    unit: str
    to_si: float
    precision: str = ""
    precisions: dict[str, str] = {}
    devices: list[PublishedDevice]
    rows: dict[str, list[float | None]]
    networks: dict[str, Network] = {}

    @model_validator(mode="after")
    def _is_rectangular(self) -> PublishedSet:
        for name, values in self.rows.items():
            if len(values) != len(self.devices):
                raise ValueError(f"row {name!r} has {len(values)} values for {len(self.devices)} devices")
            if not (self.precision or name in self.precisions):
                raise ValueError(f"row {name!r} has no precision")
        return self

    def frame(self) -> pd.DataFrame:
        """Return one row per measured time: `seconds` of a step or of a sample, beside the device's nominal peaks."""
        higher = METRICS[self.metric].better == "more"
        made = []
        for workload, values in self.rows.items():
            precision = self.precisions.get(workload, self.precision)
            for device, value in zip(self.devices, values, strict=True):
                if value is not None:
                    si = value * self.to_si
                    about = (self.id, workload, device.name, device.profile, device.year, precision)
                    made.append((*about, si, 1 / si if higher else si, *device.peaks(precision)))
        return pd.DataFrame(made, columns=COLUMNS)

    def rates(self, network: Network) -> pd.DataFrame:
        """Return the samples/s of a network: a row per device, with `title` of this table; empty without such a row."""
        names = [name for name, of in self.networks.items() if of == network and self.metric == "samples_per_s"]
        frame = self.frame()
        return frame[frame["workload"].isin(names)].assign(title=self.source.title)


def load_published(folder: Path = PUBLISHED) -> list[PublishedSet]:
    """Return every published table, sorted by id. Raise UserError for a file that does not fit the schema."""
    tables = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            tables.append(PublishedSet.model_validate({**read_yaml(path), "id": path.stem}))
        except ValidationError as error:
            why = "; ".join(str(problem["msg"]) for problem in error.errors())
            raise UserError(f"published/{path.name}: {why}.") from error
    return tables
