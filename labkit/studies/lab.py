"""What trial grids take of an open study (`labkit.study.OpenStudy`)."""

from __future__ import annotations

from typing import Any, Protocol

from labkit.hardware.profile import Profile
from labkit.trial import Trial


class Lab(Protocol):
    """A study that was opened on a profile, as far as the trials of several devices and frameworks need it."""

    profile: Profile

    @property
    def sweep(self) -> dict[str, Any]:
        """Sizes by name."""

    @property
    def device_counts(self) -> list[int]:
        """Numbers of devices, one first."""

    def trials(self, **axes: Any) -> list[Trial]:
        """A grid of trials on this profile and data."""

    @property
    def threads_of_each(self) -> int:
        """Threads of each process."""

    @property
    def interconnects(self) -> tuple[str, ...]:
        """The ways between devices."""

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
