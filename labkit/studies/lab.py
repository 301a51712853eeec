"""The interface of an open study (`labkit.study.OpenStudy`) that trial grids use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from labkit.hardware.profile import Profile
from labkit.trial import Trial

Sweep: TypeAlias = dict[str, Any]  # the sizes that a profile gives a study, by name


class Cpu(NamedTuple):
    """The properties of a CPU that a study's plan depends on: usable cores, and instruction sets that affect speed."""

    cores: int
    features: tuple[str, ...]


class Lab(Protocol):
    """A study opened on a profile, reduced to the members that trials of several devices and frameworks need."""

    profile: Profile
    scale: str

    @property
    def sweep(self) -> Sweep:
        """The sizes of the sweep, by name."""

    @property
    def device_counts(self) -> list[int]:
        """The numbers of devices to run on, ascending from 1."""

    def trials(self, **axes: Any) -> list[Trial]:
        """Return a grid of trials on this profile and data."""

    def stored(self, images: int, forms: Sequence[str], *, drawn: bool = False) -> dict[str, Any]:
        """Return the fields of trials that read so many images from files: the user's, or drawn ones."""

    def thread_counts(self, asked: object) -> list[int]:
        """Return the numbers of threads, or of workers, that a sweep asks for."""

    @property
    def cpu(self) -> Cpu:
        """The CPU whose instruction sets decide which recipes exist."""

    @property
    def threads_of_each(self) -> int:
        """Threads of each process."""

    @property
    def interconnects(self) -> tuple[str, ...]:
        """The interconnects between devices."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""
