"""A stand-in for nvidia-ml-py's `pynvml`: devices of four generations whose true power and energy a test can query.

Put this folder first on a process's PYTHONPATH, or this module into `sys.modules["pynvml"]`. Describe the machine as
JSON in FAKE_NVML. Times count from `epoch_s` on the monotonic clock, or without `epoch_s` from the first call:

    {"chips": ["kepler", "hopper"],                    devices by index
     "epoch_s": 1234.5,
     "load": {"period_s": 1.0, "share": 0.5},          busy for a share of each period; default: always busy
     "throttle": [{"index": 1, "from_s": 1, "to_s": 2, "bits": 4, "sm_clock_mhz": 900}],
     "counter_restarts_at_s": {"1": 2.5},              when the energy counter of a device restarts at 0
     "lacking": ["nvmlDeviceGetTemperature"],          functions that no device supports
     "gpm_lacking": [60, 61],                          numbers of GPM metrics that no device supports
     "faults": [{"function": "nvmlDeviceGetPowerUsage", "error": "NVML_ERROR_UNKNOWN",
                 "index": 1, "from_s": 1, "to_s": 2, "times": 1}],
     "used_bytes": {"0": 42949672960},                 memory in use, by device; default: 2 GiB
     "mig": [0],                                       devices that are split into slices
     "gone": {"index": 0, "from_s": 2},                a device off the bus: the next nvmlInit lists only the others
     "uuids": ["GPU-1", "GPU-2"], "bytes": true}       return text as bytes, as old bindings do

A fault without a `function` concerns all functions of a device. NVML_ERROR_GPU_IS_LOST also invalidates older handles.
Constants, structures and errors come from the real module. A test compares the signatures of functions.
"""

# ruff: noqa: F821 - names copied from the real module
from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from ctypes import c_double, c_uint
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent


def _real() -> ModuleType:
    """Import and return the real pynvml, whose functions need a driver."""
    elsewhere = [folder for folder in sys.path if Path(folder) != HERE]
    found = PathFinder.find_spec("pynvml", elsewhere)
    spec = spec_from_file_location("_real_pynvml", found.origin)
    real = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(real)
    return real


def _is_same(name: str) -> bool:
    return name.startswith(("NVML", "c_nvml", "struct_c_nvmlGpmSample", "_nvmlReturn"))


globals().update({name: value for name, value in vars(_real()).items() if _is_same(name)})
struct_c_nvmlGpmSample_t._fields_ = [("index", c_uint), ("taken_s", c_double)]  # opaque in the real module


