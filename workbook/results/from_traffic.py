"""Traffic between the devices of a trial in its timed part, from byte counters, and how evenly the devices work.

A window holds a counter's growth per second. The window is as long as the timed part: the blocks and the gaps between
them, in which nothing is exchanged. The timed part begins under steady load. At its end the counter's last stretch is
assumed to be even, which is wrong by at most a quarter of the time between two readings. So a window needs `READINGS`
readings; its error is then at most 5 %.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from labkit.sensors import GPU, HOST, rate_name
from labkit.telemetry.summary import Window
from workbook.records import Record
from workbook.results.missing import Missing, or_none

READINGS = 6  # least number in a window: a quarter of a sixth is 4 %


def _gradient_bytes(record: Record) -> float:
    """Return the bytes that a device sends in a step over the trial's interconnect.

    With several nodes, return the bytes that a node sends: a ring over all devices leaves each node once. Other traffic
    on the interconnect counts too. Through host memory the bytes are unknown: PCIe carries more than gradients.
    """
    _check_watched(record)
    steps = _steps(record)
    return (_between_nodes(record) if _nodes(record) > 1 else _within_node(record)) / steps


def _received_minus_sent_bytes(record: Record) -> float:
    """Return the bytes received minus sent by this node over the operating system's network in the timed part.

    Loopback traffic counts on both sides.
    """
    if _nodes(record) == 1:
        raise Missing("the configuration runs on one node")
    _check_watched(record)
    return _grown(record, HOST, "network_received_bytes") - _grown(record, HOST, "network_sent_bytes")


def _first_device_utilisation_ratio(record: Record) -> float:
    """Return the utilisation of the first device divided by the mean of the other devices."""
    _check_watched(record)
    sources = _timed(record).sources
    gpus = [name for name in sources if name.startswith(GPU) and name.removeprefix(GPU).isdecimal()]
    named = sorted(gpus, key=lambda name: int(name.removeprefix(GPU)))
    shares = [sources[name]["utilisation"].mean for name in named if "utilisation" in sources[name]]
    if lacking := _devices_here(record) - len(shares):
        raise Missing(f"the utilisation of {lacking} of its devices was not read")
    first, *others = shares
    if not others or fmean(others) <= 0:
        raise Missing("the other devices did nothing")
    return first / fmean(others)


FIGURES: dict[str, Callable[[Record], float]] = {
    "gradient_bytes": _gradient_bytes,
    "received_minus_sent_bytes": _received_minus_sent_bytes,
    "first_device_utilisation_ratio": _first_device_utilisation_ratio,
}


def _nodes(record: Record) -> int:
    return int(record.trial.get("nodes", 1))


def _devices_here(record: Record) -> int:
    return int(record.trial["devices"]) // _nodes(record)


def _check_watched(record: Record) -> None:
    if _devices_here(record) < 2 and _nodes(record) == 1:
        raise Missing("it is a figure of several devices")
    if record.telemetry is None:
        raise Missing("the record holds no telemetry")
    if "timed" not in record.telemetry.windows:
        raise Missing(record.telemetry.reason or "telemetry has no timed part")


def _timed(record: Record) -> Window:
    assert record.telemetry is not None
    return record.telemetry.windows["timed"]


def _steps(record: Record) -> int:
    """Return the number of steps in the window."""
    blocks = record.blocks
    if blocks is None:
        raise Missing("only timed blocks of steps have this figure")
    if blocks.energy_blocks and len(blocks.energy_blocks) > 1:
        raise Missing("steps between energy windows are not counted")
    return blocks.steps_per_block * len(blocks.host_s)


def _within_node(record: Record) -> float:
    """Return the bytes that a device sends to others of its node, on average."""
    devices, way = _devices_here(record), record.trial.get("interconnect", "direct")
    if record.trial["device"] == "cpu" or way == "sockets":
        return _grown(record, HOST, "loopback_sent_bytes") / devices
    if way == "host":
        raise Missing("what goes through the host's memory has no counter of its own")
    names = [name for name in _timed(record).sources if name.startswith(GPU)]
    if len(names) < devices:
        raise Missing(f"{devices - len(names)} of its devices were not read")
    sent = [_grown(record, name, "nvlink_sent_bytes") for name in names]
    if not any(sent):
        raise Missing("nothing went over NVLink: the devices exchange in another way")
    return sum(sent) / devices


def _between_nodes(record: Record) -> float:
    """Return the bytes that a node sends to others, over Ethernet, InfiniBand or (`any`) both, as far as present."""
    network = record.trial.get("network", "any")
    if network == "infiniband":
        return _grown(record, HOST, "infiniband_sent_bytes")
    ethernet = _grown(record, HOST, "network_sent_bytes") - _grown(record, HOST, "loopback_sent_bytes")
    if network == "ethernet":
        return ethernet
    return ethernet + (or_none(_grown, record, HOST, "infiniband_sent_bytes") or 0)


def _grown(record: Record, source: str, counter: str) -> float:
    """Return the growth of a counter in the timed part; raise Missing without enough readings."""
    assert record.telemetry is not None
    rate = record.telemetry.statistic("timed", source, rate_name(counter))
    if rate is None:
        why = record.telemetry.missing.get(source, {}).get(counter)
        raise Missing(why or f"{counter} of {source} was not read all around the timed part")
    if rate.n < READINGS:
        raise Missing(
            f"the timed part is short beside the time between two readings ({rate.n} in it, {READINGS} are needed)"
        )
    return rate.mean * _timed(record).length_s
