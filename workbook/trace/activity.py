"""What happens in a piece of a trace: on a GPU kernels, copies, gaps and the host's calls, on a CPU operators.

On a CPU, PyTorch's operators compute, each while no operator within it runs.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from workbook.records.traced import Direction
from workbook.trace.classes import class_of_call, of_operator
from workbook.trace.events import ON_DEVICE, UNKNOWN, Events, Integers, Mask
from workbook.trace.kernels import Kernels, computing, label_kernels, of_section
from workbook.trace.pieces import Cut, Sections
from workbook.trace.spans import Spans, own_s, repeated_s, within
from workbook.trace.sums import InSection, Sums

GLOO = "gloo:"  # prefix of ranges around Gloo's work in its own threads


def activity_on_host(piece: Cut) -> Sums:
    """Return the sums of the operators of a piece."""
    events = piece.events
    sections = Sections.of(events)
    index = computing(events)
    begin, end = events.began_s[index], events.ended_s[index]
    parents = within(begin, end, events.stream[index])
    own = own_s(begin, end, parents)
    busy = Spans.union(begin, end)
    top = parents < 0
    exchanging = events.are("range") & events.named(GLOO)
    exchange = Spans.union(events.began_s[exchanging], events.ended_s[exchanging])
    sums = Sums(
        steps=piece.steps,
        elapsed_s=piece.elapsed_s,
        busy_s=busy.length_s,
        active_s=busy.length_s,
        overlapping_s=repeated_s(begin[top], end[top]),
        exchange_s=exchange.length_s,
        exposed_exchange_s=max(exchange.length_s - exchange.shared_s(busy), 0.0),
        devices=1,
        notes=dict.fromkeys(piece.notes),
    )
    where = sections.at(begin)
    classes = [of_operator(name) for name in events.names]
    for number, seconds, section in zip(events.name[index].tolist(), own.tolist(), where.tolist(), strict=True):
        kind = of_section(classes[number].kind, sections.names[section] if section >= 0 else "")
        sums.kernels.put((events.names[number], kind, classes[number].algorithm), seconds)
        sums.max_pool_backward_s += seconds * classes[number].max_pool_backward
    for number, name in enumerate(sections.names):
        inside = where == number
        sums.sections[name] = InSection(
            host_s=float((sections.end - sections.begin)[sections.number == number].sum()),
            kernel_s=float(own[inside].sum()),
            busy_s=Spans.union(begin[inside], end[inside]).length_s,
        )
    return sums


DIRECTIONS: dict[str, Direction] = {
    "htod": "host_to_device",
    "hosttodevice": "host_to_device",
    "dtoh": "device_to_host",
    "devicetohost": "device_to_host",
    "dtod": "device_to_device",
    "devicetodevice": "device_to_device",
    "ptop": "peer_to_peer",
    "peertopeer": "peer_to_peer",
}


def activity_on_device(piece: Cut) -> Sums:
    """Return the sums of the kernels, copies and calls of a piece. Busy times and gaps are means over its devices."""
    events = piece.events
    sections = Sections.of(events)
    kernels = label_kernels(piece, sections)
    devices = np.unique(events.device[kernels.index])
    sums = Sums(steps=piece.steps, elapsed_s=piece.elapsed_s, devices=len(devices), notes=dict.fromkeys(piece.notes))
    for device in devices.tolist():
        _add_device(sums, piece, kernels, events.device == device, 1 / len(devices))
    lengths = events.length_s[kernels.index].tolist()
    for label, length_s in zip(kernels.labels, lengths, strict=True):
        sums.kernels.put(label, length_s)
    sums.max_pool_backward_s = float(events.length_s[kernels.index[kernels.max_pool_backward]].sum())
    sums.broadcast_s = float(events.length_s[kernels.index[kernels.broadcast]].sum())
    _add_copies(sums, events)
    own_call_s, calls = _add_calls(sums, events)
    if len(sections.begin):
        _add_sections(sums, piece, sections, kernels, calls, own_call_s)
    if len(devices) > 1:
        sums.notes[
            f"busy times and gaps are the mean of {len(devices)} devices; kernels and copies are sums over all devices"
        ] = None
    return sums


def _union(events: Events, mask: Mask) -> Spans:
    return Spans.union(np.maximum(events.began_s[mask], 0.0), np.maximum(events.ended_s[mask], 0.0))


def _add_device(sums: Sums, piece: Cut, kernels: Kernels, here: Mask, weight: float) -> None:
    """Add the busy times and the gaps of one device, each multiplied by `weight`."""
    events = piece.events
    kernel = here & events.are("kernel")
    exchange = np.zeros(len(events), dtype=bool)
    exchange[kernels.index[kernels.collective]] = True
    busy, active = _union(events, kernel), _union(events, here & events.are(*ON_DEVICE))
    copying = _union(events, here & events.are("copy"))
    exchanging, computing = _union(events, kernel & exchange), _union(events, kernel & ~exchange)
    launch_s, queue_s, edge_s, unknown = gaps_s(piece, active, here & events.are(*ON_DEVICE))
    for name, seconds in {
        "busy_s": busy.length_s,
        "active_s": active.length_s,
        "launch_gap_s": launch_s,
        "queue_gap_s": queue_s,
        "edge_gap_s": edge_s,
        "overlapping_s": repeated_s(events.began_s[kernel], events.ended_s[kernel]),
        "copy_s": copying.length_s,
        "copy_beside_kernel_s": copying.shared_s(busy),
        "exchange_s": exchanging.length_s,
        "exposed_exchange_s": exchanging.length_s - exchanging.shared_s(computing),
    }.items():
        setattr(sums, name, getattr(sums, name) + weight * max(seconds, 0.0))
    if unknown:
        sums.notes["some of the device's work has no call in the trace: the gaps before it count as queue gaps"] = None


def gaps_s(piece: Cut, active: Spans, works: Mask) -> tuple[float, float, float, int]:
    """Return the seconds of launch gaps, queue gaps and edge gaps, and how many gaps end with work without a call.

    In a launch gap the device waits for the host to launch; in a queue gap it waits although work is launched. Edge
    gaps, before the first and after the last work, exist only because the piece begins and ends there.
    """
    events, gaps = piece.events, active.gaps(piece.elapsed_s)
    order = np.flatnonzero(works)
    order = order[np.argsort(events.began_s[order], kind="stable")]
    next_ = np.searchsorted(events.began_s[order], gaps.end, side="left")
    edge = (gaps.begin <= 0.0) | (next_ >= len(order))
    call = piece.launched_by[order[np.minimum(next_, len(order) - 1)]]
    has_call = ~edge & (call >= 0)
    launched_s = np.where(has_call, events.ended_s[call], gaps.begin)
    length_s = gaps.end - gaps.begin
    launch_s = np.where(edge, 0.0, np.clip(launched_s - gaps.begin, 0.0, length_s))
    edge_s = float(length_s[edge].sum())
    queue_s = float((length_s - launch_s).sum()) - edge_s
    return float(launch_s.sum()), queue_s, edge_s, int((~edge & ~has_call).sum())


def _add_copies(sums: Sums, events: Events) -> None:
    for index in np.flatnonzero(events.are("copy")).tolist():
        words = events.names[events.name[index]].lower()
        direction = next((value for word, value in DIRECTIONS.items() if word in words), None)
        if direction is None:
            sums.notes["some copies are not to or from a device's memory: they count in no direction"] = None
            continue
        sums.copies.put(direction, float(events.length_s[index]))
        size = int(events.bytes[index])
        sums.sizes.setdefault(direction, Counter())[max(size, 0)] += 1
        if size == UNKNOWN:
            sums.notes["the trace does not say how large some copies are: their bytes are missing from the sums"] = None
    fills = events.are("fill")
    if fills.any():
        sums.fills.put("fill", float(events.length_s[fills].sum()), int(fills.sum()))


def _add_calls(sums: Sums, events: Events) -> tuple[np.ndarray, Integers]:
    """Add the calls by name. Return the seconds of each call without the calls within it, and the calls' indices."""
    calls = np.flatnonzero(events.are("call"))
    begin, end = events.began_s[calls], events.ended_s[calls]
    own = own_s(begin, end, within(begin, end, events.stream[calls]))
    names = events.name[calls]
    seconds, counts = np.bincount(names, weights=own), np.bincount(names)
    for number in np.flatnonzero(counts).tolist():
        sums.calls.put(events.names[number], float(seconds[number]), int(counts[number]))
    return own, calls


def _add_sections(
    sums: Sums, piece: Cut, sections: Sections, kernels: Kernels, calls: Integers, own_call_s: np.ndarray
) -> None:
    """Add the calls of each section, and the device time of the kernels launched there."""
    events = piece.events
    in_call = sections.at(events.began_s[calls])
    classes = [class_of_call(name) for name in events.names]
    for number, name in enumerate(sections.names):
        own = InSection(host_s=float((sections.end - sections.begin)[sections.number == number].sum()))
        launched = kernels.index[kernels.section == number]
        own.kernel_s = float(events.length_s[launched].sum())
        for device in np.unique(events.device[launched]).tolist():
            here = launched[events.device[launched] == device]
            own.busy_s += Spans.union(events.began_s[here], events.ended_s[here]).length_s / sums.devices
        made = np.flatnonzero(in_call == number)
        for which, seconds in zip(events.name[calls[made]].tolist(), own_call_s[made].tolist(), strict=True):
            own.calls.put(classes[which], seconds)
        sums.sections[name] = own
