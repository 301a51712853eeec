"""What is sampled beside a trial: each sensor's metric, what a reading means, and how often it renews.

A reading is one of four kinds. `level`: the value at that moment. `average`: the mean since the reading before.
`counter`: a total that only grows; differences count. `flags`: bits that hold from that moment on.

No sensor is read more often than it renews. Renewal times are those found on an H200 (driver 580): power, energy and
clocks 100 ms, utilisation 200 ms. Reading the energy counter takes 4 ms there, so it is read once a second, and the
polled power says how the energy lies between two readings.

Bytes that devices exchange are counted in a steady load, so that only the end of a timed part lies between a reading
with traffic and one without: what is known of it is wrong by a quarter of a period at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["level", "average", "counter", "flags"]


@dataclass(frozen=True)
class Sensor:
    """One metric as it is sampled. Values in SI units, shares as fractions of 1."""

    metric: str
    kind: Kind
    period_s: float


EXCHANGED_PERIOD_S = 0.1  # of counted bytes: a quarter of it is 3 % of a timed part of 0.8 s
LOOPBACK_PERIOD_S = 0.05  # steps of ranks on a CPU take as long as that, and send all their bytes towards their end
POLLED_POWER_PERIOD_S = 0.02  # of a device without an energy counter, whose energy is the integral of its power

GPU_SENSORS = (
    Sensor("power_w", "level", 0.1),  # the instantaneous reading, where the driver tells it apart
    Sensor("power_smi_w", "level", 0.2),  # as nvidia-smi prints it: a 1 s average on Ampere (except GA100) and later
    Sensor("energy_j", "counter", 1.0),
    Sensor("utilisation", "average", 0.2),  # share of the time in which any kernel ran
    Sensor("memory_utilisation", "average", 0.2),  # share of the time in which device memory was read or written
    Sensor("memory_bytes", "level", 0.5),
    Sensor("sm_clock_hz", "level", 0.1),
    Sensor("memory_clock_hz", "level", 1.0),
    Sensor("temperature_c", "level", 0.5),
    Sensor("throttle", "flags", 0.1),
    Sensor("pcie_received_bytes_per_s", "average", 1.0),
    Sensor("pcie_sent_bytes_per_s", "average", 1.0),
    Sensor("pcie_received_bytes", "counter", 1.0),
    Sensor("pcie_sent_bytes", "counter", 1.0),
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
    Sensor("cpu_steal", "average", 0.2),  # share that a hypervisor gave to others
    Sensor("cpu_clock_hz", "level", 1.0),
    Sensor("cpu_temperature_c", "level", 1.0),
    Sensor("host_memory_bytes", "level", 0.5),
    Sensor("disk_read_bytes", "counter", 1.0),
    Sensor("disk_written_bytes", "counter", 1.0),
    # Of all interfaces of the operating system together, the loopback one among them: what processes of this machine
    # say to each other counts as sent and as received. A bond or bridge counts beside what it is made of.
    Sensor("network_received_bytes", "counter", EXCHANGED_PERIOD_S),
    Sensor("network_sent_bytes", "counter", EXCHANGED_PERIOD_S),
    Sensor("loopback_sent_bytes", "counter", LOOPBACK_PERIOD_S),  # which are all received, too
    # Of all ports of InfiniBand's adapters (and of Ethernet's that have RDMA), past the operating system's network.
    Sensor("infiniband_received_bytes", "counter", EXCHANGED_PERIOD_S),
    Sensor("infiniband_sent_bytes", "counter", EXCHANGED_PERIOD_S),
)
CORE_PERIOD_S = 2.0  # a machine may have hundreds
RAPL_PERIOD_S = 0.1

HOST = "host"
CORE, RAPL, GPU = "core", "rapl:", "gpu"  # sources are `core3`, `rapl:package-0`, `gpu0`

# GPM's figure of PCIe replaces NVML's, which blocks for 20 ms: where both name a metric, the kind is the same.
KINDS: dict[str, Kind] = {sensor.metric: sensor.kind for sensor in (*GPU_SENSORS, *GPM_SENSORS, *HOST_SENSORS)}
PERIODS_S: dict[str, float] = {sensor.metric: sensor.period_s for sensor in (*GPM_SENSORS, *GPU_SENSORS, *HOST_SENSORS)}
# Of interest only where several devices work together, and read ten times a second or more.
BETWEEN_DEVICES_OFTEN = frozenset(
    f"{way}_{direction}_bytes" for way in ("nvlink", "loopback", "infiniband") for direction in ("sent", "received")
)


def rate_name(counter: str) -> str:
    """Under which name a counter's growth a second stands in a window; GPM's averages have some of the plain names."""
    plain = f"{counter}_per_s"
    return f"{counter}_counted_per_s" if plain in KINDS else plain


# Bits of NVML's reasons for a clock below its maximum. Idling and a clock that the user chose are no throttling.
THROTTLE_REASONS: dict[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


def throttle_names(bits: int) -> list[str]:
    """The reasons in NVML's bit mask that are throttling."""
    return [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
