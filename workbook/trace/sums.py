"""Sums over pieces of a trace. The sums of two pieces add up to the sums of one piece with the steps of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from statistics import median_low
from typing import Generic, TypeVar

from workbook.records.traced import Algorithm, CallClass, Copies, Direction, Kernel, KernelClass, Section, Total

Key = TypeVar("Key", bound=Hashable)
Group = TypeVar("Group", bound=Hashable)
LONGEST = 15  # how many kernels and calls a record names

Label = tuple[str, KernelClass, Algorithm | None]  # of a kernel: its shortened name, class and algorithm


class Tallies(Generic[Key]):
    """Seconds and counts by key."""

    def __init__(self) -> None:
        self._kept: dict[Key, tuple[float, int]] = {}

    def put(self, key: Key, seconds: float, count: int = 1) -> None:
        """Add to `key` a number of items that took `seconds` together."""
        had, number = self._kept.get(key, (0.0, 0))
        self._kept[key] = (had + seconds, number + count)

    def add(self, other: Tallies[Key]) -> None:
        """Add all sums of `other`."""
        for key, (seconds, count) in other._kept.items():
            self.put(key, seconds, count)

    def items(self) -> list[tuple[Key, Total]]:
        """Return keys and totals, in descending order of seconds."""
        ordered = sorted(self._kept.items(), key=lambda item: (-item[1][0], str(item[0])))
        return [(key, Total(seconds=seconds, count=count)) for key, (seconds, count) in ordered]

    def totals(self) -> dict[Key, Total]:
        """Return the totals by key, in descending order of seconds."""
        return dict(self.items())

    def totals_by(self, group: Callable[[Key], Group | None]) -> dict[Group, Total]:
        """Return the totals by group of keys, without the keys whose group is None."""
        kept: Tallies[Group] = Tallies()
        for key, total in self.items():
            if (name := group(key)) is not None:
                kept.put(name, total.seconds, total.count)
        return kept.totals()


@dataclass
class InSection:
    """Time and calls of the host in a section, and device time of the kernels launched there."""

    host_s: float = 0.0
    kernel_s: float = 0.0
    busy_s: float = 0.0
    calls: Tallies[CallClass] = field(default_factory=Tallies)

    def add(self, other: InSection) -> None:
        """Add all sums of `other`."""
        self.host_s += other.host_s
        self.kernel_s += other.kernel_s
        self.busy_s += other.busy_s
        self.calls.add(other.calls)

    def section(self) -> Section:
        """Return the sums in the form of a record."""
        return Section(host_s=self.host_s, kernel_s=self.kernel_s, busy_s=self.busy_s, calls=self.calls.totals())


@dataclass
class Sums:
    """Sums over one piece or several. Fields have the same meaning as in `workbook.records.traced.Traced`."""

    steps: int = 0
    elapsed_s: float = 0.0
    busy_s: float = 0.0
    active_s: float = 0.0
    launch_gap_s: float = 0.0
    queue_gap_s: float = 0.0
    edge_gap_s: float = 0.0
    overlapping_s: float = 0.0
    max_pool_backward_s: float = 0.0
    broadcast_s: float = 0.0
    copy_s: float = 0.0
    copy_beside_kernel_s: float = 0.0
    exchange_s: float = 0.0
    exposed_exchange_s: float = 0.0
    kernels: Tallies[Label] = field(default_factory=Tallies)
    copies: Tallies[Direction] = field(default_factory=Tallies)
    sizes: dict[Direction, Counter[int]] = field(default_factory=dict)  # of copies: how often each size occurs
    fills: Tallies[str] = field(default_factory=Tallies)
    calls: Tallies[str] = field(default_factory=Tallies)
    sections: dict[str, InSection] = field(default_factory=dict)
    devices: int = 0
    notes: dict[str, None] = field(default_factory=dict)  # an ordered set of sentences

    def add(self, other: Sums) -> None:
        """Add all sums of `other`."""
        for name in NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("kernels", "copies", "fills", "calls"):
            getattr(self, name).add(getattr(other, name))
        for direction, sizes in other.sizes.items():
            self.sizes.setdefault(direction, Counter()).update(sizes)
        for name, section in other.sections.items():
            self.sections.setdefault(name, InSection()).add(section)
        self.devices = max(self.devices, other.devices)
        self.notes |= other.notes

    def kernel_classes(self) -> dict[KernelClass, Total]:
        """Return the totals of kernels by class. Their seconds add up to those of all kernels."""
        return self.kernels.totals_by(lambda label: label[1])

    def algorithms(self) -> dict[Algorithm, Total]:
        """Return the totals of convolutions by algorithm."""
        return self.kernels.totals_by(lambda label: label[2] if label[1] == "convolution" else None)

    def longest(self) -> list[Kernel]:
        """Return the kernels with the most total time, in descending order."""
        return [
            Kernel(name=name, kind=kind, algorithm=algorithm, seconds=total.seconds, count=total.count)
            for (name, kind, algorithm), total in self.kernels.items()[:LONGEST]
        ]

    def convolution_kernel(self) -> str | None:
        """Return the name of the kernel with the most convolution time, helpers left out; None without any."""
        of_convolutions = (label for label, _ in self.kernels.items() if label[1] == "convolution")
        return next((name for name, _, algorithm in of_convolutions if algorithm != "helper"), None)

    def copies_by_direction(self) -> dict[Direction, Copies]:
        """Return the totals and sizes of copies by direction."""
        return {
            direction: Copies(
                seconds=total.seconds,
                count=total.count,
                bytes=sum(size * count for size, count in self.sizes[direction].items()),
                median_bytes=median_low(self.sizes[direction].elements()),
            )
            for direction, total in self.copies.items()
        }


NUMBERS = [entry.name for entry in fields(Sums) if entry.default in (0, 0.0) and entry.name != "devices"]
