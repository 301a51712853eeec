"""Channels of the host: processors, memory, network, and RAPL energy where users may read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from labkit.sensors import HOST, HOST_SENSORS, RAPL, RAPL_PERIOD_S
from labkit.telemetry.channel import Channel, MissingError, ReadingError, Values, lacking

POWERCAP = Path("/sys/class/powercap")
INFINIBAND = Path("/sys/class/infiniband")
WORD_BYTES = 4  # InfiniBand's data counters count words of this size (IBTA specification, PortXmitData)
LOOPBACK = re.compile(r"lo\d*")  # `lo` on Linux
PERIOD_S = {sensor.metric: sensor.period_s for sensor in HOST_SENSORS}
# psutil's names of sensors inside a processor.
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal")


def channels(powercap: Path = POWERCAP, infiniband: Path = INFINIBAND) -> list[Channel]:
    """Return every channel of the host."""

    def of(names: tuple[str, ...], read: Callable[[], Values]) -> Channel:
        return Channel(HOST, names, PERIOD_S[names[0]], read)

    return [
        of(("cpu_utilisation", "cpu_steal"), _cpu()),
        of(("cpu_clock_hz",), _clock),
        of(("cpu_temperature_c",), _temperature),
        of(("host_memory_bytes",), _used_memory),
        of(("network_received_bytes", "network_sent_bytes"), _network),
        of(("loopback_sent_bytes",), _loopback),
        of(("infiniband_received_bytes", "infiniband_sent_bytes"), lambda: _infiniband(infiniband)),
        *_rapl(powercap),
    ]


def _cpu() -> Callable[[], Values]:
    """Return a reader of busy and stolen shares of all processor time since its last call; None the first time."""
    last: Any = None

    def read() -> Values:
        nonlocal last
        now, before = psutil.cpu_times(), last
        last = now
        if before is None:
            return (None, None)
        total = _total(now) - _total(before)
        if total <= 0:
            return (None, None)  # two calls within one kernel tick
        stolen = _share((now.steal - before.steal) / total) if hasattr(now, "steal") else None
        return (_share(1 - (_idle(now) - _idle(before)) / total), stolen)

    return read


def _total(times: Any) -> float:
    """Return all seconds. User time already includes guest time."""
    return float(sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def _idle(times: Any) -> float:
    return float(times.idle + getattr(times, "iowait", 0.0))


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _clock() -> Values:
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    if frequency is None or not frequency.current:
        raise MissingError("the operating system does not report the processor's clock")
    return (frequency.current * 1e6,)


def _temperature() -> Values:
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    values = [reading.current for name in CPU_SENSORS for reading in sensors.get(name, []) if reading.current]
    if not values:
        raise MissingError("the operating system shows no processor temperature (virtual machines hide it)")
    return (max(values),)


def _used_memory() -> Values:
    memory = psutil.virtual_memory()
    return (float(memory.total - memory.available),)


def _network() -> Values:
    """Return the bytes of all interfaces together, loopback included."""
    counters = psutil.net_io_counters()
    if counters is None:
        raise MissingError("the operating system counts no network traffic")
    return (float(counters.bytes_recv), float(counters.bytes_sent))


def _loopback() -> Values:
    interfaces = psutil.net_io_counters(pernic=True)
    sent = [counters.bytes_sent for name, counters in interfaces.items() if LOOPBACK.fullmatch(name)]
    if not sent:
        raise MissingError("the operating system shows no loopback interface")
    return (float(sum(sent)),)


def _infiniband(folder: Path) -> Values:
    """Return the bytes received and sent by all ports of all adapters."""
    counters = [port / "counters" for port in sorted(folder.glob("*/ports/*"))]
    if not counters:
        raise MissingError("this machine has no InfiniBand")
    return tuple(_words(counters, name) * WORD_BYTES for name in ("port_rcv_data", "port_xmit_data"))


def _words(folders: Sequence[Path], name: str) -> float:
    try:
        return float(sum(int((folder / name).read_text(encoding="ascii")) for folder in folders))
    except FileNotFoundError as error:
        raise MissingError("an InfiniBand port of this machine shows no data counters") from error
    except (OSError, ValueError) as error:
        raise ReadingError(str(error)) from error


def _rapl(powercap: Path) -> list[Channel]:
    """Return the energy counters of processor packages and their memory, or one channel that says why none exists."""
    zones = sorted(powercap.glob("intel-rapl:*")) if powercap.is_dir() else []
    by_name: dict[str, Path] = {}
    for zone in zones:
        if re.fullmatch(r"intel-rapl:\d+(:\d+)?", zone.name):
            by_name.setdefault(_name_of(zone), zone)  # a kernel may show one counter twice
    if by_name:
        return [_rapl_zone(zone) for zone in by_name.values()]
    why = "no RAPL: this kernel or virtual machine shows no energy counter of the processor"
    return [Channel(f"{RAPL}package-0", ("energy_j",), RAPL_PERIOD_S, lacking(why))]


def _rapl_zone(zone: Path) -> Channel:
    """Return the channel of one zone, unwrapped: the hardware counter restarts at `max_energy_range_uj`."""
    name = _name_of(zone)
    last, turns = 0, 0

    def read() -> Values:
        nonlocal last, turns
        try:
            now = int((zone / "energy_uj").read_text(encoding="ascii"))
            if now < last:
                turns += int((zone / "max_energy_range_uj").read_text(encoding="ascii"))
        except PermissionError as error:
            raise MissingError(
                "RAPL may be read by the administrator only (since CVE-2020-8694); `chmod a+r` on energy_uj opens it"
            ) from error
        except (OSError, ValueError) as error:
            raise ReadingError(str(error)) from error
        last = now
        return ((now + turns) / 1e6,)

    return Channel(f"{RAPL}{name}", ("energy_j",), RAPL_PERIOD_S, read)


def _name_of(zone: Path) -> str:
    """Return `package-0`, or `package-0/dram` for a zone inside a package."""
    try:
        own = (zone / "name").read_text(encoding="ascii").strip()
    except OSError:
        return zone.name
    parent = zone.parent / zone.name.rpartition(":")[0]
    return own if own.startswith("package") or not (parent / "name").exists() else f"{_name_of(parent)}/{own}"
