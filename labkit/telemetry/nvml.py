"""Channels of an NVIDIA device: power, energy, utilisation, memory, clocks, temperature, throttling, traffic, GPM.

The driver itself reports what a generation lacks (an energy counter before Volta, GPM before Hopper). Such a metric is
missing, with the driver's reason, and never zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from labkit.sensors import GPM_PERIOD_S, GPM_SENSORS, GPU_SENSORS, POLLED_POWER_PERIOD_S
from labkit.telemetry.channel import Channel, MissingError, ReadingError, Values, lacking

# NVML's errors for a feature that this device lacks: a second try is useless.
_LACKING = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)
_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_UNINITIALIZED", "NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_UNKNOWN")
MOST_W = 10_000.0  # ten times what any card draws
REOPEN_S = 1.0

MIB = 2**20
# Members of a field's value union by NVML_VALUE_TYPE: double, unsigned int, unsigned long, ...
VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
GPM_METRICS = {  # name -> (pynvml's constant, factor to SI)
    "sm_activity": ("NVML_GPM_METRIC_SM_UTIL", 0.01),
    "occupancy": ("NVML_GPM_METRIC_SM_OCCUPANCY", 0.01),
    "tensor_activity": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 0.01),
    "fp32_activity": ("NVML_GPM_METRIC_FP32_UTIL", 0.01),
    "fp16_activity": ("NVML_GPM_METRIC_FP16_UTIL", 0.01),
    "dram_activity": ("NVML_GPM_METRIC_DRAM_BW_UTIL", 0.01),
    "pcie_received_bytes_per_s": ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", MIB),
    "pcie_sent_bytes_per_s": ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", MIB),
    "nvlink_received_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", MIB),
    "nvlink_sent_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", MIB),
}
ALL_LINKS = 2**32 - 1  # scope of NVLink's counters: a link's number, or this one for all links together
# Bytes received and sent since the driver was loaded, in units of 1,024 (NVML's header).
NVLINK_TOTALS = {
    "nvlink_received_bytes": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
    "nvlink_sent_bytes": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
}
PERIOD_S = {sensor.metric: sensor.period_s for sensor in GPU_SENSORS}


class Device:
    """One NVIDIA device, reopened when the driver loses it.

    It is reopened by its UUID: after a device fell off the bus, its number means another device. A device without a
    UUID is reopened only if the driver lists as many devices as before.
    """

    openings = 0  # how often this process reopened the driver, which invalidates older handles

    def __init__(self, nvml: Any, index: int, uuid: str = "") -> None:
        self.nvml, self.index = nvml, index
        self.source = f"gpu{index}"
        self.handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(index)
        self._lacking = {getattr(nvml, name) for name in _LACKING if hasattr(nvml, name)}
        self._lost = {getattr(nvml, name) for name in _LOST if hasattr(nvml, name)}
        self._next_reopen_s = 0.0
        self._opened = Device.openings
        self._count, self.uuid = nvml.nvmlDeviceGetCount(), uuid or None
        self.uuid = uuid or self.answer("nvmlDeviceGetUUID")

    def call(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function on this device. Raise MissingError if it is not supported, ReadingError if it fails."""
        if self._opened != Device.openings:  # another device has reopened the driver
            self._open()
        try:
            return getattr(self.nvml, function)(self.handle, *arguments)
        except AttributeError as error:
            raise MissingError(f"this nvidia-ml-py has no {function}") from error
        except self.nvml.NVMLError as error:
            self.fail(error)
        except (TypeError, ValueError) as error:  # of the binding, which could not read what the driver gave
            raise ReadingError(f"{function}: {error}") from error

    def answer(self, function: str) -> Any:
        """Return the result of an NVML function on this device, None if it fails for any reason."""
        try:
            return self.call(function)
        except (MissingError, ReadingError):
            return None

    def fail(self, error: Any) -> None:
        """Raise MissingError or ReadingError for a driver's error. First reopen the driver if it lost the device."""
        if self.lacks(error.value):
            raise MissingError(f"the driver says: {error}") from error
        if error.value in self._lost:
            self._reopen()
        raise ReadingError(str(error)) from error

    def lacks(self, code: int) -> bool:
        """Return whether the NVML code means that this device lacks the feature."""
        return code in self._lacking

    def _reopen(self) -> None:
        now = time.monotonic()
        if now < self._next_reopen_s:
            return
        self._next_reopen_s = now + REOPEN_S
        with suppress(self.nvml.NVMLError):
            self.nvml.nvmlShutdown()  # nvmlInit reopens the driver only after this
        Device.openings += 1
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError:
            return  # the driver is still gone: the gap continues
        self._open()

    def _open(self) -> None:
        try:
            if self.uuid:
                self.handle = self.nvml.nvmlDeviceGetHandleByUUID(self.uuid)
            elif self.nvml.nvmlDeviceGetCount() == self._count:
                self.handle = self.nvml.nvmlDeviceGetHandleByIndex(self.index)
            else:
                return
            self._opened = Device.openings
        except self.nvml.NVMLError:
            pass  # the next call fails with the driver's error

    def fields(self, constants: Sequence[str], scope: int = 0) -> list[float]:
        """Return the values of NVML fields of the device's part `scope`. Each value names its own C type."""
        for constant in constants:
            if not hasattr(self.nvml, constant):
                raise MissingError(f"this nvidia-ml-py has no {constant}")
        wanted = [(getattr(self.nvml, constant), scope) for constant in constants]
        fields = self.call("nvmlDeviceGetFieldValues", wanted)
        for field in fields:
            if field.nvmlReturn != 0:
                self.fail(self.nvml.NVMLError(field.nvmlReturn))
        return [float(getattr(field.value, VALUES[field.valueType])) for field in fields]


