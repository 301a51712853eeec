"""The telemetry process: sample devices and host on the monotonic clock until the parent process is gone.

    python -m labkit.telemetry.sampler --gpu 0 --gpu 1
    python -m labkit.telemetry.sampler --gpu 0 --one-device

The process is small on purpose: no framework, no NumPy, nothing of the notebook that started it. It writes lines of
JSON to stdout: first a greeting, then the readings a few times a second. It ends when its stdin closes, which happens
whenever the parent dies, whatever the cause.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from labkit.sensors import BETWEEN_DEVICES_OFTEN
from labkit.telemetry import machine, nvml
from labkit.telemetry.channel import Channel, Report, next_moment

SEND_S = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample until stdin closes."""
    parser = argparse.ArgumentParser(prog="labkit.telemetry.sampler", description=__doc__)
    parser.add_argument("--gpu", action="append", default=[], help="a device to sample: NVML's NUMBER, or NUMBER=UUID")
    parser.add_argument("--one-device", action="store_true", help="leave out the traffic between devices")
    wanted = parser.parse_args(arguments)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    report = Report()
    uuids = {int(number): uuid for number, _, uuid in (gpu.partition("=") for gpu in wanted.gpu)}
    channels = [*_gpus(uuids, report), *machine.channels()]
    if wanted.one_device:
        channels = [channel for channel in channels if not BETWEEN_DEVICES_OFTEN.issuperset(channel.metrics)]
    _send(event="hello", at_s=time.monotonic(), uuids=uuids)
    try:
        _sample(channels, report)
    except BrokenPipeError:
        return 0  # the parent has closed the pipe
    return 0


def _gpus(uuids: dict[int, str], report: Report) -> list[Channel]:
    """Return the channels of the devices, and set their UUIDs where they are empty.

    Report a device that cannot be opened as missing, with the reason.
    """
    indices = list(uuids)
    if not indices:
        return []
    try:
        import pynvml
    except ImportError:
        report.missing += [(f"gpu{index}", "*", "nvidia-ml-py is not installed") for index in indices]
        return []
    channels: list[Channel] = []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        report.missing += [(f"gpu{index}", "*", f"the driver says: {error}") for index in indices]
        return []
    for index in indices:
        try:
            device = nvml.Device(pynvml, index, uuids[index])
            uuids[index] = device.uuid if isinstance(device.uuid, str) else ""  # old bindings give bytes
            channels += nvml.channels(device)
        except pynvml.NVMLError as error:
            report.missing.append((f"gpu{index}", "*", f"the driver says: {error}"))
    return channels


def _sample(channels: list[Channel], report: Report) -> None:
    now = time.monotonic
    send_at = next_moment(SEND_S, now())
    while True:
        for channel in channels:
            if channel.due_s <= now():
                channel.sample(now, report)
        if any(channel.gone for channel in channels):
            channels = [channel for channel in channels if not channel.gone]
        if now() >= send_at:
            open_gaps = [gap for channel in channels if (gap := channel.open_gap(now()))]
            _send(
                event="sampled",
                at_s=now(),
                cpu_s=time.process_time(),
                readings=report.readings,
                gaps=report.gaps,
                open_gaps=open_gaps,
                missing=report.missing,
            )
            report = Report()
            send_at = next_moment(SEND_S, now())
        due = min([send_at, *(channel.due_s for channel in channels)])
        time.sleep(max(due - now(), 0.0005))


def _send(**event: Any) -> None:
    """Write one event to stdout, as one line of JSON."""
    data = (json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


def _end_with_parent() -> None:
    """Block until stdin closes, then end the process at once."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
