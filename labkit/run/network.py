"""What connects the devices of a trial, on a node and between nodes: what NCCL and Gloo are told, and what is refused.

Both find interfaces by themselves, but Gloo takes the one that the host's name stands for, which may be the loopback,
and NCCL prefers IP over InfiniBand to Ethernet. So each node is told the interface by which the others reach it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from labkit.trial import Trial

# Of one node. Without its last setting NCCL may send what should go through the host's memory through a network card
# that both devices reach faster; and without `Socket` InfiniBand counts as sockets.
CLOSED: dict[str, dict[str, str]] = {
    "direct": {},
    "host": {"NCCL_P2P_DISABLE": "1", "NCCL_NET_DISABLE_INTRA": "1"},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
}
# With the transport named, NCCL fails rather than take another.
BETWEEN_NODES = {
    "any": {},
    "ethernet": {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"},
    "infiniband": {"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"},
}
GLOO_INTERFACE, NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
IP_OVER_INFINIBAND = "32"  # ARPHRD_INFINIBAND, as /sys/class/net/<interface>/type has it
INFINIBAND, INTERFACES = Path("/sys/class/infiniband"), Path("/sys/class/net")


def network_of(trial: Trial) -> dict[str, str]:
    """What tells NCCL which ways the trial's devices may use; NCCL reads it once, when a process begins."""
    return {**CLOSED[trial.interconnect], **BETWEEN_NODES[trial.network]}


def interface_of(address: str) -> str | None:
    """The interface that has an address; None where none has it."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(one.address == address for one in addresses)), None)


def interfaces_for(address: str, given: Mapping[str, str]) -> dict[str, str]:
    """What Gloo and NCCL are told: what the user has set, else the interface by which other nodes reach this one."""
    name = interface_of(address)
    found = {} if name is None else {GLOO_INTERFACE: name, NCCL_INTERFACE: f"={name}"}
    return {variable: value for variable, value in found.items() if not given.get(variable)}


def why_not_over(
    trial: Trial,
    *,
    infiniband: Path = INFINIBAND,
    interfaces: Path = INTERFACES,
    given: Mapping[str, str] = os.environ,
) -> str | None:
    """Why this node can't run a trial over the network that it names; None when it can."""
    if trial.network == "infiniband":
        if trial.device == "cpu":
            return "processes on CPUs exchange over TCP (Gloo), never over InfiniBand: network `any` or `ethernet`"
        if not _has_active_port(infiniband):
            return "the trial goes over InfiniBand, and this node has no active port of it in /sys/class/infiniband"
    if trial.network == "ethernet":
        variable = GLOO_INTERFACE if trial.device == "cpu" else NCCL_INTERFACE
        for name in _over_infiniband(given.get(variable, ""), interfaces):
            return (
                f"the trial goes over Ethernet, and {name} is IP over InfiniBand: set {variable} to an interface of "
                f"Ethernet"
            )
    return None


def _has_active_port(folder: Path) -> bool:
    """Ports of the same cards that speak Ethernet (RoCE) are none."""
    ports = folder.glob("*/ports/*")
    return any("ACTIVE" in _text(port / "state") and _text(port / "link_layer") != "Ethernet" for port in ports)


def _over_infiniband(wanted: str, interfaces: Path) -> list[str]:
    """Of the interfaces that a variable names (`=` a whole name, else a beginning; `^` all but these) such ones."""
    if not wanted or wanted.startswith("^"):
        return []
    fits = str.__eq__ if wanted.startswith("=") else str.startswith
    names = wanted.removeprefix("=").split(",")
    present = [path for path in interfaces.glob("*") if any(fits(path.name, name) for name in names)]
    return sorted(path.name for path in present if _text(path / "type") == IP_OVER_INFINIBAND)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
