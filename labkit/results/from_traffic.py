"""What goes between the devices of a trial in its timed part, from counters of bytes, and how evenly they work.

A counter stands in a window as its growth a second, and the window is as long as the timed part: the blocks and the
moments between them, in which nothing is exchanged. The part begins in a steady load; at its end the counter's last
stretch is taken as even, which is wrong by a quarter of the time between two readings at most. So a window needs
`READINGS` of them, and is then wrong by 5 % at most.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from labkit.records import Record
from labkit.records.observed import Window
from labkit.sensors import GPU, HOST, rate_name

READINGS = 6  # in a window, at least: a quarter of a sixth is 4 %


class _UnknownError(Exception):
    """Why a record does not have a figure."""


def _gradient_bytes(record: Record) -> float:
    """Bytes that a device sends in a step, by the way that the trial's devices have to each other.

    Between nodes it is what a node sends: a ring over all devices leaves each node once. Whatever else used that way
    meanwhile counts too. Of host memory nothing is known: what passes PCIe is more than gradients.
    """
    _check_watched(record)
    steps = _steps(record)
    return (_between_nodes(record) if _nodes(record) > 1 else _within_node(record)) / steps


def _received_minus_sent_bytes(record: Record) -> float:
    """Bytes that came to this node over the operating system's network less those that left it, in the timed part.

    What goes over loopback counts on both sides.
    """
    if _nodes(record) == 1:
        raise _UnknownError("the trial runs on one node")
    _check_watched(record)
    return _grown(record, HOST, "network_received_bytes") - _grown(record, HOST, "network_sent_bytes")


def _first_device_utilisation_ratio(record: Record) -> float:
    """Utilisation of the first device over the mean of the others'."""
    _check_watched(record)
    sources = _timed(record).sources
    named = sorted((name for name in sources if name.startswith(GPU)), key=lambda name: int(name.removeprefix(GPU)))
    shares = [sources[name]["utilisation"].mean for name in named if "utilisation" in sources[name]]
    if lacking := _devices_here(record) - len(shares):
        raise _UnknownError(f"the utilisation of {lacking} of its devices was not read")
    first, *others = shares
    if not any(others):
        raise _UnknownError("the other devices did nothing")
    return first / fmean(others)


FIGURES: dict[str, Callable[[Record], float]] = {
    "gradient_bytes": _gradient_bytes,
    "received_minus_sent_bytes": _received_minus_sent_bytes,
    "first_device_utilisation_ratio": _first_device_utilisation_ratio,
}


def value(record: Record, metric: str) -> float | None:
    """One of `FIGURES` of a record; None where there is none."""
    try:
        return FIGURES[metric](record)
    except _UnknownError:
        return None


def why_not(record: Record, metric: str) -> str | None:
    """Why a record has none of a figure; None where it has."""
    try:
        FIGURES[metric](record)
    except _UnknownError as reason:
        return str(reason)
    return None


def _nodes(record: Record) -> int:
    return int(record.trial.get("nodes", 1))


def _devices_here(record: Record) -> int:
    return int(record.trial["devices"]) // _nodes(record)


def _check_watched(record: Record) -> None:
    if _devices_here(record) < 2 and _nodes(record) == 1:
        raise _UnknownError("it is a figure of several devices")
    if record.telemetry is None:
        raise _UnknownError("the record holds no telemetry")
    if "timed" not in record.telemetry.windows:
        raise _UnknownError(record.telemetry.reason or "telemetry has no timed part")


def _timed(record: Record) -> Window:
    assert record.telemetry is not None
    return record.telemetry.windows["timed"]


def _steps(record: Record) -> int:
    """How many steps the window holds."""
    blocks = record.blocks
    if blocks is None:
        raise _UnknownError("only timed blocks of steps have it")
    if blocks.energy_blocks and len(blocks.energy_blocks) > 1:
        raise _UnknownError("steps between energy windows are not counted")
    return blocks.steps_per_block * len(blocks.host_s)


def _within_node(record: Record) -> float:
    """Bytes that a device sends to others of its node, on average."""
    devices, way = _devices_here(record), record.trial.get("interconnect", "direct")
    if record.trial["device"] == "cpu" or way == "sockets":
        return _grown(record, HOST, "loopback_sent_bytes") / devices
    if way == "host":
        raise _UnknownError("what goes through the host's memory has no counter of its own")
    names = [name for name in _timed(record).sources if name.startswith(GPU)]
    if len(names) < devices:
        raise _UnknownError(f"{devices - len(names)} of its devices were not read")
    sent = [_grown(record, name, "nvlink_sent_bytes") for name in names]
    if not any(sent):
        raise _UnknownError("nothing went over NVLink: the devices have another way")
    return sum(sent) / devices


def _between_nodes(record: Record) -> float:
    """Bytes that a node sends to others: over Ethernet, over InfiniBand where it is there, or over both."""
    network = record.trial.get("network", "any")
    if network == "infiniband":
        return _grown(record, HOST, "infiniband_sent_bytes")
    ethernet = _grown(record, HOST, "network_sent_bytes") - _grown(record, HOST, "loopback_sent_bytes")
    if network == "ethernet":
        return ethernet
    try:
        return ethernet + _grown(record, HOST, "infiniband_sent_bytes")
    except _UnknownError:
        return ethernet


def _grown(record: Record, source: str, counter: str) -> float:
    """How much a counter grew in the timed part."""
    assert record.telemetry is not None
    rate = record.telemetry.statistic("timed", source, rate_name(counter))
    if rate is None:
        why = record.telemetry.missing.get(source, {}).get(counter)
        raise _UnknownError(why or f"{counter} of {source} was not read all around the timed part")
    if rate.n < READINGS:
        raise _UnknownError(
            f"the timed part is short beside the time between two readings ({rate.n} in it, {READINGS} are needed)"
        )
    return rate.mean * _timed(record).length_s
