"""What a piece says of a GPU: its kernels, copies and gaps, and the calls that the host made."""

from __future__ import annotations

from collections import Counter

import numpy as np

from labkit.measure.trace.calls import class_of_call
from labkit.measure.trace.events import ON_DEVICE, UNKNOWN, Events, Integers, Mask
from labkit.measure.trace.found import Found, InSection
from labkit.measure.trace.kernels import Kernels, label_kernels
from labkit.measure.trace.pieces import Cut, Sections
from labkit.measure.trace.spans import Spans, own_s, repeated_s, within
from labkit.records.traced import Direction

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


def look(piece: Cut) -> Found:
    """What the kernels, copies and calls of a piece say; times in which something ran are the mean of its devices."""
    events = piece.events
    sections = Sections.of(events)
    kernels = label_kernels(piece, sections)
    devices = np.unique(events.device[kernels.index])
    found = Found(steps=piece.steps, elapsed_s=piece.elapsed_s, devices=len(devices), notes=dict.fromkeys(piece.notes))
    for device in devices.tolist():
        _add_device(found, piece, kernels, events.device == device, 1 / len(devices))
    lengths = events.length_s[kernels.index].tolist()
    for label, length_s in zip(kernels.labels, lengths, strict=True):
        found.kernels.put(label, length_s)
    found.max_pool_backward_s = float(events.length_s[kernels.index[kernels.max_pool_backward]].sum())
    found.broadcast_s = float(events.length_s[kernels.index[kernels.broadcast]].sum())
    _add_copies(found, events)
    own_call_s, calls = _add_calls(found, events)
    if len(sections.begin):
        _add_sections(found, piece, sections, kernels, calls, own_call_s)
    if len(devices) > 1:
        found.notes[
            f"times in which something ran are the mean of {len(devices)} devices; kernels and copies are of all"
        ] = None
    return found


def _union(events: Events, mask: Mask) -> Spans:
    return Spans.union(np.maximum(events.began_s[mask], 0.0), np.maximum(events.ended_s[mask], 0.0))


def _add_device(found: Found, piece: Cut, kernels: Kernels, here: Mask, weight: float) -> None:
    """When one device worked, and what it waited for otherwise."""
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
        setattr(found, name, getattr(found, name) + weight * max(seconds, 0.0))
    if unknown:
        found.notes["some of the device's work has no call in the trace: the gaps before it count as queue gaps"] = None


def gaps_s(piece: Cut, active: Spans, works: Mask) -> tuple[float, float, float, int]:
    """Seconds in which the device waited for the host to launch, in which it waited though something was launched, and
    at the edges: until the first kernel and after the last one, where only the piece begins and ends.

    The last number says how many gaps end with work whose call is not in the trace.
    """
    events, gaps = piece.events, active.gaps(piece.elapsed_s)
    order = np.flatnonzero(works)
    order = order[np.argsort(events.began_s[order], kind="stable")]
    next_ = np.searchsorted(events.began_s[order], gaps.end, side="left")
    edge = (gaps.begin <= 0.0) | (next_ >= len(order))
    call = piece.launched_by[order[np.minimum(next_, len(order) - 1)]]
    known = ~edge & (call >= 0)
    launched_s = np.where(known, events.ended_s[call], gaps.begin)
    length_s = gaps.end - gaps.begin
    launch_s = np.where(edge, 0.0, np.clip(launched_s - gaps.begin, 0.0, length_s))
    edge_s = float(length_s[edge].sum())
    queue_s = float((length_s - launch_s).sum()) - edge_s
    return float(launch_s.sum()), queue_s, edge_s, int((~edge & ~known).sum())


def _add_copies(found: Found, events: Events) -> None:
    for index in np.flatnonzero(events.are("copy")).tolist():
        words = events.names[events.name[index]].lower()
        direction = next((value for word, value in DIRECTIONS.items() if word in words), None)
        if direction is None:
            found.notes["some copies are between memories that are not a device's: they are in no direction"] = None
            continue
        found.copies.put(direction, float(events.length_s[index]))
        size = int(events.bytes[index])
        found.sizes.setdefault(direction, Counter())[max(size, 0)] += 1
        if size == UNKNOWN:
            found.notes["the trace does not say how large some copies are: their bytes are missing from the sums"] = (
                None
            )
    fills = events.are("fill")
    if fills.any():
        found.fills.put("fill", float(events.length_s[fills].sum()), int(fills.sum()))


def _add_calls(found: Found, events: Events) -> tuple[np.ndarray, Integers]:
    """Calls by name, each without the calls within it."""
    calls = np.flatnonzero(events.are("call"))
    begin, end = events.began_s[calls], events.ended_s[calls]
    own = own_s(begin, end, within(begin, end, events.stream[calls]))
    names = events.name[calls]
    seconds, counts = np.bincount(names, weights=own), np.bincount(names)
    for number in np.flatnonzero(counts).tolist():
        found.calls.put(events.names[number], float(seconds[number]), int(counts[number]))
    return own, calls


def _add_sections(
    found: Found, piece: Cut, sections: Sections, kernels: Kernels, calls: Integers, own_call_s: np.ndarray
) -> None:
    """What was called in each section, and what ran because of it."""
    events = piece.events
    in_call = sections.at(events.began_s[calls])
    classes = [class_of_call(name) for name in events.names]
    for number, name in enumerate(sections.names):
        own = InSection(host_s=float((sections.end - sections.begin)[sections.number == number].sum()))
        launched = kernels.index[kernels.section == number]
        own.kernel_s = float(events.length_s[launched].sum())
        for device in np.unique(events.device[launched]).tolist():
            here = launched[events.device[launched] == device]
            own.busy_s += Spans.union(events.began_s[here], events.ended_s[here]).length_s / found.devices
        made = np.flatnonzero(in_call == number)
        for which, seconds in zip(events.name[calls[made]].tolist(), own_call_s[made].tolist(), strict=True):
            own.calls.put(classes[which], seconds)
        found.sections[name] = own
