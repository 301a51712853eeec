"""Two network namespaces of this machine, joined by a link whose rate can be limited."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("10.88.0.1", "10.88.0.2")
INTERFACES = ("va", "vb")


def shaper(rate_bits_per_s: float) -> tuple[str, ...]:
    """Return the arguments of `tc qdisc` that limit the rate at which an interface sends."""
    return ("root", "tbf", "rate", f"{rate_bits_per_s:.0f}bit", "burst", "1mb", "latency", "50ms")


def run(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, text=True)


@contextmanager
def linked_hosts(rate_bits_per_s: float) -> Iterator[list[list[str]]]:
    """Join two namespaces, and yield for each the prefix of a command that runs there.

    Raise CalledProcessError if this kernel or container permits no shaped link.
    """
    names = [f"lk{os.getpid()}{end}" for end in "ab"]
    inside = [["nsenter", f"--net=/run/netns/{name}"] for name in names]
    ends = ["type", "veth", "peer", "name", INTERFACES[1], "netns", names[1]]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", INTERFACES[0], "netns", names[0], *ends)
        for name, interface, address, before in zip(names, INTERFACES, ADDRESSES, inside, strict=True):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            for device in ("lo", interface):
                run("ip", "-n", name, "link", "set", device, "up")
            run(*before, "tc", "qdisc", "replace", "dev", interface, *shaper(rate_bits_per_s))
        yield inside
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
