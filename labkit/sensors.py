"""The sensors that are sampled: each sensor's metric, the kind of its readings, and its sampling period.

A reading is one of four kinds. `level`: the value at that moment. `average`: the mean since the previous reading.
`counter`: a total that only grows, of which differences count. `flags`: bits that hold from that moment on.

No sensor is read more often than it renews. The renewal times were measured on an H200 (driver 580): power, energy and
clocks 100 ms, utilisation 200 ms. Reading the energy counter takes 4 ms there, so it is read once a second. Between two
of its readings the polled power shows the distribution of the energy.

Devices exchange bytes under a steady load, so only the end of a timed part lies between a reading with traffic and a
reading without. The counted bytes are therefore wrong by at most a quarter of a period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["level", "average", "counter", "flags"]


@dataclass(frozen=True)
class Sensor:
    """A sampled metric. Values are in SI units, shares are fractions of 1."""

    metric: str
    kind: Kind
    period_s: float


EXCHANGED_PERIOD_S = 0.1  # for counted bytes: a quarter of it is 3 % of a timed part of 0.8 s
LOOPBACK_PERIOD_S = 0.05  # as long as steps of ranks on a CPU, which send all their bytes towards the step's end
POLLED_POWER_PERIOD_S = 0.02  # for a device without an energy counter, whose energy is the integral of its power

GPU_SENSORS = (
    Sensor("power_w", "level", 0.1),  # the instantaneous reading, if the driver offers it
    Sensor("power_smi_w", "level", 0.2),  # nvidia-smi's value: a 1 s average on Ampere (except GA100) and later
    Sensor("energy_j", "counter", 1.0),
    Sensor("utilisation", "average", 0.2),  # share of the time in which any kernel ran
    Sensor("memory_utilisation", "average", 0.2),  # share of the time in which device memory was read or written
    Sensor("memory_bytes", "level", 0.5),
    Sensor("sm_clock_hz", "level", 0.1),
    Sensor("memory_clock_hz", "level", 1.0),
    Sensor("temperature_c", "level", 0.5),
    Sensor("throttle", "flags", 0.1),
    Sensor("nvlink_received_bytes", "counter", EXCHANGED_PERIOD_S),  # data on all links together, without protocol
    Sensor("nvlink_sent_bytes", "counter", EXCHANGED_PERIOD_S),
)
GPM_PERIOD_S = 0.25
GPM_SENSORS = tuple(
    Sensor(metric, "average", GPM_PERIOD_S)
    for metric in (
        "sm_activity",
        "occupancy",
        "tensor_activity",
        "fp32_activity",
        "fp16_activity",
        "dram_activity",
        "pcie_received_bytes_per_s",
        "pcie_sent_bytes_per_s",
        "nvlink_received_bytes_per_s",
        "nvlink_sent_bytes_per_s",
    )
)
HOST_SENSORS = (
    Sensor("cpu_utilisation", "average", 0.2),  # of all cores together
    Sensor("cpu_steal", "average", 0.2),  # share that a hypervisor gave to other machines
    Sensor("cpu_clock_hz", "level", 1.0),
    Sensor("cpu_temperature_c", "level", 1.0),
    Sensor("host_memory_bytes", "level", 0.5),
    # Sums over all interfaces of the operating system, with the loopback: traffic between processes of this machine
    # counts as sent and as received. A bond or bridge counts in addition to its member interfaces.
    Sensor("network_received_bytes", "counter", EXCHANGED_PERIOD_S),
    Sensor("network_sent_bytes", "counter", EXCHANGED_PERIOD_S),
    Sensor("loopback_sent_bytes", "counter", LOOPBACK_PERIOD_S),  # equal to the received bytes
    # Sums over all ports of InfiniBand adapters (and Ethernet adapters with RDMA), which bypass the system's network.
    Sensor("infiniband_received_bytes", "counter", EXCHANGED_PERIOD_S),
    Sensor("infiniband_sent_bytes", "counter", EXCHANGED_PERIOD_S),
)
RAPL_PERIOD_S = 0.1

HOST = "host"
RAPL, GPU = "rapl:", "gpu"  # sources are `rapl:package-0`, `gpu0`

# A GPU is in use from this share of busy time, or these held bytes. In 246 first pauses of a process, in the records
# of six profiles, contexts and libraries held up to 2.6 GiB.
BUSY_GPU, HELD_BYTES = 0.1, 4 * 2.0**30

KINDS: dict[str, Kind] = {sensor.metric: sensor.kind for sensor in (*GPU_SENSORS, *GPM_SENSORS, *HOST_SENSORS)}
PERIODS_S: dict[str, float] = {sensor.metric: sensor.period_s for sensor in (*GPU_SENSORS, *GPM_SENSORS, *HOST_SENSORS)}
# Metrics that matter only for several devices working together, and are read ten times a second or more.
BETWEEN_DEVICES_OFTEN = frozenset(
    f"{way}_{direction}_bytes" for way in ("nvlink", "loopback", "infiniband") for direction in ("sent", "received")
)


def rate_name(counter: str) -> str:
    """Return the name of a counter's growth per second in a window. GPM's averages use some of the simple names."""
    plain = f"{counter}_per_s"
    return f"{counter}_counted_per_s" if plain in KINDS else plain


# Bits of NVML's reasons for a clock below its maximum. Idling and a clock set by the user are no throttling.
THROTTLE_REASONS: dict[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
