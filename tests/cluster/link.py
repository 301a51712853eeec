"""Two network namespaces joined by one link whose rate can be set: two hosts, as far as the network is concerned."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from tests.cluster.slurm_here import found, install, not_asked_for

SHAPER = ("burst", "1mb", "latency", "50ms")
PROGRAMS, PACKAGES = ("ip", "tc", "nsenter"), ("iproute2", "util-linux")


def why_not() -> str | None:
    """Why no such link is made here; None when it is."""
    if reason := not_asked_for():
        return reason
    if os.geteuid() != 0:
        return "namespaces are made by root only"
    if not all(map(found, PROGRAMS)) and (reason := install(PACKAGES, PROGRAMS)):
        return reason
    link = Link()
    try:
        link.make()
        link.shape(1e9)
    except subprocess.CalledProcessError as error:
        return f"this kernel or container permits no shaped link: {' '.join(error.cmd)}: {error.stderr.strip()}"
    finally:
        link.remove()
    return None


@dataclass(frozen=True)
class Link:
    """Namespaces `a` and `b` with the addresses 10.88.0.1 and 10.88.0.2, over the interfaces `va` and `vb`."""

    mark: str = f"lk{os.getpid()}"

    @property
    def ends(self) -> tuple[tuple[str, str], ...]:
        """Namespace and interface of each."""
        return tuple((f"{self.mark}{end}", f"v{end}") for end in "ab")

    def inside(self, end: int) -> tuple[str, ...]:
        """What stands before a command that runs there."""
        return ("nsenter", f"--net=/run/netns/{self.ends[end][0]}")

    def address(self, end: int) -> str:
        return f"10.88.0.{end + 1}"

    def make(self) -> None:
        (here, ours), (there, theirs) = self.ends
        for namespace, _ in self.ends:
            _run("ip", "netns", "add", namespace)
        _run("ip", "link", "add", ours, "netns", here, "type", "veth", "peer", "name", theirs, "netns", there)
        for end, (namespace, interface) in enumerate(self.ends):
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
            _run("ip", "-n", namespace, "link", "set", interface, "up")
            _run("ip", "-n", namespace, "addr", "add", f"{self.address(end)}/24", "dev", interface)

    def shape(self, bits_per_s: float) -> None:
        """Both ways: what each end sends is held back."""
        for namespace, interface in self.ends:
            shaped = ("root", "tbf", "rate", f"{bits_per_s:.0f}bit", *SHAPER)
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, *shaped)

    def remove(self) -> None:
        for namespace, _ in self.ends:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
