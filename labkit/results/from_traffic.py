"""What goes between the devices of a trial in its timed part, from counters of bytes, and how evenly they work.

A figure is a number or the sentence that says why there is none. A counter stands in a window as its growth a second,
and the window is as long as the timed part: the blocks and the moments between them, in which nothing is exchanged. The
part begins in a steady load; at its end the counter's last stretch is taken as even, which is wrong by a quarter of the
time between two readings at most. So a window needs `READINGS` of them, and is then wrong by 5 % at most.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from labkit.records import Record
from labkit.records.observed import Window
from labkit.sensors import GPU, HOST, rate_name

READINGS = 6  # in a window, at least: a quarter of a sixth is 4 %

Figure = float | str  # a value in SI units, or why there is none


def gradient_bytes(record: Record) -> Figure:
    """Bytes that a device sends in a step, by the way that the trial's devices have to each other.

    Between nodes it is what a node sends: a ring over all devices leaves each node once. Whatever else used that way
    meanwhile counts too. Of host memory nothing is known: what passes PCIe is more than gradients.
    """
    if reason := _why_not_watched(record):
        return reason
    steps = _steps(record)
    if isinstance(steps, str):
        return steps
    sent = _between_nodes(record) if _nodes(record) > 1 else _within_node(record)
    return sent if isinstance(sent, str) else sent / steps


def received_minus_sent_bytes(record: Record) -> Figure:
    """Bytes that came to this node over the operating system's network less those that left it, in the timed part.

    What goes over loopback counts on both sides.
    """
    if _nodes(record) == 1:
        return "the trial runs on one node"
    return _why_not_watched(record) or _difference(
        _grown(record, HOST, "network_received_bytes"), _grown(record, HOST, "network_sent_bytes")
    )


def first_device_utilisation_ratio(record: Record) -> Figure:
    """Utilisation of the first device over the mean of the others'."""
    if reason := _why_not_watched(record):
        return reason
    sources = _timed(record).sources
    named = sorted((name for name in sources if name.startswith(GPU)), key=lambda name: int(name.removeprefix(GPU)))
    shares = [sources[name]["utilisation"].mean for name in named if "utilisation" in sources[name]]
    if lacking := _devices_here(record) - len(shares):
        return f"the utilisation of {lacking} of its devices was not read"
    first, *others = shares
    return first / fmean(others) if any(others) else "the other devices did nothing"


FIGURES: dict[str, Callable[[Record], Figure]] = {
    "gradient_bytes": gradient_bytes,
    "received_minus_sent_bytes": received_minus_sent_bytes,
    "first_device_utilisation_ratio": first_device_utilisation_ratio,
}


def value(record: Record, metric: str) -> float | None:
    """One of `FIGURES` of a record; None where there is none."""
    found = FIGURES[metric](record)
    return None if isinstance(found, str) else found


def why_not(record: Record, metric: str) -> str | None:
    """Why a record has none of a figure; None where it has."""
    found = FIGURES[metric](record)
    return found if isinstance(found, str) else None


def _nodes(record: Record) -> int:
    return int(record.trial.get("nodes", 1))


def _devices_here(record: Record) -> int:
    return int(record.trial["devices"]) // _nodes(record)


def _why_not_watched(record: Record) -> str | None:
    """Why telemetry says nothing of what several devices do; None where it does."""
    if _devices_here(record) < 2 and _nodes(record) == 1:
        return "it is a figure of several devices"
    if record.telemetry is None:
        return "the record holds no telemetry"
    if "timed" not in record.telemetry.windows:
        return record.telemetry.reason or "telemetry has no timed part"
    return None


def _timed(record: Record) -> Window:
    assert record.telemetry is not None
    return record.telemetry.windows["timed"]


def _steps(record: Record) -> int | str:
    """How many steps the window holds."""
    blocks = record.blocks
    if blocks is None:
        return "only timed blocks of steps have it"
    if blocks.energy_blocks and len(blocks.energy_blocks) > 1:
        return "steps between energy windows are not counted"
    return blocks.steps_per_block * len(blocks.host_s)


def _within_node(record: Record) -> Figure:
    """Bytes that a device sends to others of its node, on average."""
    devices, way = _devices_here(record), record.trial.get("interconnect", "direct")
    if record.trial["device"] == "cpu" or way == "sockets":
        sent = _grown(record, HOST, "loopback_sent_bytes")
        return sent if isinstance(sent, str) else sent / devices
    if way == "host":
        return "what goes through the host's memory has no counter of its own"
    each = [_grown(record, name, "nvlink_sent_bytes") for name in _timed(record).sources if name.startswith(GPU)]
    if len(each) < devices:
        return f"{devices - len(each)} of its devices were not read"
    known = [one for one in each if not isinstance(one, str)]
    if len(known) < len(each):
        return next(one for one in each if isinstance(one, str))
    return sum(known) / devices if any(known) else "nothing went over NVLink: the devices have another way"


def _between_nodes(record: Record) -> Figure:
    """Bytes that a node sends to others."""
    network = record.trial.get("network", "any")
    ethernet = _difference(_grown(record, HOST, "network_sent_bytes"), _grown(record, HOST, "loopback_sent_bytes"))
    infiniband = _grown(record, HOST, "infiniband_sent_bytes")
    if network == "infiniband":
        return infiniband
    if network == "ethernet" or isinstance(infiniband, str) or isinstance(ethernet, str):
        return ethernet
    return ethernet + infiniband


def _difference(over: Figure, under: Figure) -> Figure:
    return over if isinstance(over, str) else under if isinstance(under, str) else over - under


def _grown(record: Record, source: str, counter: str) -> Figure:
    """How much a counter grew in the timed part."""
    assert record.telemetry is not None
    found = record.telemetry.statistic("timed", source, rate_name(counter))
    if found is None:
        why = record.telemetry.missing.get(source, {}).get(counter)
        return why or f"{counter} of {source} was not read all around the timed part"
    if found.n < READINGS:
        return f"the timed part is short beside the time between two readings ({found.n} in it, {READINGS} are needed)"
    return found.mean * _timed(record).length_s