# ---- the devices and their true readings ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Chip:
    """A GPU model: its properties, power draw, power sensor's period, and the functions that it or its driver lacks."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    idle_w: float
    busy_w: float
    limit_w: float
    sm_clock_mhz: int
    memory_clock_mhz: int
    power_renews_s: float = 0.1
    smi_averages_s: float = 0.0
    has_instant_power: bool = False
    has_gpm: bool = False
    nvlinks: int = 0
    lacks: dict[str, int] = field(default_factory=dict)


NO_COUNTER = {"nvmlDeviceGetTotalEnergyConsumption": NVML_ERROR_NOT_SUPPORTED}
OLD_DRIVER = dict.fromkeys(
    ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet"),
    NVML_ERROR_FUNCTION_NOT_FOUND,
)
_kepler = Chip("Tesla K80", (3, 7), 11_997_020_160, 30, 120, 149, 875, 2505, 0.02, lacks=NO_COUNTER | OLD_DRIVER)
_pascal = Chip("Tesla P100-PCIE-16GB", (6, 0), 17_066_885_120, 30, 200, 250, 1480, 715, 0.02, lacks=NO_COUNTER)
_volta = Chip("Tesla V100-SXM2-16GB", (7, 0), 16_945_512_448, 40, 250, 300, 1530, 877, 0.02, nvlinks=6)
_hopper = Chip(
    *("NVIDIA H200", (9, 0), 150_754_820_096, 80, 500, 700, 1980, 3201, 0.1),
    smi_averages_s=1.0,
    has_instant_power=True,
    has_gpm=True,
    nvlinks=18,
)
CHIPS = {
    "kepler": _kepler,
    "pascal": _pascal,
    "pascal_12": replace(_pascal, name="Tesla P100-PCIE-12GB", memory_bytes=12_788_498_432),
    "volta": _volta,
    "hopper": _hopper,
    "unheard_of": replace(_hopper, name="NVIDIA Z9000", capability=(12, 1), memory_bytes=2**38),
}
COUNTER_RENEWS_S = 0.1
COUNTED_BEFORE_J = 5e6  # since the driver was loaded
COUNTED_BEFORE_BYTES = 2**40
ALWAYS = {"period_s": 1.0, "share": 1.0}


class Machine:
    """The machine that a FAKE_NVML text describes."""

    def __init__(self, text: str) -> None:
        self.settings: dict[str, Any] = json.loads(text)
        self.epoch_s: float = self.settings.get("epoch_s", time.monotonic())
        chips = [CHIPS[name] for name in self.settings.get("chips", [])]
        self.devices = [Device(self, index, chip) for index, chip in enumerate(chips)]
        self._raised: Counter[int] = Counter()

    def fail(self, function: str, index: int | None, known_since_s: float) -> None:
        """Raise the NVMLError that a call raises now, for a handle obtained at `known_since_s`."""
        now = time.monotonic() - self.epoch_s
        if index is not None and self.is_gone(index):
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)
        for number, fault in enumerate(self.settings.get("faults", [])):
            begin, end = fault.get("from_s", -math.inf), fault.get("to_s", math.inf)
            whole = "function" not in fault and index is not None
            if whole and fault["error"] == "NVML_ERROR_GPU_IS_LOST" and known_since_s - self.epoch_s < end:
                end = math.inf  # a handle from before the loss stays useless
            concerned = whole or fault.get("function") == function
            if concerned and fault.get("index", index) == index and begin <= now < end:
                self._raised[number] += 1
                if self._raised[number] <= fault.get("times", math.inf):
                    raise NVMLError(globals()[fault["error"]])
        if function in self.settings.get("lacking", []):
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        if index is not None and function in self.devices[index].chip.lacks:
            raise NVMLError(self.devices[index].chip.lacks[function])

    def is_gone(self, index: int) -> bool:
        """Return whether a device has fallen off the bus."""
        gone = self.settings.get("gone", {"index": None})
        return index == gone["index"] and time.monotonic() - self.epoch_s >= gone["from_s"]

    def text(self, value: str) -> Any:
        return value.encode() if self.settings.get("bytes") else value


@dataclass(frozen=True)
class Device:
    """A device with its load, power and counters. Times are on the monotonic clock, in seconds."""

    machine: Machine = field(repr=False)
    index: int
    chip: Chip

    def busy_s(self, at_s: float) -> float:
        """Return the seconds the device was busy since the epoch (negative before the epoch)."""
        load = self.machine.settings.get("load", ALWAYS)
        periods, rest = divmod(at_s - self.machine.epoch_s, load["period_s"])
        busy_s = load["period_s"] * load["share"]
        return periods * busy_s + min(rest, busy_s)

    def load(self, start_s: float, end_s: float) -> float:
        """Return the share (0 to 1) of an interval in which the device was busy."""
        return (self.busy_s(end_s) - self.busy_s(start_s)) / (end_s - start_s)

    def energy_j(self, start_s: float, end_s: float) -> float:
        """Return the true energy drawn in an interval."""
        busy_s = self.busy_s(end_s) - self.busy_s(start_s)
        return self.chip.idle_w * (end_s - start_s) + (self.chip.busy_w - self.chip.idle_w) * busy_s

    def power_w(self, at_s: float) -> float:
        """Return the true power at a moment."""
        load = self.machine.settings.get("load", ALWAYS)
        is_busy = (at_s - self.machine.epoch_s) % load["period_s"] < load["period_s"] * load["share"]
        return self.chip.busy_w if is_busy else self.chip.idle_w

    def counted_j(self, at_s: float) -> float:
        """Return the value of the energy counter at a moment."""
        shown_s, epoch_s = _renewed(at_s, COUNTER_RENEWS_S), self.machine.epoch_s
        restart_s = self.machine.settings.get("counter_restarts_at_s", {}).get(str(self.index))
        if restart_s is not None and shown_s > epoch_s + restart_s:
            return self.energy_j(epoch_s + restart_s, shown_s)
        return COUNTED_BEFORE_J + self.energy_j(epoch_s, shown_s)

    def counted(self, number: int, scope: int, at_s: float) -> int:
        """Return NVLink's counter in KiB, of one link or (scope 2**32 - 1) of all links."""
        links = 1 if scope == 2**32 - 1 else self.chip.nvlinks
        return int(COUNTED_BEFORE_BYTES + COUNTED_WHEN_BUSY[number] * self.busy_s(at_s) / links) // 1024

    def throttle(self) -> dict[str, Any]:
        """Return the throttle entry in force now, or {"bits": 0}."""
        now = time.monotonic() - self.machine.epoch_s
        stretches = self.machine.settings.get("throttle", [])
        active = [
            item for item in stretches if item.get("index", 0) == self.index and item["from_s"] <= now < item["to_s"]
        ]
        return active[0] if active else {"bits": 0}


