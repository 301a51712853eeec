"""Settings of NCCL and Gloo for the connections between a trial's devices, and checks of the network it asks for.

Each node's interface is named to both libraries. By itself Gloo takes the interface that the host's name resolves to,
which may be the loopback, and NCCL prefers IP over InfiniBand to Ethernet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from workbook.trials.trial import Trial

# Settings for one node. Without NCCL_NET_DISABLE_INTRA, NCCL may use a network card that both devices reach faster than
# the host's memory. Without `Socket`, NCCL counts InfiniBand as sockets.
CLOSED: dict[str, dict[str, str]] = {
    "direct": {},
    "host": {"NCCL_P2P_DISABLE": "1", "NCCL_NET_DISABLE_INTRA": "1"},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
}
# With NCCL_NET set, NCCL fails instead of using another transport.
BETWEEN_NODES = {
    "any": {},
    "ethernet": {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"},
    "infiniband": {"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"},
}
GLOO_INTERFACE, NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
IP_OVER_INFINIBAND = "32"  # ARPHRD_INFINIBAND, the content of /sys/class/net/<interface>/type
INFINIBAND, INTERFACES = Path("/sys/class/infiniband"), Path("/sys/class/net")


def network_of(trial: Trial) -> dict[str, str]:
    """Return NCCL's environment for the trial's interconnect and network; NCCL reads it once, when a process begins."""
    return {**CLOSED[trial.interconnect], **BETWEEN_NODES[trial.network]}


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an address; None if no interface has it."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, entries in interfaces if any(entry.address == address for entry in entries)), None)


def interfaces_for(address: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return variables that name the interface of this node's address to Gloo and NCCL, without those in `given`."""
    name = interface_of(address)
    variables = {} if name is None else {GLOO_INTERFACE: name, NCCL_INTERFACE: f"={name}"}
    return {variable: value for variable, value in variables.items() if not given.get(variable)}


def why_not_over(
    trial: Trial,
    *,
    infiniband: Path = INFINIBAND,
    interfaces: Path = INTERFACES,
    given: Mapping[str, str] = os.environ,
) -> str | None:
    """Return why this node cannot run a trial over the network that the trial names; None if it can."""
    if trial.network == "infiniband":
        if trial.device == "cpu":
            return "processes on CPUs exchange over TCP (Gloo), never over InfiniBand: use network `any` or `ethernet`"
        if not _has_active_port(infiniband):
            return "the configuration asks for InfiniBand, and this node has no active port in /sys/class/infiniband"
    if trial.network == "ethernet":
        variable = GLOO_INTERFACE if trial.device == "cpu" else NCCL_INTERFACE
        for name in _over_infiniband(given.get(variable, ""), interfaces):
            return (
                f"the configuration asks for Ethernet, and {name} is IP over InfiniBand: set {variable} to an Ethernet "
                f"interface"
            )
    return None


def _has_active_port(folder: Path) -> bool:
    """Return whether the node has an active InfiniBand port. Ports in Ethernet mode (RoCE) do not count."""
    ports = folder.glob("*/ports/*")
    return any("ACTIVE" in _text(port / "state") and _text(port / "link_layer") != "Ethernet" for port in ports)


def _over_infiniband(wanted: str, interfaces: Path) -> list[str]:
    """Return the IP-over-InfiniBand interfaces among those `wanted` (prefixes; names after `=`); none after `^`."""
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
