"""What grids of trials ask of an open study, which stands above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from workbook.hardware.profile import Profile
from workbook.records import Record
from workbook.trials.trial import Trial

Sweep: TypeAlias = dict[str, Any]  # the sizes that a profile gives a study, by name


class Cpu(NamedTuple):
    """The properties of a CPU that a study's plan depends on: usable cores, and instruction sets that affect speed."""

    cores: int
    features: tuple[str, ...]


class Planner(Protocol):
    """The sizes, the hardware and the trials of a study. `workbook.study.OpenStudy` explains each."""

    profile: Profile
    scale: str
    network: str | None  # of NETWORK=
    batches: str | None  # of BATCH=

    @property
    def sweep(self) -> Sweep: ...  # noqa: D102

    @property
    def cpu(self) -> Cpu: ...  # noqa: D102

    @property
    def device_counts(self) -> list[int]: ...  # noqa: D102

    @property
    def threads_of_each(self) -> int: ...  # noqa: D102

    @property
    def nodes(self) -> int: ...  # noqa: D102

    def recorded(self) -> list[Record]: ...  # noqa: D102

    def thread_counts(self, asked: object) -> list[int]: ...  # noqa: D102

    def trials(self, **axes: Any) -> list[Trial]: ...  # noqa: D102

    def ceilings(self) -> list[Trial]: ...  # noqa: D102

    def stored(self, images: int, forms: Sequence[str]) -> dict[str, Any]: ...  # noqa: D102