def channels(device: Device) -> list[Channel]:
    """Return every channel of a device."""
    nvml = device.nvml
    no_gpm = lacking("this device has no GPM: it comes with Hopper, and with a driver of 520 or later")
    call, gpm = device.call, device.answer("nvmlGpmQueryDeviceSupport")

    def of(metric: str, read: Callable[[], float], period_s: float | None = None) -> Channel:
        return Channel(device.source, [metric], period_s or PERIOD_S[metric], lambda: (read(),))

    # Without an energy counter, power is polled so often that its integral is the energy.
    counts_energy = device.answer("nvmlDeviceGetTotalEnergyConsumption") is not None

    def read() -> Values:
        return [value * 1024 for value in device.fields(list(NVLINK_TOTALS.values()), ALL_LINKS)]

    return [
        of("power_w", _instant_power(device), None if counts_energy else POLLED_POWER_PERIOD_S),
        of("power_smi_w", lambda: _plausible(call("nvmlDeviceGetPowerUsage") / 1e3)),
        of("energy_j", lambda: call("nvmlDeviceGetTotalEnergyConsumption") / 1e3),
        of("memory_bytes", lambda: float(call("nvmlDeviceGetMemoryInfo").used)),
        of("sm_clock_hz", lambda: call("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM) * 1e6),
        of("memory_clock_hz", lambda: call("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM) * 1e6),
        of("temperature_c", lambda: float(call("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU))),
        of("throttle", lambda: _throttle(device)),
        Channel(
            device.source,
            ["utilisation", "memory_utilisation"],
            PERIOD_S["utilisation"],
            lambda: [(rates := call("nvmlDeviceGetUtilizationRates")).gpu / 100, rates.memory / 100],
        ),
        Channel(device.source, list(NVLINK_TOTALS), PERIOD_S["nvlink_sent_bytes"], read),
        _gpm(device)
        if gpm is not None and gpm.isSupportedDevice
        else Channel(device.source, list(GPM_METRICS), GPM_PERIOD_S, no_gpm),
    ]


def _instant_power(device: Device) -> Callable[[], float]:
    """Return a reader of instantaneous watts. If the driver lacks the field, the only reading is instantaneous."""

    def by_field() -> float:
        return _plausible(device.fields(["NVML_FI_DEV_POWER_INSTANT"])[0] / 1e3)

    try:
        by_field()
    except MissingError:
        return lambda: _plausible(float(device.call("nvmlDeviceGetPowerUsage")) / 1e3)
    except ReadingError:
        pass
    return by_field


def _plausible(watts: float) -> float:
    """Return a card's power. Raise ReadingError for a value that no card draws: 0, or a driver's largest number."""
    if not 0 < watts < MOST_W:
        raise ReadingError(f"the driver says {watts:,.0f} W, which no running card draws")
    return watts


def _throttle(device: Device) -> float:
    """Return the bits of reasons for a lower clock. Old drivers know only the call's old name."""
    try:
        return float(device.call("nvmlDeviceGetCurrentClocksEventReasons"))
    except MissingError:
        return float(device.call("nvmlDeviceGetCurrentClocksThrottleReasons"))


def _gpm(device: Device) -> Channel:
    """Return a channel of GPM's averages between two samples. Each sample ends one interval and begins the next."""
    nvml = device.nvml
    names = [sensor.metric for sensor in GPM_SENSORS]
    samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
    get = nvml.c_nvmlGpmMetricsGet_t()
    get.version = nvml.NVML_GPM_METRICS_GET_VERSION
    get.numMetrics = len(names)
    for place, name in enumerate(names):
        get.metrics[place].metricId = getattr(nvml, GPM_METRICS[name][0])
    filled = 0

    def read() -> Values:
        nonlocal filled
        try:
            device.call("nvmlGpmSampleGet", samples[1])
        except ReadingError:
            filled = 0  # an interval across a failure is longer than the period
            raise
        samples.reverse()
        filled += 1
        if filled < 2:
            return (None,) * len(names)
        get.sample1, get.sample2 = samples[1], samples[0]
        try:
            nvml.nvmlGpmMetricsGet(get)
        except nvml.NVMLError as error:
            filled = 0  # a second try would average over only the instant between the tries
            device.fail(error)
        return [_gpm_value(device, get.metrics[place], GPM_METRICS[name][1]) for place, name in enumerate(names)]

    return Channel(device.source, names, GPM_PERIOD_S, read)


def _gpm_value(device: Device, metric: Any, factor: float) -> float | MissingError | None:
    """Return one metric in SI units, None without a value in this interval, or MissingError if the device lacks it."""
    if device.lacks(metric.nvmlReturn):
        return MissingError(f"the driver says: {device.nvml.NVMLError(metric.nvmlReturn)}")
    value = float(metric.value)
    return value * factor if metric.nvmlReturn == 0 and value >= 0 else None  # NaN is not >= 0 either
