"""What pieces of a trace say, in sums that add up: two pieces together say what one of both would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from statistics import median_low
from typing import Generic, TypeVar

from labkit.records.traced import Algorithm, CallClass, Copies, Direction, Kernel, KernelClass, Section, Total

Key = TypeVar("Key", bound=Hashable)
Group = TypeVar("Group", bound=Hashable)
LONGEST = 15  # kernels and calls that a record names

Label = tuple[str, KernelClass, Algorithm | None]  # of a kernel: its shortened name, and what it does


class Tallies(Generic[Key]):
    """Seconds and counts by key."""

    def __init__(self) -> None:
        self._kept: dict[Key, tuple[float, int]] = {}

    def put(self, key: Key, seconds: float, count: int = 1) -> None:
        """Something that took so long, or several of them."""
        had, number = self._kept.get(key, (0.0, 0))
        self._kept[key] = (had + seconds, number + count)

    def add(self, other: Tallies[Key]) -> None:
        """All of another."""
        for key, (seconds, count) in other._kept.items():
            self.put(key, seconds, count)

    def items(self) -> list[tuple[Key, Total]]:
        """What took most comes first."""
        ordered = sorted(self._kept.items(), key=lambda one: (-one[1][0], str(one[0])))
        return [(key, Total(seconds=seconds, count=count)) for key, (seconds, count) in ordered]

    def totals(self) -> dict[Key, Total]:
        """By key, what took most first."""
        return dict(self.items())

    def totals_by(self, group: Callable[[Key], Group | None]) -> dict[Group, Total]:
        """By the group of the keys, without the keys that have none."""
        kept: Tallies[Group] = Tallies()
        for key, total in self.items():
            if (name := group(key)) is not None:
                kept.put(name, total.seconds, total.count)
        return kept.totals()


@dataclass
class InSection:
    """What the host did in a section, and the device because of it."""

    host_s: float = 0.0
    kernel_s: float = 0.0
    busy_s: float = 0.0
    calls: Tallies[CallClass] = field(default_factory=Tallies)

    def add(self, other: InSection) -> None:
        """All of another."""
        self.host_s += other.host_s
        self.kernel_s += other.kernel_s
        self.busy_s += other.busy_s
        self.calls.add(other.calls)

    def section(self) -> Section:
        """As it stands in a record."""
        return Section(host_s=self.host_s, kernel_s=self.kernel_s, busy_s=self.busy_s, calls=self.calls.totals())


@dataclass
class Found:
    """What was seen in a piece, or in several. Fields have the meaning of `labkit.records.traced.Traced`'s."""

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
    sizes: dict[Direction, Counter[int]] = field(default_factory=dict)  # of copies: how often each
    fills: Tallies[str] = field(default_factory=Tallies)
    calls: Tallies[str] = field(default_factory=Tallies)
    sections: dict[str, InSection] = field(default_factory=dict)
    devices: int = 0
    notes: dict[str, None] = field(default_factory=dict)  # each once, in order

    def add(self, other: Found) -> None:
        """All of another."""
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
        """Kernels by class; their seconds are those of all kernels, and nothing else."""
        return self.kernels.totals_by(lambda label: label[1])

    def algorithms(self) -> dict[Algorithm, Total]:
        """Convolutions by how they are done."""
        return self.kernels.totals_by(lambda label: label[2] if label[1] == "convolution" else None)

    def longest(self) -> list[Kernel]:
        """The kernels that took most time together."""
        return [
            Kernel(name=name, kind=kind, algorithm=algorithm, seconds=total.seconds, count=total.count)
            for (name, kind, algorithm), total in self.kernels.items()[:LONGEST]
        ]

    def convolution_kernel(self) -> str | None:
        """The kernel in which most of the convolutions' time was spent, not counting what only helps another."""
        of_convolutions = (label for label, _ in self.kernels.items() if label[1] == "convolution")
        return next((name for name, _, algorithm in of_convolutions if algorithm != "helper"), None)

    def copies_by_direction(self) -> dict[Direction, Copies]:
        """Copies with their sizes."""
        return {
            direction: Copies(
                seconds=total.seconds,
                count=total.count,
                bytes=sum(size * count for size, count in self.sizes[direction].items()),
                median_bytes=median_low(self.sizes[direction].elements()),
            )
            for direction, total in self.copies.items()
        }


NUMBERS = [one.name for one in fields(Found) if one.default in (0, 0.0) and one.name != "devices"]