def _renewed(at_s: float, period_s: float) -> float:
    """Return the last time at which a sensor with this period was renewed."""
    return math.floor(at_s / period_s) * period_s


@functools.cache
def _machine_of(text: str) -> Machine:
    return Machine(text)


def machine() -> Machine:
    """Return the machine that FAKE_NVML describes now."""
    return _machine_of(os.environ.get("FAKE_NVML", '{"chips": []}'))


@dataclass(frozen=True)
class _Handle:
    device: Device
    since_s: float


# ---- the functions --------------------------------------------------------------------------------------------------

_nvmlLib_refcount = 0
_listed: list[Device] = []  # by the driver since the last nvmlInit


def _answered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an NVML function, with the same signature, so that it raises the errors that the machine configures."""

    @functools.wraps(function)
    def asked(*arguments: Any, **named: Any) -> Any:
        handle = arguments[0] if arguments and isinstance(arguments[0], _Handle) else None
        if not _nvmlLib_refcount and function.__name__ != "nvmlInit":
            raise NVMLError(NVML_ERROR_UNINITIALIZED)
        if handle is None:
            machine().fail(function.__name__, None, 0.0)
        else:
            handle.device.machine.fail(function.__name__, handle.device.index, handle.since_s)
        return function(*arguments, **named)

    return asked


@_answered
def nvmlInit():
    global _nvmlLib_refcount, _listed
    _nvmlLib_refcount += 1
    _listed = [device for device in machine().devices if not machine().is_gone(device.index)]


@_answered
def nvmlShutdown():
    global _nvmlLib_refcount
    _nvmlLib_refcount -= 1


@_answered
def nvmlSystemGetDriverVersion():
    return machine().text("550.54")


@_answered
def nvmlDeviceGetCount():
    return len(_listed)


@_answered
def nvmlDeviceGetHandleByIndex(index):
    if index >= len(_listed):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    machine().fail("nvmlDeviceGetHandleByIndex", _listed[index].index, time.monotonic())
    return _Handle(_listed[index], time.monotonic())


@_answered
def nvmlDeviceGetHandleByUUID(uuid):
    for device in _listed:
        if nvmlDeviceGetUUID.__wrapped__(_Handle(device, 0.0)) == uuid:
            machine().fail("nvmlDeviceGetHandleByUUID", device.index, time.monotonic())
            return _Handle(device, time.monotonic())
    raise NVMLError(NVML_ERROR_NOT_FOUND)


@_answered
def nvmlDeviceGetName(handle):
    return handle.device.machine.text(handle.device.chip.name)


@_answered
def nvmlDeviceGetUUID(handle):
    uuids = handle.device.machine.settings.get("uuids")
    return handle.device.machine.text(uuids[handle.device.index] if uuids else f"GPU-secret-{handle.device.index}")


@_answered
def nvmlDeviceGetMemoryInfo(handle, version=None):
    total = handle.device.chip.memory_bytes
    used = handle.device.machine.settings.get("used_bytes", {}).get(str(handle.device.index), 2**31)
    return c_nvmlMemory_t(total, total - used, used)


@_answered
def nvmlDeviceGetCudaComputeCapability(handle):
    return handle.device.chip.capability


@_answered
def nvmlDeviceGetMigMode(device):
    if "mig" not in device.device.machine.settings:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return [int(device.device.index in device.device.machine.settings["mig"])] * 2


@_answered
def nvmlDeviceGetEnforcedPowerLimit(handle):
    return round(handle.device.chip.limit_w * 1e3)


@_answered
def nvmlDeviceGetMaxClockInfo(handle, type):
    return {NVML_CLOCK_SM: handle.device.chip.sm_clock_mhz, NVML_CLOCK_MEM: handle.device.chip.memory_clock_mhz}[type]


@_answered
def nvmlDeviceGetClockInfo(handle, type):
    highest = nvmlDeviceGetMaxClockInfo(handle, type)
    return handle.device.throttle().get("sm_clock_mhz", highest) if type == NVML_CLOCK_SM else highest


@_answered
def nvmlDeviceGetTemperature(handle, sensor):
    return {NVML_TEMPERATURE_GPU: 61}[sensor]


@_answered
def nvmlDeviceGetUtilizationRates(handle):
    now = time.monotonic()
    busy = round(100 * handle.device.load(now - 0.2, now))
    return c_nvmlUtilization_t(busy, busy // 2)


@_answered
def nvmlDeviceGetPowerUsage(handle):
    device, now = handle.device, time.monotonic()
    if device.chip.smi_averages_s:
        return round(1e3 * device.energy_j(now - device.chip.smi_averages_s, now) / device.chip.smi_averages_s)
    return round(1e3 * device.power_w(_renewed(now, device.chip.power_renews_s)))


@_answered
def nvmlDeviceGetTotalEnergyConsumption(handle):
    return round(1e3 * handle.device.counted_j(time.monotonic()))


COUNTED_WHEN_BUSY = {  # bytes/s when busy
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 400 * 2**20,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 300 * 2**20,
}


@_answered
def nvmlDeviceGetFieldValues(handle, fieldIds):
    device = handle.device
    values = (c_nvmlFieldValue_t * len(fieldIds))()
    for value, wanted in zip(values, fieldIds, strict=True):
        number, scope = wanted if isinstance(wanted, tuple) else (wanted, 0)
        value.fieldId, value.scopeId, value.valueType = number, scope, NVML_VALUE_TYPE_UNSIGNED_INT
        if number == NVML_FI_DEV_POWER_INSTANT and device.chip.has_instant_power:
            shown_s = _renewed(time.monotonic(), device.chip.power_renews_s)
            value.value.uiVal = round(1e3 * device.power_w(shown_s))
        elif number in COUNTED_WHEN_BUSY and device.chip.nvlinks:
            value.valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = device.counted(number, scope, time.monotonic())
        else:
            value.nvmlReturn = NVML_ERROR_NOT_SUPPORTED
    return values


@_answered
def nvmlDeviceGetCurrentClocksEventReasons(handle):
    return handle.device.throttle()["bits"]


@_answered
def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return handle.device.throttle()["bits"]


@_answered
def nvmlGpmQueryDeviceSupport(device):
    return c_nvmlGpmSupport_t(NVML_GPM_SUPPORT_VERSION, int(device.device.chip.has_gpm))


@_answered
def nvmlGpmSampleAlloc():
    return c_nvmlGpmSample_t(struct_c_nvmlGpmSample_t())


@_answered
def nvmlGpmSampleGet(device, gpmSample):
    if not device.device.chip.has_gpm:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    gpmSample.contents.index, gpmSample.contents.taken_s = device.device.index, time.monotonic()
    return gpmSample


GPM_WHEN_BUSY = {  # values when busy, in per cent or MiB/s
    NVML_GPM_METRIC_SM_UTIL: 90.0,
    NVML_GPM_METRIC_SM_OCCUPANCY: 40.0,
    NVML_GPM_METRIC_ANY_TENSOR_UTIL: 30.0,
    NVML_GPM_METRIC_DRAM_BW_UTIL: 60.0,
    NVML_GPM_METRIC_FP32_UTIL: 20.0,
    NVML_GPM_METRIC_FP16_UTIL: 0.0,
    NVML_GPM_METRIC_PCIE_TX_PER_SEC: 100.0,
    NVML_GPM_METRIC_PCIE_RX_PER_SEC: 200.0,
    NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: 300.0,
    NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 400.0,
}


@_answered
def nvmlGpmMetricsGet(metricsGet):
    first, second = metricsGet.sample1.contents, metricsGet.sample2.contents
    if metricsGet.version != NVML_GPM_METRICS_GET_VERSION:
        raise NVMLError(NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    if not 0 < first.taken_s < second.taken_s or first.index != second.index:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    load = machine().devices[first.index].load(first.taken_s, second.taken_s)
    for metric in metricsGet.metrics[: metricsGet.numMetrics]:
        if metric.metricId in machine().settings.get("gpm_lacking", []):
            metric.nvmlReturn, metric.value = NVML_ERROR_NOT_SUPPORTED, math.nan
        else:
            metric.nvmlReturn, metric.value = NVML_SUCCESS, GPM_WHEN_BUSY[metric.metricId] * load
    return metricsGet
